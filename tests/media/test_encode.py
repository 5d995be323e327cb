"""Every output format is what it says it is and holds the sound that went in."""

from __future__ import annotations

import io
import wave

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voicechat.media.encode import FORMATS, encode, stream_encoder
from voicechat.media.resample import resample, to_float
from voicechat.media.wav import HEADER_BYTES, encode_wav, wav_header

RATE = 24_000
LOSSLESS = ["wav", "flac", "pcm16"]
LOSSY = ["mp3", "opus", "aac"]
CONTAINERS = {"wav": "wav", "flac": "flac", "mp3": "mp3", "opus": "ogg", "aac": "aac"}
CODECS = {"wav": "pcm_s16le", "flac": "flac", "mp3": "mp3float", "opus": "opus", "aac": "aac"}
# At most this much padding around the sound: only Ogg and (nearly) whole MP3 files can declare what is padding.
PADDING = {"wav": 0, "flac": 0, "pcm16": 0, "mp3": 576, "opus": 0, "aac": 2 * 1024}


def speechlike(samples: int, level: float = 0.5) -> np.ndarray:
    t = np.arange(samples) / RATE
    tone = np.sin(2 * np.pi * 220 * t) + 0.5 * np.sin(2 * np.pi * 660 * t) + 0.25 * np.sin(2 * np.pi * 1_980 * t)
    sound = level * tone / 1.75 * (0.6 + 0.4 * np.sin(2 * np.pi * 3 * t))
    return np.rint(sound * 32767).astype(np.int16)


def decoded(data: bytes, name: str) -> np.ndarray:
    """Independent way back: FFmpeg finds out the container by itself, except for raw PCM."""
    if name == "pcm16":
        return np.frombuffer(data, "<i2").astype(np.float32) / 32768
    with av.open(io.BytesIO(data)) as container:
        assert CONTAINERS[name] in container.format.name.split(",")
        stream = container.streams.audio[0]
        assert CODECS[name] in (stream.codec_context.name, stream.codec_context.name + "float")
        assert stream.codec_context.layout.nb_channels == 1
        rate = stream.codec_context.sample_rate
        blocks = [frame.to_ndarray().reshape(-1) for frame in container.decode(stream)]
    sound = np.concatenate(blocks)
    sound = to_float(sound) if sound.dtype == np.int16 else sound.astype(np.float32)
    return resample(sound, rate, RATE)


def rms(sound: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(sound, dtype=np.float64))))


def snr_db(sound: np.ndarray, reference: np.ndarray) -> float:
    """Signal to noise at the best shift within 4,000 samples."""
    size = 1 << 17
    spectrum = np.fft.rfft(sound, size) * np.conj(np.fft.rfft(reference, size))
    shift = int(np.argmax(np.fft.irfft(spectrum, size)[:4_000]))
    part = sound[shift : shift + reference.size]
    reference = reference[: part.size]
    inner = slice(1_200, -1_200)
    return 20 * np.log10(rms(reference[inner]) / rms((part - reference)[inner]))


@pytest.mark.parametrize("name", LOSSLESS)
@pytest.mark.parametrize("samples", [1, 959, 960, 24_001])
def test_lossless_formats_are_lossless(name: str, samples: int) -> None:
    pcm = speechlike(samples)
    np.testing.assert_array_equal(np.rint(decoded(encode(pcm, name), name) * 32768).astype(np.int16), pcm)


@pytest.mark.parametrize("name", LOSSY)
def test_lossy_formats_are_close(name: str) -> None:
    pcm = speechlike(3 * RATE)
    out = decoded(encode(pcm, name), name)
    assert pcm.size - 1 <= out.size <= pcm.size + PADDING[name]
    assert snr_db(out, to_float(pcm)) > 15


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(sorted(FORMATS)), samples=st.integers(RATE // 2, 2 * RATE), level=st.floats(0.05, 0.95))
def test_length_and_level(name: str, samples: int, level: float) -> None:
    pcm = speechlike(samples, level)
    out = decoded(encode(pcm, name), name)
    assert samples - 1 <= out.size <= samples + PADDING[name]
    assert abs(20 * np.log10(rms(out) * np.sqrt(out.size / samples) / rms(to_float(pcm)))) < 0.5


@settings(max_examples=30, deadline=None)
@given(name=st.sampled_from(sorted(FORMATS)), cuts=st.lists(st.integers(0, 5_000), min_size=8, max_size=20))
def test_streaming_gives_the_same_sound(name: str, cuts: list[int]) -> None:
    pcm = speechlike(sum(cuts) + RATE)
    encoder = stream_encoder(name)
    starts = np.cumsum([0, *cuts])
    pieces = [encoder.feed(pcm[a : a + n]) for a, n in zip(starts, cuts, strict=False)]
    pieces += [encoder.feed(pcm[int(starts[-1]) :]), encoder.finish()]
    streamed = decoded(b"".join(pieces), name)
    if name in LOSSLESS:
        np.testing.assert_array_equal(np.rint(streamed * 32768).astype(np.int16), pcm)
    else:
        assert pcm.size - 1 <= streamed.size <= pcm.size + 4_000
        assert snr_db(streamed, to_float(pcm)) > 15


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_streaming_does_not_wait_for_the_end(name: str) -> None:
    encoder = stream_encoder(name)
    early = b"".join(encoder.feed(speechlike(RATE // 10)) for _ in range(20))
    rest = encoder.finish()
    assert len(early) > 4 * len(rest)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_no_sound_at_all_still_ends_well(name: str) -> None:
    empty = np.zeros(0, np.int16)
    data = encode(empty, name)
    assert isinstance(data, bytes)
    encoder = stream_encoder(name)
    assert isinstance(encoder.feed(empty) + encoder.finish(), bytes)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_full_scale_does_not_wrap(name: str) -> None:
    square = np.where(np.arange(RATE) // 60 % 2, 32767, -32768).astype(np.int16)
    out = decoded(encode(square, name), name)
    assert abs(rms(out) * np.sqrt(out.size / square.size) - 1) < 0.1


def test_wav_reads_back_with_the_standard_library() -> None:
    pcm = speechlike(5_000)
    with wave.open(io.BytesIO(encode_wav(pcm, RATE))) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate(), file.getnframes()) == (1, 2, RATE, 5_000)
        np.testing.assert_array_equal(np.frombuffer(file.readframes(5_000), "<i2"), pcm)
    assert len(wav_header(None, RATE)) == len(wav_header(7, RATE)) == HEADER_BYTES
    with pytest.raises(ValueError, match="fit"):
        wav_header(1 << 31, RATE)


def test_misuse_is_refused() -> None:
    with pytest.raises(KeyError):
        encode(np.zeros(4, np.int16), "midi")
    for name in sorted(FORMATS):
        with pytest.raises(ValueError, match="int16"):
            encode(np.zeros(4, np.float32), name)  # type: ignore[arg-type]
    encoder = stream_encoder("mp3")
    encoder.finish()
    with pytest.raises(ValueError, match="finished"):
        encoder.feed(np.zeros(4, np.int16))
