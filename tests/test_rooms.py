"""Which room may import which, and that no two files import each other. Read from the code itself, nothing is imported.

What is counted: every import statement of ours, also inside functions, and under ``TYPE_CHECKING`` for the rooms' table
(a type from above is a dependency too). Circles are looked for among the imports that run, at import or in a call;
those for types alone are not among them, for they never run.

``python tests/test_rooms.py`` draws ``docs/rooms.md`` anew.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "voicechat"
PICTURE = ROOT / "docs" / "rooms.md"


@dataclass(frozen=True)
class Room:
    """``line`` says what it is; it may import itself and ``imports``. A room that is no folder has ``files``."""

    line: str
    imports: str = ""
    files: str = ""


ROOMS = {
    "contract": Room(
        "what passes between rooms: sound, requests, events, errors, messages, the pool, what a family is"
    ),
    "reading": Room("text to phonemes"),
    "watermark": Room("marks sound, and finds the mark", "contract"),
    "realtime": Room("sessions, conversations and turns as pure state: no I/O, no clock", "contract"),
    "media": Room("codecs, detectors, playout; aiortc and aioice stop here", "contract"),
    "models": Room("one folder per family, and what families share", "contract reading"),
    "stages": Room("what runs inside each spawned process; vLLM stops in stages/vllm", "contract models watermark"),
    "cascade": Room("the coordinator: responses on their way through the stages, leases, supervision", "contract"),
    "brain": Room("a Thinker elsewhere, over HTTP", "contract"),
    "faces": Room(
        "the doors: chat completions, speech, realtime over WebSocket and WebRTC, health", "contract realtime media"
    ),
    "config": Room(
        "the settings: YAML, environment, flags",
        "contract models watermark",
        "config config_*",
    ),
    "assemble": Room("makes the folders of a model, once, by checksum", "contract models config"),
    "composition": Room(
        "settings and folders in, a running server out",
        "contract models config assemble brain cascade stages faces media realtime watermark",
        "app calls gpus turn_taking marking provenance telemetry server",
    ),
    "train": Room("makes the embedded family's weights", "contract media models config assemble reading stages"),
    "bench": Room(
        "measures a server from outside",
        "contract media models config assemble stages realtime faces composition train watermark",
    ),
    "commands": Room(
        "the command line",
        "contract media models config assemble brain composition bench train faces watermark realtime reading cascade",
        "cli ask doctor doctor_* keys_command watermark_cli __main__ __init__",
    ),
}

OTHERS = {
    "vllm": "stages/vllm/ models/ doctor.py",
    "aiortc": "media/ bench/",
    "aioice": "media/",
    "torch": "stages/ models/ assemble/ train/ bench/ doctor.py",
}
"""Libraries that stop somewhere, and where they may be imported."""


@dataclass(frozen=True)
class Import:
    """``name`` is what was imported, whole; ``runs``: not for types alone."""

    file: Path
    line: int
    name: str
    runs: bool

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} imports {self.name}"


def imports_of(file: Path) -> Iterator[Import]:
    """Every import of a file."""
    types: set[ast.AST] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            types |= {inner for part in node.body for inner in ast.walk(part)}
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, node.lineno, alias.name, node not in types)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: imports are written whole"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                name = whole if module_file(whole) else str(node.module)
                yield Import(file, node.lineno, name, node not in types)


def module_file(name: str) -> Path | None:
    """The file of one of our modules."""
    path = ROOT / Path(*name.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if name.split(".")[0] == "voicechat" and file.is_file():
            return file
    return None


def room_of(file: Path) -> str:
    """The room in which a file lies. Raises KeyError for a file that lies in none."""
    first = file.relative_to(PACKAGE).parts[0]
    if not first.endswith(".py"):
        if first not in ROOMS:
            raise KeyError(f"{first}/ is no room of tests/test_rooms.py: say what it is and what it may import")
        return first
    for name, room in ROOMS.items():
        if any(fnmatch(first.removesuffix(".py"), pattern) for pattern in room.files.split()):
            return name
    raise KeyError(f"{first} belongs to no room of tests/test_rooms.py")


FILES = sorted(PACKAGE.rglob("*.py"))


def ours(file: Path) -> Iterator[tuple[Import, Path]]:
    """Imports of our own modules, with their files."""
    for found in imports_of(file):
        target = module_file(found.name)
        if target is not None and target != PACKAGE / "__init__.py":
            yield found, target


def test_no_room_imports_what_it_may_not() -> None:
    faults = []
    for file in FILES:
        mine = room_of(file)
        allowed = {mine, *ROOMS[mine].imports.split()}
        for found, target in ours(file):
            if room_of(target) not in allowed:
                faults.append(f"{found}: {mine} may not import {room_of(target)}")
    assert not faults, "\n" + "\n".join(faults)


def test_no_room_imports_one_that_imports_it() -> None:
    """The table itself has no circle."""
    left = {name: set(room.imports.split()) for name, room in ROOMS.items()}
    while free := [name for name, needs in left.items() if not needs]:
        for name in free:
            del left[name]
        left = {name: needs - set(free) for name, needs in left.items()}
    assert not left, f"these rooms import each other: {', '.join(left)}"


def test_libraries_stop_where_they_should() -> None:
    faults = []
    for file in FILES:
        where = file.relative_to(PACKAGE).as_posix()
        for found in imports_of(file):
            places = OTHERS.get(found.name.split(".")[0])
            if places is not None and found.runs and not where.startswith(tuple(places.split())):
                faults.append(f"{found}: only {places} may")
    assert not faults, "\n" + "\n".join(faults)


def families() -> list[str]:
    return sorted(path.parent.name for path in (PACKAGE / "models").glob("*/family.py"))


def test_a_family_is_known_by_its_interface_alone() -> None:
    """Nobody imports from a family's folder but itself, and what trains it."""
    faults = []
    for file in FILES:
        for found, target in ours(file):
            for family in families():
                folder = PACKAGE / "models" / family
                if target.is_relative_to(folder) and not file.is_relative_to(folder) and room_of(file) != "train":
                    faults.append(f"{found}: it is the {family} family's own")
    assert not faults, "\n" + "\n".join(faults)


def circles() -> list[list[str]]:
    """Groups of files that import each other, by imports that run: strongly connected ones (Tarjan)."""
    graph = {file: sorted({target for found, target in ours(file) if found.runs} - {file}) for file in FILES}
    numbers: dict[Path, int] = {}
    lowest: dict[Path, int] = {}
    stack: list[Path] = []
    groups: list[list[str]] = []

    def visit(file: Path) -> None:
        numbers[file] = lowest[file] = len(numbers)
        stack.append(file)
        for target in graph[file]:
            if target not in numbers:
                visit(target)
                lowest[file] = min(lowest[file], lowest[target])
            elif target in stack:
                lowest[file] = min(lowest[file], numbers[target])
        if lowest[file] == numbers[file]:
            at = stack.index(file)
            group = stack[at:]
            del stack[at:]
            if len(group) > 1:
                groups.append([path.relative_to(ROOT).as_posix() for path in group])

    for file in FILES:
        if file not in numbers:
            visit(file)
    return groups


def test_no_files_import_each_other() -> None:
    found = circles()
    assert not found, "\n" + "\n".join(" <-> ".join(group) for group in found)


def picture() -> str:
    """The rooms and who imports whom, as ``docs/rooms.md`` shows them: only what is imported in fact."""
    used: dict[str, set[str]] = {name: set() for name in ROOMS}
    for file in FILES:
        used[room_of(file)] |= {room_of(target) for _, target in ours(file)} - {room_of(file)}
    beneath: dict[str, set[str]] = {}

    def all_beneath(name: str) -> set[str]:
        if name not in beneath:
            beneath[name] = used[name].union(*(all_beneath(other) for other in used[name]))
        return beneath[name]

    arrows = []
    for name in ROOMS:
        indirect = set().union(*(all_beneath(other) for other in used[name])) if used[name] else set()
        arrows += [f"    {name} --> {other}" for other in sorted(used[name] - indirect)]
    rows = []
    for name, room in ROOMS.items():
        place = f"`voicechat/{name}/`" if not room.files else f"`{'.py`, `'.join(sorted(files_of(name)))}.py`"
        rows.append(f"| **{name}** | {place} | {room.line} | {', '.join(sorted(used[name])) or 'nothing'} |")
    return "\n".join(
        [
            "# The rooms of the package",
            "",
            "Drawn from the code by `python tests/test_rooms.py`; a test keeps it up to date. Imports point downwards",
            "only, and no two files import each other. An arrow that another road already tells of is left out.",
            "",
            "```mermaid",
            "flowchart TD",
            *arrows,
            "```",
            "",
            "| room | where | what it is | imports |",
            "|---|---|---|---|",
            *rows,
            "",
            "Libraries that stop somewhere: "
            + "; ".join(f"`{name}` in {places}" for name, places in OTHERS.items())
            + ".",
            "",
            "How to add a family of models: [families.md](families.md).",
            "",
        ]
    )


def files_of(name: str) -> list[str]:
    return [file.stem for file in FILES if file.parent == PACKAGE and room_of(file) == name and file.stem != "__init__"]


def test_the_picture_is_up_to_date() -> None:
    if not PICTURE.is_file() or PICTURE.read_text(encoding="utf-8") != picture():
        pytest.fail("docs/rooms.md is not what the code says; draw it anew: python tests/test_rooms.py")


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture(), encoding="utf-8")
    sys.exit(0)
