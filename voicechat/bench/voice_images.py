"""Spectrograms of one text, side by side, as a PNG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

Pcm = npt.NDArray[np.int16]

_WINDOW, _HOP = 1024, 240
_FLOOR_DB = -80.0


def spectrogram(pcm: Pcm) -> npt.NDArray[np.float32]:
    """Level in dB of a full-scale sine, float32 ``[513, frames]``: windows of 1,024 samples, every 10 ms at 24 kHz."""
    sound = pcm.astype(np.float32) / 32768
    sound = np.concatenate([np.zeros(_WINDOW // 2, np.float32), sound, np.zeros(_WINDOW, np.float32)])
    window = np.hanning(_WINDOW).astype(np.float32)
    frames = np.lib.stride_tricks.sliding_window_view(sound, _WINDOW)[::_HOP] * window
    level = np.abs(np.fft.rfft(frames, axis=1)) / (window.sum() / 2)
    decibels: npt.NDArray[np.float32] = (20 * np.log10(np.maximum(level, 10 ** (_FLOOR_DB / 20)))).T.astype(np.float32)
    return decibels


def draw(path: Path, title: str, sounds: Mapping[str, Pcm], rate: int = 24_000) -> None:
    """Write the spectrograms of ``sounds``, by name, on one scale of time, frequency and level. Needs matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    seconds = max(len(pcm) for pcm in sounds.values()) / rate
    figure = Figure(figsize=(5.2 * len(sounds), 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    for place, (name, pcm) in enumerate(sounds.items()):
        axes = figure.add_subplot(1, len(sounds), place + 1)
        axes.imshow(
            spectrogram(pcm), origin="lower", aspect="auto", cmap="magma", vmin=_FLOOR_DB, vmax=-10.0,
            extent=(0.0, len(pcm) / rate, 0.0, rate / 2000),
        )  # fmt: skip
        axes.set(title=name, xlabel="seconds", xlim=(0.0, seconds), ylabel="kHz" if place == 0 else "")
        axes.set_facecolor("black")
    figure.suptitle(title if len(title) <= 110 else f"{title[:109]}…", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
