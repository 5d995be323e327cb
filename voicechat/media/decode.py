"""Decoding of sound files from outside (WAV, MP3, FLAC, Ogg) to what the ears hear: float32 mono at 16 kHz.

Nothing in a file is trusted: its kind is checked by its first bytes before FFmpeg sees it, only a few harmless codecs
are allowed, and decoding stops as soon as the sound gets longer than allowed. CPU-bound: call it from a worker thread.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

import av
import av.error
import numpy as np
import numpy.typing as npt
from av.container import InputContainer

from voicechat.media.resample import Resampler

Floats = npt.NDArray[np.float32]

EARS_RATE = 16_000
MAX_BYTES = 25 * 1024 * 1024
MAX_SECONDS = 600.0

_CODECS = {
    "wav": {"pcm_u8", "pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f32le", "pcm_f64le", "pcm_alaw", "pcm_mulaw"}
    | {"adpcm_ms", "adpcm_ima_wav"},
    "mp3": {"mp3", "mp3float"},
    "flac": {"flac"},
    "ogg": {"opus", "libopus", "vorbis", "libvorbis", "flac"},
}
_MIN_RATE, _MAX_RATE = 4_000, 384_000
_MAX_CHANNELS = 8
_SCAN_BYTES = 64 * 1024
_BAD_SHARE = 0.1


class AudioError(ValueError):
    """The bytes are not a sound that can be heard. ``str()`` is fit for whoever sent them."""


class AudioTooLong(AudioError):
    """The sound is longer, or the file larger, than allowed."""


def sniff(data: bytes) -> str | None:
    """The container by its first bytes: ``wav``, ``mp3``, ``flac``, ``ogg`` or ``None`` for anything else."""
    if data[:4] in (b"RIFF", b"RF64") and data[8:12] == b"WAVE":
        return "wav"
    if data[:4] == b"OggS":
        return "ogg"
    body = _after_id3(data)
    if data[body : body + 4] == b"fLaC":
        return "flac"
    return "mp3" if _has_mp3_frames(data, body) else None


def decode_audio(
    data: bytes, fmt: str | None = None, *, max_seconds: float = MAX_SECONDS, max_bytes: int = MAX_BYTES
) -> Floats:
    """The sound in ``data`` as float32 ``[n]`` mono in [-1, 1] at 16 kHz; channels are averaged.

    ``fmt`` is what the sender says it is (``wav``, ``mp3``, ``flac``, ``ogg``), ``None`` to find out.
    Raises :class:`AudioTooLong` beyond the limits, and :class:`AudioError` for what is empty, damaged, of another kind
    than said, or of no known kind.
    """
    if not data:
        raise AudioError("the audio is empty")
    if len(data) > max_bytes:
        raise AudioTooLong(f"the audio is {len(data)} bytes; at most {max_bytes} are allowed")
    kind = sniff(data)
    if fmt is not None and kind != fmt:
        raise AudioError(f"the data is not a valid {fmt} file" + (f" (it looks like {kind})" if kind else ""))
    if kind is None:
        raise AudioError("the data is not a WAV, MP3, FLAC or Ogg file")
    limit = int(max_seconds * EARS_RATE)
    pieces: list[Floats] = []
    length = 0
    for piece in _resampled(_mono_frames(data, kind)):
        pieces.append(piece)
        length += piece.size
        if length > limit:
            raise AudioTooLong(f"the audio is longer than the {max_seconds:g} seconds that are allowed")
    if length == 0:
        raise AudioError("the audio holds no sound")
    sound = np.concatenate(pieces)
    if not np.isfinite(sound).all():
        raise AudioError("the audio holds samples that are not numbers")
    return np.clip(sound, -1.0, 1.0, out=sound)


def _resampled(frames: Iterator[tuple[Floats, int]]) -> Iterator[Floats]:
    """Frames with their rates -> pieces at 16 kHz. The rate may change on the way, as it can in an MP3."""
    resampler: Resampler | None = None
    for samples, rate in frames:
        if resampler is not None and resampler.rate_in != rate:
            yield resampler.flush()
            resampler = None
        if resampler is None:
            resampler = Resampler(rate, EARS_RATE)
        yield resampler.push(samples)
    if resampler is not None:
        yield resampler.flush()


def _mono_frames(data: bytes, kind: str) -> Iterator[tuple[Floats, int]]:
    """Decoded frames as (float32 ``[n]``, rate)."""
    good = bad = used = 0
    try:
        with av.open(io.BytesIO(data), "r", format=kind, metadata_errors="ignore") as container:
            for packet in _packets(container, kind):
                try:
                    frames = packet.decode()
                except av.error.InvalidDataError:
                    bad += 1
                    continue
                good += bool(frames)
                used += packet.size
                for frame in frames:
                    yield _mono(frame), frame.sample_rate
    except (av.error.FFmpegError, EOFError) as error:
        raise AudioError(f"the {kind} data is damaged") from error
    # A cut last frame or a tag at the end is common and harmless; more than that is not the sound that was sent.
    # FFmpeg skips rubbish between MP3 frames silently, so there the bytes are counted too.
    skipped = kind == "mp3" and used < 0.5 * (len(data) - _after_id3(data))
    if skipped or bad > max(1, _BAD_SHARE * (good + bad)) or (bad and not good):
        raise AudioError(f"the {kind} data is damaged")


def _packets(container: InputContainer, kind: str) -> Iterator[av.Packet[av.AudioStream]]:
    if not container.streams.audio:
        raise AudioError(f"the {kind} file holds no audio")
    stream = container.streams.audio[0]
    context = stream.codec_context
    name = "unknown" if context is None else context.name  # PyAV has no context for codecs that FFmpeg doesn't know
    if name not in _CODECS[kind]:
        raise AudioError(f"the {kind} file holds an unsupported codec ({name})")
    if not _MIN_RATE <= context.sample_rate <= _MAX_RATE:
        raise AudioError(f"the sample rate {context.sample_rate} Hz is not supported")
    if not 1 <= context.layout.nb_channels <= _MAX_CHANNELS:
        raise AudioError(f"{context.layout.nb_channels} channels are not supported")
    yield from container.demux(stream)


def _mono(frame: av.AudioFrame) -> Floats:
    """Mean of the channels, float32 ``[n]``. Not left to FFmpeg, whose mix of float channels is 3 dB too loud."""
    samples = frame.to_ndarray()
    if not frame.format.is_planar:
        samples = samples.reshape(-1, frame.layout.nb_channels).T
    if samples.dtype == np.uint8:
        floats = (samples.astype(np.float32) - 128.0) / 128.0
    elif samples.dtype == np.int16:
        floats = samples.astype(np.float32) / 32768.0
    elif samples.dtype == np.int32:
        floats = (samples / 2147483648.0).astype(np.float32)
    else:
        floats = samples.astype(np.float32, copy=False)
    mono: Floats = floats[0] if floats.shape[0] == 1 else floats.mean(axis=0, dtype=np.float32)
    return mono


def _after_id3(data: bytes) -> int:
    """Offset behind the ID3v2 tags at the start, if any."""
    offset = 0
    while data[offset : offset + 3] == b"ID3" and len(data) >= offset + 10:
        size = data[offset + 6 : offset + 10]
        if any(byte & 0x80 for byte in size):
            break
        footer = 10 if data[offset + 5] & 0x10 else 0
        offset += 10 + (size[0] << 21 | size[1] << 14 | size[2] << 7 | size[3]) + footer
    return offset


_MP3_RATES = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}
_MP3_KBPS = {
    True: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    False: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}


def _mp3_frame_bytes(data: bytes, offset: int) -> int:
    """Length of the MPEG layer III frame whose header stands at ``offset``; 0 if none does."""
    if offset + 4 > len(data) or data[offset] != 0xFF or data[offset + 1] & 0xE6 != 0xE2:
        return 0
    version = data[offset + 1] >> 3 & 3
    kbps, rate = data[offset + 2] >> 4, data[offset + 2] >> 2 & 3
    if version == 1 or kbps in (0, 15) or rate == 3:
        return 0
    first = version == 3
    padding = data[offset + 2] >> 1 & 1
    return (144 if first else 72) * _MP3_KBPS[first][kbps] * 1000 // _MP3_RATES[version][rate] + padding


def _has_mp3_frames(data: bytes, start: int) -> bool:
    """True if three frames (or all up to the end) follow each other without a gap near ``start``."""
    for first in range(start, min(len(data) - 4, start + _SCAN_BYTES)):
        offset, count = first, 0
        while count < 3 and (size := _mp3_frame_bytes(data, offset)):
            offset += size
            count += 1
        if count == 3 or (count and first == start and offset >= len(data)):
            return True
    return False
