"""The shell scripts, with a stand-in for Python and pip: which commands they give, and when they give none."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = [
    ROOT / "scripts" / "environment.sh",
    ROOT / "scripts" / "serve",
    ROOT / "scripts" / "test",
    ROOT / ".ci" / "run",
]

STAND_IN = """#!/usr/bin/env bash
echo "$*" >>"$CALLS"
case "$*" in
    "-m venv "*)
        mkdir -p "$3/bin"
        cp "$0" "$3/bin/python"
        printf '#!/bin/sh\\necho "voicechat $*"\\n' >"$3/bin/voicechat"
        chmod +x "$3/bin/voicechat" ;;
    *tomllib*) echo torch==1.2.3 ;;
    *torch==*) [[ "$*" == *"$TORCH_FROM"* ]] ;;
    *--editable*) [[ ! -e $BREAK ]] ;;
esac
"""


class Tree:
    """A copy of the scripts, and a Python that only notes its arguments."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        (self.root / "scripts").mkdir(parents=True)
        for name in ("scripts/environment.sh", "scripts/serve", "pyproject.toml", "setup.py"):
            shutil.copy(ROOT / name, self.root / name)
        python = folder / "python3"
        python.write_text(STAND_IN)
        python.chmod(0o755)
        self.calls = folder / "calls"
        self.torch_from = "torch==1.2.3+cpu"
        self.breaks = folder / "break"
        self.python = python

    def serve(self, *arguments: str, expect: int = 0) -> str:
        self.calls.write_text("")
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHON": str(self.python),
            "CALLS": str(self.calls),
            "TORCH_FROM": self.torch_from,
            "BREAK": str(self.breaks),
        }
        command = [str(self.root / "scripts" / "serve"), *arguments]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
        assert result.returncode == expect, result.stderr
        return result.stdout

    def installs(self) -> list[str]:
        """Arguments of every `pip install` of the last call."""
        lines = self.calls.read_text().splitlines()
        return [line.split(" install ", 1)[1] for line in lines if "pip install" in line]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_the_scripts_are_valid_and_executable(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert script.suffix == ".sh" or os.access(script, os.X_OK)


def test_the_second_run_installs_nothing_and_arguments_are_passed_on(tree: Tree) -> None:
    assert tree.serve("--model", "embedded-tiny", "--port", "1") == "voicechat serve --model embedded-tiny --port 1\n"
    assert tree.installs()[-1].endswith("[cpu]")
    assert tree.serve("a b") == "voicechat serve a b\n"
    assert tree.calls.read_text() == ""


def test_torch_comes_from_pips_own_sources_where_they_have_the_cpu_build(tree: Tree) -> None:
    tree.serve()
    torch = [line for line in tree.installs() if "torch==" in line]
    assert len(torch) == 1
    assert torch[0].endswith("torch==1.2.3+cpu")
    assert "index" not in torch[0]


def test_else_from_pytorchs_cpu_index_and_never_without_the_cpu_mark(tree: Tree) -> None:
    tree.torch_from = "--extra-index-url"
    tree.serve()
    torch = [line for line in tree.installs() if "torch==" in line]
    assert len(torch) == 2
    assert all(line.endswith("torch==1.2.3+cpu") for line in torch)
    assert "https://download.pytorch.org/whl/cpu" in torch[1]


def test_where_neither_has_it_nothing_else_is_installed(tree: Tree) -> None:
    tree.torch_from = "nowhere"
    tree.serve(expect=1)
    assert not any("--editable" in line for line in tree.installs())


def test_an_interrupted_installation_is_made_anew(tree: Tree) -> None:
    tree.breaks.touch()
    tree.serve(expect=1)
    assert (tree.root / ".venv" / ".installing").exists()
    (tree.root / ".venv" / "half").touch()
    tree.breaks.unlink()
    tree.serve()
    assert not (tree.root / ".venv" / "half").exists()
    assert not (tree.root / ".venv" / ".installing").exists()


def test_a_changed_project_is_installed_again(tree: Tree) -> None:
    tree.serve()
    with (tree.root / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    tree.serve()
    assert tree.installs()


def test_cuda_has_an_environment_of_its_own_and_no_cpu_torch(tree: Tree) -> None:
    tree.serve("--device=cuda")
    assert (tree.root / ".venv-cuda").is_dir()
    assert not (tree.root / ".venv").exists()
    assert tree.installs()[-1].endswith("[cuda]")
    assert not any("torch==" in line for line in tree.installs())
    tree.serve("--device", "tpu", expect=1)
