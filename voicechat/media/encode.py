"""Encoders for the sound that leaves the server: int16 mono PCM in, bytes of one of :data:`FORMATS` out.

The work is CPU-bound and releases the GIL inside FFmpeg: call it from a worker thread, never on an event loop.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import av
import numpy as np
import numpy.typing as npt
from av.audio.codeccontext import AudioCodecContext
from av.audio.stream import AudioStream

from voicechat.media.wav import encode_wav, pcm_bytes, wav_header

Pcm = npt.NDArray[np.int16]

RATE = 24_000
"""Sample rate in Hz that the encoders expect unless told otherwise."""

_PAGE_MICROSECONDS = "40000"


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """One output format: its media type, usual file extension and, for FFmpeg's, muxer, codec and settings.

    ``gain`` undoes what the codec itself does to the level: LAME turns everything down by 5 % at constant bit rates.
    """

    name: str
    media_type: str
    extension: str
    muxer: str = ""
    codec: str = ""
    samples: str = ""
    bit_rate: int | None = None
    gain: float = 1.0


FORMATS: dict[str, AudioFormat] = {
    fmt.name: fmt
    for fmt in (
        AudioFormat("wav", "audio/wav", "wav"),
        AudioFormat("pcm16", "audio/pcm", "pcm"),
        AudioFormat("mp3", "audio/mpeg", "mp3", "mp3", "libmp3lame", "fltp", 64_000, gain=1 / 0.95),
        AudioFormat("flac", "audio/flac", "flac", "flac", "flac", "s16"),
        AudioFormat("opus", "audio/ogg", "opus", "ogg", "libopus", "s16", 48_000),
        AudioFormat("aac", "audio/aac", "aac", "adts", "aac", "fltp", 64_000),
    )
}
"""Output formats by the names that OpenAI's API gives them. ``opus`` is Ogg Opus, ``aac`` is ADTS."""


class Encoder(Protocol):
    """Turns pieces of one sound into bytes that, joined, are one playable file."""

    def feed(self, pcm: Pcm) -> bytes:
        """Bytes that have become certain with ``pcm`` (int16 ``[n]``); may be empty."""

    def finish(self) -> bytes:
        """The remaining bytes. The encoder takes no more sound after this."""


def stream_encoder(name: str, rate: int = RATE) -> Encoder:
    """An encoder for format ``name`` whose bytes can be sent as they come. Raises ``KeyError`` for other names.

    The length is not known when the first bytes leave, so WAV and FLAC headers say "unknown", and an MP3 lacks the
    header that would tell players how much of its start and end is padding.
    """
    fmt = FORMATS[name]
    if fmt.name == "wav":
        return _PcmEncoder(wav_header(None, rate))
    if fmt.name == "pcm16":
        return _PcmEncoder(b"")
    return _FfmpegEncoder(fmt, rate, _Pipe())


def encode(pcm: Pcm, name: str, rate: int = RATE) -> bytes:
    """int16 mono ``[n]`` at ``rate`` Hz as a whole file of format ``name``. Raises ``KeyError`` for other names."""
    fmt = FORMATS[name]
    if fmt.name == "wav":
        return encode_wav(pcm, rate)
    if fmt.name == "pcm16":
        return pcm_bytes(pcm)
    sink = io.BytesIO()
    encoder = _FfmpegEncoder(fmt, rate, sink)
    encoder.feed(pcm)
    encoder.finish()
    return sink.getvalue()


class _PcmEncoder:
    """Plain samples after a header."""

    def __init__(self, header: bytes) -> None:
        self._header = header

    def feed(self, pcm: Pcm) -> bytes:
        header, self._header = self._header, b""
        return header + pcm_bytes(pcm)

    def finish(self) -> bytes:
        header, self._header = self._header, b""
        return header


class _Pipe:
    """A file that can only be written to; what was written waits in :meth:`take`."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        data = b"".join(self._pieces)
        self._pieces.clear()
        return data


class _FfmpegEncoder:
    """One FFmpeg muxer with one mono audio stream, fed in frames of the codec's size."""

    def __init__(self, fmt: AudioFormat, rate: int, sink: _Pipe | io.BytesIO) -> None:
        self._fmt = fmt
        self._rate = rate
        self._sink = sink
        # A stream must not wait in the muxer: packets are flushed at once and Ogg pages are short.
        options = {"flush_packets": "1"} if isinstance(sink, _Pipe) else {}
        if options and fmt.muxer == "ogg":
            options["page_duration"] = _PAGE_MICROSECONDS
        self._container = av.open(sink, "w", format=fmt.muxer, options=options)
        stream = self._container.add_stream(fmt.codec, rate=rate)
        assert isinstance(stream, AudioStream)
        stream.layout = "mono"
        stream.format = fmt.samples
        if fmt.bit_rate is not None:
            stream.bit_rate = fmt.bit_rate
        stream.time_base = Fraction(1, rate)
        self._stream = stream
        self._container.start_encoding()
        context = stream.codec_context
        assert isinstance(context, AudioCodecContext)
        self._frame_size = context.frame_size or 4096
        self._rest: Pcm = np.zeros(0, np.int16)
        self._position = 0
        self._open = True

    def feed(self, pcm: Pcm) -> bytes:
        self._check(pcm)
        pcm = np.concatenate([self._rest, pcm]) if self._rest.size else pcm
        whole = pcm.size - pcm.size % self._frame_size
        for start in range(0, whole, self._frame_size):
            self._encode(pcm[start : start + self._frame_size])
        self._rest = pcm[whole:].copy()
        return self._taken()

    def finish(self) -> bytes:
        self._check(self._rest)
        self._open = False
        if self._rest.size:
            self._encode(self._rest)
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._taken()

    def _check(self, pcm: Pcm) -> None:
        if not self._open:
            raise ValueError("the encoder was already finished")
        if pcm.ndim != 1 or pcm.dtype != np.int16:
            raise ValueError(f"pcm must be int16 [n], not {pcm.dtype} {list(pcm.shape)}")

    def _encode(self, pcm: Pcm) -> None:
        samples = pcm if self._fmt.samples == "s16" else pcm.astype(np.float32) * np.float32(self._fmt.gain / 32768.0)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples)[None, :], self._fmt.samples, "mono")
        frame.sample_rate = self._rate
        frame.pts = self._position
        frame.time_base = Fraction(1, self._rate)
        self._position += pcm.size
        self._container.mux(self._stream.encode(frame))

    def _taken(self) -> bytes:
        return self._sink.take() if isinstance(self._sink, _Pipe) else b""
