"""The sound of any file that FFmpeg reads, video files included, piece by piece: memory does not grow with the file."""

from __future__ import annotations

import math
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import av
import av.error
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.audio.stream import AudioStream
from av.container import InputContainer

from voicechat.contract.provenance import CannotCheck
from voicechat.contract.sound import PCM_RATE, Pcm

FOREIGN_FORMATS = (
    "wav,w64,mp3,flac,ogg,aac,mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpeg,mpegts,aiff,caf,au,amr,asf,flv,wv"
)
"""Containers that files from outside may be; none of them names other files, as playlists do."""
_BAD_SHARE = 0.1


def read_sound(
    path: Path, *, foreign: bool, rate: int = PCM_RATE, max_s: float = math.inf
) -> Generator[Pcm, None, None]:
    """int16 mono ``[n]`` at ``rate`` Hz of a file's first sound. ``foreign``: it is a stranger's, so that only
    :data:`FOREIGN_FORMATS` are opened. ``max_s``: seconds of sound it may hold; no more are decoded, for a small file
    may hold days.

    Raises :class:`CannotCheck`: ``no_audio`` for a file without sound, ``unreadable`` for one that is none, or damaged,
    ``too_large`` for one that is longer.
    CPU-bound.
    """
    options = {"protocol_whitelist": "file"}
    if foreign:
        options["format_whitelist"] = FOREIGN_FORMATS
    try:
        with av.open(os.fspath(path), "r", options=options, metadata_errors="ignore") as container:
            if not container.streams.audio:
                raise CannotCheck("The file holds no sound.", "no_audio")
            frames = _frames(container, container.streams.audio[0])
            yield from _resampled(_bounded(frames, max_s), rate)
    except (av.error.FFmpegError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CannotCheck(f"The file can't be read as a sound: {reason}.", "unreadable") from None


def _frames(container: InputContainer, stream: AudioStream) -> Iterator[AudioFrame]:
    """Decoded frames. A cut last frame or rubbish at the end is common; more than that is not the sound it was."""
    good = bad = 0
    for packet in container.demux(stream):
        try:
            frames = packet.decode()
        except av.error.InvalidDataError:
            bad += 1
            continue
        good += bool(frames)
        yield from frames
    if bad > max(1, _BAD_SHARE * (good + bad)):
        raise CannotCheck("The file can't be read as a sound: it is damaged.", "unreadable")


def _bounded(frames: Iterator[AudioFrame], max_s: float) -> Iterator[AudioFrame]:
    seconds = 0.0
    for frame in frames:
        seconds += frame.samples / max(1, frame.sample_rate)
        if seconds > max_s:
            raise CannotCheck(f"The sound is too long: at most {max_s / 60:g} minutes are checked.", "too_large")
        yield frame


def _resampled(frames: Iterator[AudioFrame], rate: int) -> Iterator[Pcm]:
    """A file may change its rate or layout on the way; each stretch of one kind is resampled by itself."""
    resampler, kind = None, None
    for frame in frames:
        now = (frame.format.name, frame.layout.name, frame.sample_rate)
        if now != kind:
            if resampler is not None:
                yield from _pcm(resampler, None)
            resampler, kind = AudioResampler(format="s16", layout="mono", rate=rate), now
        assert resampler is not None
        frame.pts = None
        yield from _pcm(resampler, frame)
    if resampler is not None:
        yield from _pcm(resampler, None)


def _pcm(resampler: AudioResampler, frame: AudioFrame | None) -> Iterator[Pcm]:
    for made in resampler.resample(frame):
        pcm: Pcm = made.to_ndarray().reshape(-1).astype(np.int16, copy=False)
        if pcm.size:
            yield pcm
