"""Every name of vLLM's insides that is used is still there, in the vLLM that is installed.

Classes are read, not built: a method or field is there if its class or one above it has it, an attribute of an object
if some method of these assigns it. Nothing else in the package may use a private name of vLLM's.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

import voicechat
from voicechat.stages.vllm.adapter import USED, Used

vllm = pytest.importorskip("vllm")
PACKAGE = Path(voicechat.__file__).parent


def owner_of(used: Used) -> Any:
    """The class or module; fails with a sentence if it is not where it was."""
    module, _, name = used.owner.partition(":")
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        if "triton" in str(error).lower():
            pytest.skip(f"{module} needs Triton")
        pytest.fail(f"vLLM {vllm.__version__} has no module {module} any more; {used.why}")
    if name and not hasattr(found, name):
        pytest.fail(f"vLLM {vllm.__version__} has no {used.owner} any more; {used.why}")
    return getattr(found, name) if name else found


def assigned(kind: type) -> set[str]:
    """Attributes that methods of a class, or of one above it, give its objects."""
    names: set[str] = set()
    for base in kind.__mro__:
        if base.__module__.split(".")[0] != "vllm":
            continue
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(base)))):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and ast.unparse(node.value) == "self"
            ):
                names.add(node.attr)
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
    return names


def has(owner: Any, name: str) -> bool:
    if hasattr(owner, name):
        return True
    if not isinstance(owner, type):
        return False
    if dataclasses.is_dataclass(owner) and name in {field.name for field in dataclasses.fields(owner)}:
        return True
    return name in assigned(owner)


@pytest.mark.parametrize("used", USED, ids=lambda used: f"{used.owner.rpartition('.')[2]}.{used.name}")
def test_what_is_used_is_there(used: Used) -> None:
    owner = owner_of(used)
    assert has(owner, used.name), (
        f"vLLM {vllm.__version__}: {used.owner} has no {used.name} any more; {used.why}. "
        "Look for what took its place and mend voicechat/stages/vllm/adapter.py"
    )


def test_what_is_gone_is_told_in_a_sentence() -> None:
    gone = Used("vllm.v1.core.sched.scheduler:Scheduler", "no_such_thing", "it was of use")
    assert not has(owner_of(gone), "no_such_thing")
    with pytest.raises(pytest.fail.Exception, match="no module vllm.no_such_room any more; it was of use"):
        owner_of(Used("vllm.no_such_room", "x", "it was of use"))


PRIVATE = re.compile(r"(?<!self)(?<!cls)(?<!\))\._(?!_)\w+")


def test_private_names_of_vllm_are_used_in_one_file_alone() -> None:
    """In the other files of ``stages/vllm`` only what is our own begins with an underscore, but for what we
    override."""
    overridden = {used.name for used in USED if used.name.startswith("_")}
    faults = []
    for path in sorted((PACKAGE / "stages" / "vllm").glob("*.py")):
        if path.name == "adapter.py":
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for found in PRIVATE.findall(line.partition("#")[0]):
                if found[1:] not in overridden:
                    faults.append(f"{path.name}:{number}: {found}")
    assert not faults, "\n" + "\n".join(faults)
