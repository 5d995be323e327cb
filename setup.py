"""Packages of the wheel. The page and the model settings live at the top of the tree and are installed inside it."""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
INSIDE = {f"voicechat.{name}": name for name in ("web", "configs") if (HERE / name).is_dir()}

setup(
    packages=[*find_packages(include=["voicechat", "voicechat.*"]), *INSIDE],
    package_dir=INSIDE,
    package_data={
        "voicechat": ["py.typed"],
        "voicechat.assemble": ["factors/*.npz"],
        "voicechat.bench": ["*.json"],
        "voicechat.realtime": ["lexicons/*.yaml", "endpointing.json"],
        "voicechat.models.embedded": ["weights/*"],
        "voicechat.train": ["**/*.txt", "**/*.json", "*.yaml"],
        "voicechat.watermark": ["front.npz"],
        "voicechat.web": ["**/*"],
        "voicechat.configs": ["*.yaml"],
    },
)
