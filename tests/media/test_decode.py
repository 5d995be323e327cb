"""Sound files from outside: what is good is heard at the right level, everything else is refused clearly."""

from __future__ import annotations

import io
import struct

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voicechat.media.decode import EARS_RATE, AudioError, AudioTooLong, decode_audio, sniff
from voicechat.media.encode import encode
from voicechat.media.wav import encode_wav


def sine(hertz: float, rate: int, seconds: float, level: float = 0.5) -> np.ndarray:
    return level * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)


def int16(sound: np.ndarray) -> np.ndarray:
    return np.rint(sound * 32767).astype(np.int16)


def rms(sound: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(sound, dtype=np.float64))))


def file_of(
    sound: np.ndarray, rate: int, muxer: str, codec: str, fmt: str, layout: str = "mono", scale: float = 1.0
) -> bytes:
    """``sound`` ``[channels, n]`` encoded by FFmpeg, in whatever way a stranger might."""
    sink = io.BytesIO()
    with av.open(sink, "w", format=muxer) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.layout = layout
        stream.format = fmt
        resampler = av.AudioResampler(fmt, layout, rate, frame_size=1_024)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(sound, np.float32), "fltp", layout)
        frame.sample_rate = rate
        for out in [*resampler.resample(frame), *resampler.resample(None)]:
            container.mux(stream.encode(out))
        container.mux(stream.encode(None))
    return sink.getvalue()


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 24_000, 44_100, 48_000, 96_000])
def test_wav_of_any_rate_has_the_right_level_and_length(rate: int) -> None:
    sound = decode_audio(encode_wav(int16(sine(440, rate, 1.0)), rate), "wav")
    assert sound.dtype == np.float32
    assert sound.ndim == 1
    assert sound.size == EARS_RATE
    expected = sine(440, EARS_RATE, 1.0)
    assert np.abs(sound - expected)[800:-800].max() < 1e-3


@pytest.mark.parametrize(
    ("codec", "fmt", "tolerance"),
    [
        ("pcm_u8", "u8", 0.01),
        ("pcm_s16le", "s16", 1e-3),
        ("pcm_s24le", "s32", 1e-3),
        ("pcm_s32le", "s32", 1e-3),
        ("pcm_f32le", "flt", 1e-3),
        ("pcm_f64le", "dbl", 1e-3),
        ("pcm_alaw", "s16", 0.03),
        ("pcm_mulaw", "s16", 0.03),
    ],
)
@pytest.mark.parametrize("layout", ["mono", "stereo"])
def test_wav_of_any_sample_format(codec: str, fmt: str, tolerance: float, layout: str) -> None:
    mono = sine(440, 48_000, 0.5)
    data = file_of(np.stack([mono] * (2 if layout == "stereo" else 1)), 48_000, "wav", codec, fmt, layout)
    sound = decode_audio(data, "wav")
    assert sound.size == 8_000
    assert np.abs(sound - sine(440, EARS_RATE, 0.5))[400:-400].max() < tolerance


@pytest.mark.parametrize(
    ("kind", "muxer", "codec", "fmt"),
    [
        ("mp3", "mp3", "libmp3lame", "fltp"),
        ("flac", "flac", "flac", "s16"),
        ("ogg", "ogg", "libopus", "flt"),
        ("wav", "wav", "pcm_f32le", "flt"),
    ],
)
def test_stereo_is_the_mean_of_both_sides(kind: str, muxer: str, codec: str, fmt: str) -> None:
    left = sine(440, 48_000, 1.0, 0.8)
    both = decode_audio(file_of(np.stack([left, left]), 48_000, muxer, codec, fmt, "stereo"), kind)
    one = decode_audio(file_of(np.stack([left, 0 * left]), 48_000, muxer, codec, fmt, "stereo"), kind)
    assert rms(both[2_000:-2_000]) == pytest.approx(0.8 / np.sqrt(2), rel=0.06)
    assert rms(one[2_000:-2_000]) == pytest.approx(0.4 / np.sqrt(2), rel=0.06)


@pytest.mark.parametrize(("name", "kind"), [("wav", "wav"), ("mp3", "mp3"), ("flac", "flac"), ("opus", "ogg")])
@settings(max_examples=15, deadline=None)
@given(seconds=st.floats(0.3, 2.0), hertz=st.floats(200, 3_000), level=st.floats(0.1, 0.9))
def test_decoding_undoes_encoding(name: str, kind: str, seconds: float, hertz: float, level: float) -> None:
    if name == "opus":
        hertz = 200 + hertz / 5  # pure tones at some band edges come back from Opus with another phase and level
    pcm = int16(sine(hertz, 24_000, seconds, level))
    data = encode(pcm, name)
    assert sniff(data) == kind
    sound = decode_audio(data, kind)
    np.testing.assert_array_equal(sound, decode_audio(data))
    assert abs(sound.size - pcm.size * 2 / 3) <= (400 if name == "mp3" else 1)
    expected = sine(hertz, EARS_RATE, sound.size / EARS_RATE + 1, level)[: sound.size]
    middle = slice(sound.size // 4, -sound.size // 4)
    assert rms(sound[middle]) == pytest.approx(rms(expected[middle]), rel=0.12 if name == "opus" else 0.02)
    correlations = [np.corrcoef(np.roll(sound, shift)[middle], expected[middle])[0, 1] for shift in (-1, 0, 1)]
    assert max(correlations) > 0.97  # same pitch, and at the same time to within 63 microseconds


def test_mp3_after_a_tag_and_with_a_cut_end() -> None:
    plain = encode(int16(sine(440, 24_000, 2.0)), "mp3")
    assert plain[:3] == b"ID3"
    tag = b"ID3\x04\x00\x00" + bytes([0, 0, 0x10, 0]) + bytes(2_048)
    assert decode_audio(tag + plain, "mp3").size == pytest.approx(32_000, abs=1)
    assert decode_audio(plain[: len(plain) * 2 // 3], "mp3").size > 16_000


@pytest.mark.parametrize("data", [b"", b"\0", b"RIFF", b"hello, this is not a sound at all", bytes(5_000)])
@pytest.mark.parametrize("fmt", ["wav", "mp3", None])
def test_what_is_no_sound_is_refused(data: bytes, fmt: str | None) -> None:
    with pytest.raises(AudioError):
        decode_audio(data, fmt)


@settings(max_examples=80, deadline=None)
@given(
    data=st.binary(max_size=4_000), head=st.sampled_from([b"", b"RIFF\x24\0\0\0WAVE", b"ID3\x04\0\0\0\0\0\0", b"fLaC"])
)
def test_rubbish_never_does_anything_but_an_audio_error(data: bytes, head: bytes) -> None:
    for fmt in ("wav", "mp3", "flac", "ogg", None):
        try:
            sound = decode_audio(head + data, fmt)
        except AudioError:
            continue
        assert sound.size > 0
        assert np.isfinite(sound).all()


@settings(max_examples=80, deadline=None)
@given(name=st.sampled_from(["wav", "mp3", "flac", "opus"]), seed=st.integers(0, 1 << 30), cut=st.floats(0.0, 1.0))
def test_damaged_files_are_heard_or_refused(name: str, seed: int, cut: float) -> None:
    rng = np.random.default_rng(seed)
    data = bytearray(encode(int16(sine(440, 24_000, 0.5)), name))
    for place in rng.integers(0, len(data), 5):
        data[place] = rng.integers(0, 256)
    try:
        sound = decode_audio(bytes(data[: int(len(data) * cut)]))
    except AudioError:
        return
    assert np.abs(sound).max() <= 1.0


def test_mostly_broken_mp3_is_refused() -> None:
    data = bytearray(encode(int16(sine(440, 24_000, 2.0)), "mp3"))
    rng = np.random.default_rng(1)
    data[2_000:] = rng.integers(0, 256, len(data) - 2_000, dtype=np.uint8).tobytes()
    with pytest.raises(AudioError, match="damaged"):
        decode_audio(bytes(data), "mp3")


@pytest.mark.parametrize(("name", "said"), [("wav", "mp3"), ("mp3", "wav"), ("flac", "wav"), ("opus", "mp3")])
def test_the_wrong_label_is_named(name: str, said: str) -> None:
    with pytest.raises(AudioError, match=f"not a valid {said} file .it looks like"):
        decode_audio(encode(int16(sine(440, 24_000, 0.5)), name), said)


def test_a_wav_without_samples_is_refused() -> None:
    with pytest.raises(AudioError):
        decode_audio(encode_wav(np.zeros(0, np.int16), 24_000), "wav")


def test_limits() -> None:
    data = encode_wav(np.zeros(24_000 * 3, np.int16), 24_000)
    assert decode_audio(data, "wav", max_seconds=3.0).size == 48_000
    with pytest.raises(AudioTooLong, match=r"longer than the 2\.9 seconds"):
        decode_audio(data, "wav", max_seconds=2.9)
    with pytest.raises(AudioTooLong, match="at most 1000"):
        decode_audio(data, "wav", max_bytes=1_000)


def test_a_small_file_of_endless_silence_stops_early() -> None:
    data = encode(np.zeros(24_000 * 600, np.int16), "flac")
    assert len(data) < 1_000_000
    with pytest.raises(AudioTooLong):
        decode_audio(data, "flac", max_seconds=5.0)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_samples_that_are_no_numbers_are_refused(value: float) -> None:
    samples = np.zeros(1_600, "<f4")
    samples[800] = value
    body = samples.tobytes()
    header = struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        b"RIFF",
        36 + len(body),
        b"WAVE",
        b"fmt ",
        16,
        3,
        1,
        16_000,
        64_000,
        4,
        32,
        b"data",
        len(body),
    )
    with pytest.raises(AudioError, match="not numbers"):
        decode_audio(header + body, "wav")


def test_a_wav_that_never_learned_its_length() -> None:
    pcm = int16(sine(440, 24_000, 0.5))
    data = bytearray(encode_wav(pcm, 24_000))
    for place in (4, 40):
        data[place : place + 4] = b"\xff\xff\xff\xff"
    assert decode_audio(bytes(data), "wav").size == 8_000


@pytest.mark.parametrize(("rate", "channels"), [(1, 1), (4_000_000_000, 1), (16_000, 0), (16_000, 60)])
def test_absurd_headers_are_refused(rate: int, channels: int) -> None:
    data = bytearray(encode_wav(np.zeros(16_000, np.int16), 16_000))
    struct.pack_into("<HI", data, 22, channels, rate)
    with pytest.raises(AudioError):
        decode_audio(bytes(data), "wav")


def test_loud_float_files_are_clipped() -> None:
    data = file_of(np.full((1, 8_000), 1.7), 16_000, "wav", "pcm_f32le", "flt")
    assert decode_audio(data, "wav").max() == 1.0
