"""Packages of the wheel. The page and the model settings live at the top of the tree and are installed inside it."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["voicechat", "voicechat.*"]), "voicechat.web", "voicechat.configs"],
    package_dir={"voicechat.web": "web", "voicechat.configs": "configs"},
    package_data={
        "voicechat": ["py.typed"],
        "voicechat.models.embedded": ["weights/*"],
        "voicechat.train": ["**/*.txt", "**/*.json"],
        "voicechat.web": ["**/*"],
        "voicechat.configs": ["*.yaml"],
    },
)
