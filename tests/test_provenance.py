"""Files looked into: by the function, by the process beside the server, and by the command."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from tests.human_speech import recording
from voicechat import cli
from voicechat.config import load_settings
from voicechat.contract.provenance import CannotCheck, Provenance
from voicechat.contract.sound import PCM_RATE, Pcm
from voicechat.media.encode import encode
from voicechat.media.wav import encode_wav
from voicechat.provenance import Checker, CheckFailed, detect_file
from voicechat.server import file_checker
from voicechat.watermark.embed import Embedder
from voicechat.watermark.keys import Key

KEY, OTHER = Key(bytes(range(32))), Key(bytes(32))
PAYLOAD = 0x2F3A


@pytest.fixture(scope="module")
def person() -> Pcm:
    return recording(16.0)


@pytest.fixture(scope="module")
def marked(person: Pcm) -> Pcm:
    embedder = Embedder(KEY, PAYLOAD)
    return np.concatenate([embedder.push(person[: 8 * PCM_RATE]), embedder.finish()])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, person: Pcm, marked: Pcm) -> Path:
    path = tmp_path_factory.mktemp("files")
    (path / "marked.mp3").write_bytes(encode(marked, "mp3"))
    (path / "person.wav").write_bytes(encode_wav(person[: 8 * PCM_RATE], PCM_RATE))
    (path / "silent.wav").write_bytes(encode_wav(np.zeros(3 * PCM_RATE, np.int16), PCM_RATE))
    (path / "short.wav").write_bytes(encode_wav(person[:5_000], PCM_RATE))
    (path / "text.wav").write_bytes(b"not a sound at all")
    faint = person[: 4 * PCM_RATE] + 0.16 * (marked[: 4 * PCM_RATE].astype(float) - person[: 4 * PCM_RATE])
    (path / "faint.wav").write_bytes(encode_wav(faint.astype(np.int16), PCM_RATE))
    return path


def test_a_marked_file_and_another(folder: Path) -> None:
    found = detect_file(folder / "marked.mp3", [OTHER, KEY])
    assert found.detected and found.duration_s == pytest.approx(8.0, abs=0.2)
    (span,) = found.spans
    assert (span.payload, span.key_id) == (PAYLOAD, KEY.id) and span.p_value < 1e-6
    assert len(found.scores) in (8, 9)
    assert not detect_file(folder / "marked.mp3", [OTHER]).detected
    plain = detect_file(folder / "person.wav", [KEY])
    assert not plain.detected and plain.spans == () and plain.p_value > 1e-6


def test_a_faint_mark_is_found_if_its_payload_is_expected(folder: Path) -> None:
    path = folder / "faint.wav"
    blind, known, wrong = (detect_file(path, [KEY], expected=e) for e in ((), (PAYLOAD,), (PAYLOAD ^ 0x1111,)))
    assert not blind.detected and not wrong.detected
    assert known.detected and known.spans[0].payload in (PAYLOAD, None)
    assert known.p_value == pytest.approx(blind.p_value / 2**15, rel=0.01)  # half of the budget of 65,536 payloads
    assert not detect_file(folder / "person.wav", [KEY], expected=[PAYLOAD]).detected


@pytest.mark.parametrize(
    ("name", "code"), [("silent.wav", "silent"), ("short.wav", "too_short"), ("text.wav", "unreadable")]
)
def test_files_in_which_nothing_can_be_found(folder: Path, name: str, code: str) -> None:
    with pytest.raises(CannotCheck) as caught:
        detect_file(folder / name, [KEY])
    assert caught.value.code == code and str(caught.value).endswith(".")


def write_long(path: Path, pieces: list[Pcm], minutes: float) -> None:
    """The pieces, one after the other, again and again, written as they come."""
    with av.open(str(path), "w") as out:
        stream = out.add_stream("flac", rate=PCM_RATE, layout="mono")
        for pcm in itertools.islice(itertools.cycle(pieces), round(minutes * 60 / (len(pieces[0]) / PCM_RATE))):
            frame = av.AudioFrame.from_ndarray(pcm[None], format="s16", layout="mono")
            frame.sample_rate = PCM_RATE
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))


def look_into(path: Path) -> dict[str, Any]:
    """What a process that looks into one file alone finds, its peak memory in MB, and the CPU seconds that it took."""
    code = f"""
import json, resource
from pathlib import Path
from voicechat.provenance import detect_file
from voicechat.watermark.keys import Key
begun = resource.getrusage(resource.RUSAGE_SELF).ru_utime
found = detect_file(Path({str(path)!r}), [Key.parse({KEY.secret.hex()!r})], expected=[{PAYLOAD}])
used = resource.getrusage(resource.RUSAGE_SELF)
spans = [[span.start_s, span.end_s, span.payload] for span in found.spans]
status = Path("/proc/self/status").read_text()  # ru_maxrss would be that of the process before exec(), the tests' own
peak = int(status.split("VmHWM:")[1].split()[0]) / 1024
print(json.dumps(dict(mb=peak, cpu_s=used.ru_utime - begun, s=found.duration_s, spans=spans)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("minutes", [4, pytest.param(120, marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, person: Pcm, marked: Pcm, minutes: int) -> None:
    """A process's peak for a short file and a long one, marked for 8 s of every 16."""
    peaks = []
    for length in (1, minutes):
        path = tmp_path / f"{length}.flac"
        write_long(path, [marked, person[8 * PCM_RATE : 16 * PCM_RATE]], length)
        found = look_into(path)
        print(f"{length} minutes: {found['mb']:.0f} MB, {found['cpu_s']:.1f} s of CPU")
        assert found["s"] == pytest.approx(60 * length, abs=8.5)
        assert len(found["spans"]) == round(length * 60 / 8 / 2) and {span[2] for span in found["spans"]} == {PAYLOAD}
        peaks.append(found["mb"])
    assert peaks[1] < peaks[0] + 20, peaks


# ---- in a process beside the server


@pytest.fixture
def checker() -> Iterator[Checker]:
    made = Checker([KEY])
    yield made
    made.close()


def pid_of(checker: Checker) -> int:
    assert checker._worker is not None and checker._worker[0].pid is not None
    return checker._worker[0].pid


async def test_a_process_checks_one_file_after_another(folder: Path, marked: Pcm) -> None:
    checker = Checker([KEY], max_s=10)
    (folder / "long.flac").write_bytes(encode(np.tile(marked, 2), "flac"))
    names = ("marked.mp3", "silent.wav", "person.wav", "long.flac")
    checks = [checker.check(folder / name) for name in names]
    results = await asyncio.gather(*checks, return_exceptions=True)
    first, second, third, fourth = results
    assert not isinstance(first, BaseException) and first.mark.spans[0].payload == PAYLOAD
    assert first.credential.state == "not_present"
    assert isinstance(second, CannotCheck) and second.code == "silent"
    assert not isinstance(third, BaseException) and not third.mark.detected
    assert isinstance(fourth, CannotCheck) and fourth.code == "too_large"
    assert os.getpriority(os.PRIO_PROCESS, pid_of(checker)) > os.getpriority(os.PRIO_PROCESS, 0)
    checker.close()


async def test_a_check_that_is_given_up_costs_its_process_alone(checker: Checker, folder: Path, marked: Pcm) -> None:
    await checker.check(folder / "person.wav")
    pid, path = pid_of(checker), folder / "endless.flac"
    path.write_bytes(encode(np.tile(marked, 100), "flac"))
    asking = asyncio.create_task(checker.check(path))
    await asyncio.sleep(0.3)
    asking.cancel()
    await asyncio.wait({asking})
    assert (await checker.check(folder / "marked.mp3")).mark.detected
    assert pid_of(checker) != pid


class Slow(Checker):
    """Whose process is slow to start, until the gate opens."""

    def __init__(self) -> None:
        super().__init__([KEY])
        self.starting, self.gate = threading.Event(), threading.Event()
        self.inside = self.most = 0

    def _ask(self, path: Path, *args: Any) -> Provenance | CannotCheck:
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            return super()._ask(path, *args)
        finally:
            self.inside -= 1

    def _start(self) -> tuple[SpawnProcess, Connection]:
        self.starting.set()
        self.gate.wait(10)  # a test that fails opens none
        return super()._start()


@pytest.fixture
def slow() -> Iterator[Slow]:
    made = Slow()
    yield made
    made.gate.set()
    made.close()


async def test_a_check_that_is_given_up_while_its_process_starts_answers_no_other(slow: Slow, folder: Path) -> None:
    given_up = [asyncio.create_task(slow.check(folder / "marked.mp3"))]
    await asyncio.to_thread(slow.starting.wait)
    for _ in range(2):
        given_up[0].cancel()
        await asyncio.wait(given_up)
    asking = asyncio.create_task(slow.check(folder / "silent.wav"))
    await asyncio.sleep(0.05)
    assert slow.inside == 1, "the next waits for the thread of the one that was given up"
    slow.gate.set()
    with pytest.raises(CannotCheck, match="silence"):
        await asking
    assert slow.most == 1


async def test_closing_ends_a_process_that_is_just_starting(slow: Slow, folder: Path) -> None:
    asking = asyncio.create_task(slow.check(folder / "marked.mp3"))
    await asyncio.to_thread(slow.starting.wait)
    slow.close()
    slow.gate.set()
    with pytest.raises(CheckFailed):
        await asking
    assert slow._worker is None


async def test_a_process_that_dies_fails_its_check_alone(checker: Checker, folder: Path) -> None:
    await checker.check(folder / "person.wav")
    os.kill(pid_of(checker), signal.SIGSTOP)
    asking = asyncio.create_task(checker.check(folder / "marked.mp3"))
    await asyncio.sleep(0.1)
    os.kill(pid_of(checker), signal.SIGKILL)
    with pytest.raises(CheckFailed):
        await asking
    assert (await checker.check(folder / "marked.mp3")).mark.detected


def test_the_process_ends_with_the_server(folder: Path) -> None:
    """Also with one that is killed."""
    code = (
        "import asyncio, os, pathlib, signal, sys\n"
        "from voicechat.provenance import Checker\nfrom voicechat.watermark.keys import Key\n"
        "async def main():\n"
        "    checker = Checker([Key(bytes(range(32)))])\n"
        f"    await checker.check(pathlib.Path({str(folder / 'person.wav')!r}))\n"
        "    print(checker._worker[0].pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "if __name__ == '__main__':\n    asyncio.run(main())\n"
    )
    script = folder / "server.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pid = int(done.stdout)
    deadline = asyncio.run(_gone(pid))
    assert deadline, "the process outlived the server"


async def _gone(pid: int) -> bool:
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        await asyncio.sleep(0.05)
    return False


async def test_a_server_expects_its_own_payload(folder: Path, tmp_path: Path) -> None:
    for payload, detected in ((PAYLOAD, True), (PAYLOAD ^ 0x1111, False)):
        given = (f"data_dir={tmp_path}", f"watermark.key={KEY.secret.hex()}", f"watermark.payload={payload}")
        made = file_checker(load_settings("embedded", overrides=given))
        assert made is not None
        try:
            assert (await made.check(folder / "faint.wav")).mark.detected == detected
        finally:
            made.close()


# ---- the command


def test_the_command(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    key = KEY.secret.hex()
    assert cli.main(["watermark", "detect", str(folder / "marked.mp3"), "--key", key]) == 0
    out = capfd.readouterr().out
    assert "marked.mp3: marked" in out and f"payload {PAYLOAD:04x}" in out and KEY.id in out and key not in out
    assert cli.main(["watermark", "detect", str(folder / "marked.mp3"), "--key", OTHER.secret.hex()]) == 1
    assert "no mark found" in capfd.readouterr().out


def test_the_command_for_machines(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    names = [str(folder / name) for name in ("marked.mp3", "person.wav", "silent.wav", "none.wav")]
    assert cli.main(["watermark", "detect", *names, "--json", "--key", KEY.secret.hex()]) == 3
    marked, person, silent, none = map(json.loads, capfd.readouterr().out.splitlines())
    assert marked["detected"] and marked["spans"][0]["payload"] == PAYLOAD and marked["file"] == names[0]
    assert not person["detected"]
    assert silent["error"]["code"] == "silent" and none["error"]["code"] == "unreadable"


def test_the_command_draws(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "scores.png"
    names = [str(folder / name) for name in ("marked.mp3", "person.wav")]
    assert cli.main(["watermark", "detect", *names, "--plot", str(path), "--key", KEY.secret.hex()]) == 1
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_a_key_there_is_nothing_to_look_by(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    here = ("--set", f"data_dir={tmp_path}")
    assert cli.main(["watermark", "detect", str(folder / "marked.mp3"), *here]) == 2
    assert "there is no watermark key yet" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "watermark.key").write_text(KEY.secret.hex())
    assert cli.main(["watermark", "show", *here]) == 0
    out = capfd.readouterr().out
    assert KEY.id in out and KEY.secret.hex() not in out
    assert cli.main(["watermark", "detect", str(folder / "marked.mp3"), *here]) == 0
    assert cli.main(["watermark", "detect", str(folder / "marked.mp3"), "--key", "abc"]) == 2


def test_the_command_expects_the_payload_of_the_settings(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "watermark.key").write_text(KEY.secret.hex())
    faint, here = str(folder / "faint.wav"), ("--set", f"data_dir={tmp_path}")
    assert cli.main(["watermark", "detect", faint, *here, "--set", f"watermark.payload={PAYLOAD}"]) == 0
    assert cli.main(["watermark", "detect", faint, *here]) == 1
    assert cli.main(["watermark", "detect", faint, "--key", KEY.secret.hex()]) == 1
