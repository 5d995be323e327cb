"""What is imported is declared; what is declared is locked by checksum, without the address of a package source."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
LOCKS = {"cpu.txt": ("cpu",), "cpu-dev.txt": ("cpu", "dev"), "cuda.txt": ("cuda",)}
BY_THE_ENGINE = {"compressed-tensors", "huggingface-hub", "torchvision", "vllm", "xgrammar"}
"""Imported where vLLM is there anyway, in the release that vLLM itself asks for."""
BY_HAND = {"resemblyzer"}
"""Installed by hand and without its dependencies (docs/benchmarks.md): it would bring another webrtcvad."""


def declared(*extras: str) -> Iterator[Requirement]:
    """Requirements of the project and of some extras, those that name other extras of the project included."""
    lines = list(PROJECT["dependencies"]) if extras else []
    for name in extras:
        lines += EXTRAS[name]
    for line in lines:
        requirement = Requirement(line)
        if requirement.name == PROJECT["name"]:
            for name in requirement.extras:
                yield from (Requirement(inner) for inner in EXTRAS[name])
        else:
            yield requirement


def imported(folder: Path) -> dict[str, Path]:
    """Names of modules at the top that are imported in a folder, each with a file that does."""
    found: dict[str, Path] = {}
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            else:
                continue
            found |= {name.partition(".")[0]: path for name in names}
    return found


def test_whatever_is_imported_is_declared() -> None:
    names = {canonicalize_name(requirement.name) for requirement in declared(*EXTRAS)} | BY_THE_ENGINE | BY_HAND
    carriers = packages_distributions()
    missing = []
    for module, path in imported(ROOT / "voicechat").items():
        if module in sys.stdlib_module_names or module == "voicechat":
            continue
        candidates = {canonicalize_name(name) for name in carriers.get(module, [module])}
        if not candidates & names:
            missing.append(f"{path.relative_to(ROOT)} imports {module} of {', '.join(sorted(candidates))}")
    assert not missing, "pyproject.toml does not declare it:\n" + "\n".join(missing)


def pins(lock: str) -> dict[str, list[str]]:
    """Releases of a lock by the name of the package: some have another one for other Pythons."""
    found: dict[str, list[str]] = {}
    for name, release in re.findall(r"^([a-z0-9-]+)==([^ \\]+)", (ROOT / "requirements" / lock).read_text(), re.M):
        found.setdefault(name, []).append(release)
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_whatever_is_declared_is_locked(lock: str) -> None:
    elsewhere = {"torch"} if lock.startswith("cpu") else set()
    locked = pins(lock)
    for requirement in declared(*LOCKS[lock]):
        name = canonicalize_name(requirement.name)
        if name in elsewhere:
            continue
        assert name in locked, f"{name} is not in requirements/{lock}: run scripts/lock"
        for release in locked[name]:
            assert requirement.specifier.contains(release), f"{requirement} is not {release}: run scripts/lock"


def test_both_commands_run_the_same_releases() -> None:
    of_tests = pins("cpu-dev.txt")
    for name, releases in pins("cpu.txt").items():
        assert of_tests[name] == releases, name


def test_the_cpu_build_of_torch_is_the_release_that_is_declared() -> None:
    (torch,) = [requirement for requirement in declared("cpu") if requirement.name == "torch"]
    (release,) = pins("torch-cpu.txt")["torch"]
    assert release.endswith("+cpu")
    assert torch.specifier.contains(release.removesuffix("+cpu"))


@pytest.mark.parametrize("lock", [*LOCKS, "torch-cpu.txt"])
def test_every_pin_has_a_checksum_and_no_source_is_named(lock: str) -> None:
    text = (ROOT / "requirements" / lock).read_text()
    entries = re.split(r"^(?=[a-z0-9])", re.sub(r"^#.*\n", "", text, flags=re.M), flags=re.M)
    for entry in filter(str.strip, entries):
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry), entry
    assert "://" not in text
    assert "--index" not in text
    assert "--find-links" not in text
