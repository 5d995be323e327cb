"""Files of sound as nobody should send them: cut, spoilt, spliced, called what they are not, and small ones that hold
hours. Each is heard or refused with a clear error, within bounds."""

from __future__ import annotations

import asyncio
import base64
import functools
import io
import math
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import av
import numpy as np
import pytest
from aiohttp import web
from hypothesis import strategies as st

from tests.faces.conftest import FakeCascade
from tests.fuzzing import fuzz
from voicechat.contract.provenance import CannotCheck
from voicechat.faces.app import FaceSettings, create_app
from voicechat.media.decode import EARS_RATE, AudioError, AudioTooLong, decode_audio
from voicechat.media.sound_file import read_sound

KINDS = {
    "wav": ("wav", "pcm_s16le"), "mp3": ("mp3", "libmp3lame"), "flac": ("flac", "flac"), "ogg": ("ogg", "libopus"),
    "webm": ("webm", "libopus"), "m4a": ("mp4", "aac"),
}  # fmt: skip
MAX_S = 20.0


@functools.cache
def sound_file(kind: str, seconds: float = 0.5, rate: int = 48_000, *, silent: bool = False) -> bytes:
    """A file of one tone, or of silence, as FFmpeg writes it."""
    muxer, codec = KINDS[kind]
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=muxer) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.codec_context.layout = "mono"
        step = rate  # a second at a time
        for start in range(0, math.ceil(seconds * rate), step):
            t = np.arange(start, min(start + step, round(seconds * rate))) / rate
            samples = np.zeros(len(t)) if silent else np.sin(2 * np.pi * 440 * t) * 8000
            frame = av.AudioFrame.from_ndarray(samples.astype(np.int16)[None], format="s16", layout="mono")
            frame.sample_rate, frame.pts = rate, start
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return buffer.getvalue()


@st.composite
def spoilt(draw: st.DrawFn) -> tuple[bytes, str]:
    """A file, and what it is said to be."""
    data = bytearray(sound_file(draw(st.sampled_from(sorted(KINDS)))))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, min(len(data), draw(st.sampled_from([64, 512, 1 << 20])))))
        match draw(st.sampled_from(["cut", "set", "put", "drop", "splice", "size"])):
            case "cut":
                del data[place:]
            case "set":
                data[place : place + 8] = draw(st.binary(max_size=8))
            case "put":
                data[place:place] = draw(st.binary(max_size=64))
            case "drop":
                del data[place : place + draw(st.integers(1, 64))]
            case "splice":
                data[place:] = sound_file(draw(st.sampled_from(sorted(KINDS))))[place // 2 :]
            case "size":
                data[place : place + 4] = draw(st.sampled_from([b"\xff" * 4, b"\x7f\xff\xff\xff", bytes(4)]))
    return bytes(data), draw(st.sampled_from(("wav", "mp3", "flac", "ogg")))


def _clear(error: Exception) -> None:
    """A refusal says why."""
    assert len(str(error)) > 10


@pytest.fixture
def doors(tmp_path: Path) -> Callable[[bytes, str], None]:
    """Tries a file at every door; each answer must be one of those that the door may give."""
    path = tmp_path / "file"

    def chat(data: bytes, said: str) -> None:
        for kind in (said, None):
            try:
                heard = decode_audio(data, kind, max_seconds=MAX_S)
            except AudioError as error:
                _clear(error)
            else:
                assert 0 < heard.size <= MAX_S * EARS_RATE
                assert np.isfinite(heard).all() and np.abs(heard).max() <= 1

    def check(data: bytes) -> None:
        path.write_bytes(data)
        try:
            samples = sum(len(piece) for piece in read_sound(path, foreign=True, rate=EARS_RATE, max_s=MAX_S))
        except CannotCheck as error:
            _clear(error)
        else:
            assert samples <= (MAX_S + 1) * EARS_RATE

    def both(data: bytes, said: str) -> None:
        chat(data, said)
        check(data)

    return both


def test_spoilt_files_are_heard_or_refused(doors: Callable[[bytes, str], None], pytestconfig: pytest.Config) -> None:
    tried = fuzz(pytestconfig, lambda sent: doors(*sent), spoilt(), 150)
    print(f"{tried} files")
    assert tried >= 150


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_files_that_are_spoilt_are_good_ones(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(sound_file(kind))
    assert sum(map(len, read_sound(path, foreign=True, rate=EARS_RATE))) == pytest.approx(EARS_RATE / 2, rel=0.15)
    if kind in ("wav", "mp3", "flac", "ogg"):
        assert decode_audio(sound_file(kind), kind).size == pytest.approx(EARS_RATE / 2, rel=0.15)


@pytest.mark.parametrize("kind", ["flac", "ogg", "webm", "m4a", "mp3"])
def test_a_small_file_that_holds_much_is_refused_before_it_is_all_decoded(kind: str, tmp_path: Path) -> None:
    """An hour; ten minutes where the encoder is slow. No more of it is ever in memory than may be heard."""
    seconds = 3600 if kind == "flac" else 600
    data = sound_file(kind, seconds, 8_000 if kind == "flac" else 48_000 if kind != "mp3" else 8_000, silent=True)
    whole = seconds * EARS_RATE * 4
    assert len(data) < whole / 8
    path = tmp_path / "bomb"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        if kind in ("flac", "ogg", "mp3"):
            with pytest.raises(AudioTooLong):
                decode_audio(data, kind, max_seconds=MAX_S)
        with pytest.raises(CannotCheck, match="too long"):
            for _ in read_sound(path, foreign=True, max_s=MAX_S):
                pass
        assert tracemalloc.get_traced_memory()[1] < 30 * MAX_S * EARS_RATE
    finally:
        tracemalloc.stop()


async def _post(http: aiohttp.ClientSession, url: str, data: bytes, said: str) -> int:
    part = {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": said}}
    body = {"model": "fake-voice", "messages": [{"role": "user", "content": [part]}]}
    async with http.post(f"{url}/v1/chat/completions", json=body) as reply:
        if reply.status != 200:
            assert (await reply.json())["error"]["code"] in ("invalid_audio", "invalid_value"), await reply.text()
        return reply.status


async def _serving(check: Callable[[aiohttp.ClientSession, str], Awaitable[None]]) -> None:
    runner = web.AppRunner(create_app(FakeCascade(), FaceSettings(max_audio_seconds=MAX_S)))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as http:
        await check(http, f"http://127.0.0.1:{runner.addresses[0][1]}")
    await runner.cleanup()


async def test_over_http_each_is_answered(pytestconfig: pytest.Config) -> None:
    statuses: set[int] = set()

    async def check(http: aiohttp.ClientSession, url: str) -> None:
        loop = asyncio.get_running_loop()

        def one(sent: tuple[bytes, str]) -> None:
            statuses.add(asyncio.run_coroutine_threadsafe(_post(http, url, *sent), loop).result(60))

        await asyncio.to_thread(fuzz, pytestconfig, one, spoilt(), 60)

    await _serving(check)
    assert statuses == {200, 400}
