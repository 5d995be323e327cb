"""What scripts/gpu packs and how its smoke run keeps what each step found; nothing here needs a GPU."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import struct
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "scripts" / "gpu"
MAGIC = b"\x50\xed\x55\xba"
PTX, CUBIN = 1, 2


def script(name: str) -> ModuleType:
    loader = importlib.machinery.SourceFileLoader(f"gpu_{name}", str(FOLDER / name))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def container(*entries: tuple[int, int, bytes]) -> bytes:
    """A fatbin container of (kind, arch, payload)."""
    body = b""
    for kind, arch, payload in entries:
        head = struct.pack("<HHI", kind, 1, 64) + struct.pack("<Q", len(payload))
        head = head.ljust(28, b"\0") + struct.pack("<I", arch)
        body += head.ljust(64, b"\0") + payload
    return MAGIC + struct.pack("<HHQ", 1, 16, len(body)) + body


def test_only_what_the_gpu_runs_is_kept() -> None:
    wheels = script("wheels")
    native = container((CUBIN, 80, b"a" * 40), (CUBIN, 90, b"b" * 24), (PTX, 90, b"c" * 8))
    foreign = container((CUBIN, 80, b"d" * 16), (PTX, 75, b"e" * 8), (PTX, 80, b"f" * 8), (PTX, 100, b"g" * 8))
    blob = b"ELF" + native + b"between" + foreign + b"end"
    pruned = wheels.prune(bytearray(blob))
    assert len(pruned) == len(blob)
    assert b"b" * 24 in pruned and b"f" * 8 in pruned
    for gone in (b"a" * 4, b"c" * 4, b"d" * 4, b"eeee", b"gggg"):
        assert gone not in pruned
    assert pruned.startswith(b"ELF") and b"between" in pruned and pruned.endswith(b"end")


def test_a_wheel_is_unpacked_without_what_is_not_needed(tmp_path: Path) -> None:
    wheels = script("wheels")
    wheel = tmp_path / "vllm-1-py3-none-any.whl"
    kept = (
        "vllm/a.py",
        "vllm/_C_stable_libtorch.abi3.so",
        "vllm/_moe_C_stable_libtorch.abi3.so",
        "vllm/third_party/x/__init__.py",
        "vllm-1.dist-info/METADATA",
    )
    gone = (
        "vllm/vllm-rs",
        "vllm/third_party/x/big.hpp",
        "vllm-1.data/scripts/vllm",
    )
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in (*kept, *gone, "vllm-1.data/purelib/vllm/b.py"):
            archive.writestr(name, "x")
    wheels.unpack(wheel, tmp_path / "tree")
    found = {str(path.relative_to(tmp_path / "tree")) for path in (tmp_path / "tree").rglob("*") if path.is_file()}
    assert found == {*kept, "vllm/b.py"}


def test_parts_put_together_are_the_whole(tmp_path: Path) -> None:
    wheels = script("wheels")
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file").write_bytes(bytes(range(256)) * 100)
    (folder / "link").symlink_to(folder / "deep" / "file")
    parts = wheels.cut(wheels.packed(wheels.whole(folder, tmp_path / "site.tar"), 0), 100)
    assert list(parts) == [f"site.{number:02}" for number in range(len(parts))]
    assert all((tmp_path / name).stat().st_size == facts["bytes"] <= 100 for name, facts in parts.items())
    joined = tmp_path / "joined.tar.xz"
    joined.write_bytes(b"".join((tmp_path / name).read_bytes() for name in parts))
    with tarfile.open(joined) as archive:
        assert sorted(archive.getnames()) == ["deep/file", "link"]
        file = archive.extractfile("link")
        assert file is not None and file.read() == bytes(range(256)) * 100


def test_packages_have_fixed_versions() -> None:
    assert all(line.count("==") == 1 for line in script("wheels").requirements())


def test_a_step_that_fails_or_hangs_loses_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smoke = script("smoke")
    plan = {
        "good": (30, [[sys.executable, "-c", "print('noise'); print('{\"answer\": 42}')"]]),
        "bad": (30, [[sys.executable, "-c", "import sys; print('why'); sys.exit(3)"]]),
        "hung": (6, [[sys.executable, "-c", "import time; time.sleep(60)"]]),
        "last": (30, [[sys.executable, "-c", "print('words')"]]),
    }
    monkeypatch.setattr(smoke, "steps", lambda options: plan)
    monkeypatch.setattr(sys, "argv", ["smoke", "--site", "x", "--home", str(tmp_path), "--out", str(tmp_path / "out")])
    assert smoke.main() == 1
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [results[name]["outcome"] for name in plan] == [
        "passed",
        "failed with exit code 3",
        "ran out of time",
        "passed",
    ]
    assert results["good"]["found"] == [{"answer": 42}]
    assert "why" in results["bad"]["found"][0]["end"]
    assert results["last"]["found"] == ["words\n"]
    assert "===== hung" in (tmp_path / "out" / "smoke.log").read_text()


def test_every_step_names_what_is_there() -> None:
    import argparse

    smoke = script("smoke")
    options = argparse.Namespace(work="/w", home="/h", concurrency="1", site="/s", out="/o")
    for _, commands in smoke.steps(options).values():
        for command in commands:
            for word in command:
                if word.startswith("tests/") or "/scripts/gpu/" in word:
                    assert (FOLDER.parent.parent / word).is_file(), word
    assert smoke.__doc__ is not None
    assert all(f"\n    {name} " in smoke.__doc__ for name in smoke.steps(options))
