"""Any file's sound, in pieces: right in length and pitch, damaged and foreign files refused, memory bounded."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import av
import numpy as np
import pytest

from voicechat.contract.provenance import CannotCheck
from voicechat.media.encode import FORMATS, encode
from voicechat.media.sound_file import read_sound

RATE = 24_000


def tone(seconds: float, hertz: float = 440.0, rate: int = RATE) -> np.ndarray:
    return np.rint(9_000 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype(np.int16)


def pitch(pcm: np.ndarray) -> float:
    return float(np.argmax(np.abs(np.fft.rfft(pcm * np.hanning(len(pcm))))) * RATE / len(pcm))


def read(path: Path, *, foreign: bool = True) -> np.ndarray:
    return np.concatenate(list(read_sound(path, foreign=foreign)))


def video(path: Path, seconds: float, *, sound: bool = True, container: str = "matroska") -> None:
    with av.open(str(path), "w", format=container) as file:
        moving = file.add_stream("mpeg4", rate=5)
        moving.width, moving.height, moving.pix_fmt = 32, 32, "yuv420p"
        spoken = file.add_stream("aac", rate=48_000, layout="stereo") if sound else None
        for index in range(int(5 * seconds)):
            frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), index % 255, np.uint8), "rgb24")
            file.mux(moving.encode(frame))
        file.mux(moving.encode(None))
        if spoken is not None:
            both = np.repeat(tone(seconds, rate=48_000).astype(np.float32)[None] / 32768, 2, axis=0)
            for start in range(0, both.shape[1], 1024):
                piece = av.AudioFrame.from_ndarray(
                    np.ascontiguousarray(both[:, start : start + 1024]), "fltp", "stereo"
                )
                piece.sample_rate, piece.pts = 48_000, start
                file.mux(spoken.encode(piece))
            file.mux(spoken.encode(None))


def test_no_more_is_decoded_than_may_be(tmp_path: Path) -> None:
    """Silence is next to nothing in FLAC: what counts is how long it lasts, not its bytes."""
    path = tmp_path / "long.flac"
    path.write_bytes(encode(np.zeros(60 * RATE, np.int16), "flac"))
    assert path.stat().st_size < 60_000
    assert sum(map(len, read_sound(path, foreign=True, max_s=61))) == 60 * RATE
    pieces = []
    with pytest.raises(CannotCheck, match="at most 0.5 minutes") as caught:
        for pcm in read_sound(path, foreign=True, max_s=30):
            pieces.append(len(pcm))
    assert caught.value.code == "too_large" and sum(pieces) <= 30 * RATE


@pytest.mark.parametrize("fmt", [fmt for fmt in FORMATS if fmt != "pcm16"])
def test_every_format_that_the_server_sends(tmp_path: Path, fmt: str) -> None:
    path = tmp_path / "sound"
    path.write_bytes(encode(tone(2.0), fmt))
    pcm = read(path)
    assert pcm.dtype == np.int16 and len(pcm) / RATE == pytest.approx(2.0, abs=0.13)
    assert pitch(pcm) == pytest.approx(440, abs=2)


@pytest.mark.parametrize("container", ["matroska", "mp4", "webm"])
def test_the_sound_of_a_video(tmp_path: Path, container: str) -> None:
    path = tmp_path / "video"
    if container == "webm":
        with av.open(str(path), "w", format="webm") as file:
            stream = file.add_stream("libopus", rate=48_000, layout="mono")
            frame = av.AudioFrame.from_ndarray(tone(1.5, rate=48_000)[None], "s16", "mono")
            frame.sample_rate = 48_000
            file.mux(stream.encode(frame))
            file.mux(stream.encode(None))
    else:
        video(path, 1.5, container=container)
    pcm = read(path)
    assert len(pcm) / RATE == pytest.approx(1.5, abs=0.1)
    assert pitch(pcm[2_000:-2_000]) == pytest.approx(440, abs=2)


def test_a_video_without_sound(tmp_path: Path) -> None:
    path = tmp_path / "silent.mkv"
    video(path, 1.0, sound=False)
    with pytest.raises(CannotCheck) as caught:
        read(path)
    assert caught.value.code == "no_audio"


@pytest.mark.parametrize("data", [b"", b"not a sound", bytes(5_000), encode(tone(1), "wav")[:20]])
def test_what_is_no_sound(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(CannotCheck) as caught:
        read(path)
    assert caught.value.code in ("unreadable", "no_audio")


@pytest.mark.parametrize("fmt", ["mp3", "aac", "opus"])
def test_a_damaged_file(tmp_path: Path, fmt: str) -> None:
    path, data = tmp_path / "damaged", bytearray(encode(tone(4), fmt))
    rng = np.random.default_rng(0)
    for place in rng.integers(200, len(data), len(data) // 20):
        data[place] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(CannotCheck) as caught:
        read(path)
    assert caught.value.code == "unreadable"


@pytest.mark.parametrize(
    "text", ["#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{}\n#EXT-X-ENDLIST\n", "ffconcat version 1.0\nfile '{}'\n"]
)
def test_a_strangers_file_opens_no_other(tmp_path: Path, text: str) -> None:
    """A playlist would have the server read a file of its own, or go to an address."""
    secret, path = tmp_path / "secret.wav", tmp_path / "playlist"
    secret.write_bytes(encode(tone(1), "wav"))
    path.write_text(text.format(secret))
    with pytest.raises(CannotCheck) as caught:
        read(path)
    assert caught.value.code == "unreadable"


def test_pieces_are_small_however_long_the_file(tmp_path: Path) -> None:
    path = tmp_path / "long.flac"
    path.write_bytes(encode(tone(300, rate=RATE), "flac"))
    sizes = [len(piece) for piece in read_sound(path, foreign=True)]
    assert sum(sizes) == pytest.approx(300 * RATE, abs=100) and max(sizes) < 20_000


def test_the_rate_may_change_on_the_way(tmp_path: Path) -> None:
    """MP3 files are joined by joining their bytes."""
    parts = []
    for rate in (24_000, 48_000):
        sink = io.BytesIO()
        with av.open(sink, "w", format="mp3") as file:
            stream = file.add_stream("libmp3lame", rate=rate, layout="mono")
            stream.bit_rate = 64_000
            sound = tone(1.0, rate=rate).astype(np.float32) / 32768
            frame = av.AudioFrame.from_ndarray(sound[None], "fltp", "mono")
            frame.sample_rate = rate
            for packet in itertools.chain(stream.encode(frame), stream.encode(None)):
                file.mux(packet)
        parts.append(sink.getvalue())
    path = tmp_path / "joined.mp3"
    path.write_bytes(b"".join(parts))
    pcm = read(path)
    assert len(pcm) / RATE == pytest.approx(2.0, abs=0.25)
    assert pitch(pcm[4_000:20_000]) == pytest.approx(440, abs=4)
    assert pitch(pcm[-16_000:-4_000]) == pytest.approx(440, abs=4)
