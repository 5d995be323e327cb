"""The wheel holds everything that a checkout has: code, page, model settings, weights."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", "build", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the tree, with the setuptools that is installed."""
    pytest.importorskip("setuptools", minversion="77.0.3")
    copy = tmp_path_factory.mktemp("tree") / "voicechat"
    shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
    out = tmp_path_factory.mktemp("wheel")
    code = f"from setuptools import build_meta; print(build_meta.build_wheel({str(out)!r}))"
    subprocess.run([sys.executable, "-c", code], cwd=copy, check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_holds_what_the_tree_holds(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("voicechat", "web", "configs"):
        for path in (ROOT / folder).rglob("*"):
            inside = path.relative_to(ROOT)
            if path.is_file() and "__pycache__" not in path.parts:
                expected = inside if folder == "voicechat" else Path("voicechat") / inside
                assert str(expected) in names


def test_an_unpacked_wheel_finds_its_page_and_its_models(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = "from voicechat import config; print(config.__file__, config.resource_dir('web'), config.model_names())"
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert f"{tmp_path / 'voicechat' / 'web'} " in result.stdout
    assert "'embedded'" in result.stdout
