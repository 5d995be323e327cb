"""Any command line that speaks as a teacher. It gives no alignment, so one is found: hibari speaks the same symbols,
whose places in hibari's sound are known, and dynamic time warping carries them over to the command's sound.
"""

from __future__ import annotations

import io
import shlex
import subprocess
import wave

import numpy as np
import numpy.typing as npt

from voicechat.models.embedded.frontend import Mark
from voicechat.train.teacher import AlignmentError, Floats, Ints, Speech, Teacher, finish, level

TIMEOUT_SECONDS = 120.0
_HOP = 240
_WINDOW = 960
_BANDS = 24
_MOST_RELATIVE_COST = 0.86
"""Of what the same sound costs backwards: the right text in another voice comes to 0.5 to 0.84, another to more."""
_LONGEST_RATIO = 2.0
_RATE = 24_000


class CommandTeacher:
    """Runs a command line once per text: the text on standard input, a WAV file (16 bit) on standard output."""

    def __init__(self, command: str, reference: Teacher) -> None:
        """``reference`` speaks what the command's sound is aligned with. Raises ``ValueError`` for no command."""
        self._command = shlex.split(command)
        if not self._command:
            raise ValueError("a command teacher needs a command line")
        self._reference = reference

    def read(self, text: str) -> list[Mark]:
        """See :class:`voicechat.train.teacher.Teacher`."""
        return self._reference.read(text)

    def speak(self, symbols: list[int], seed: int, text: str) -> Speech:
        """See :class:`voicechat.train.teacher.Teacher`.

        Raises ``RuntimeError`` when the command fails, :class:`AlignmentError` when it speaks something else.
        """
        sound = level(self._run(text))
        guide = self._reference.speak(symbols, seed, text)
        known = level(guide.pcm.astype(np.float32) / np.float32(32768))
        ratio = len(sound) / len(known)
        if not 1 / _LONGEST_RATIO <= ratio <= _LONGEST_RATIO:
            raise AlignmentError(f"the sound is {ratio:.2f} times as long as expected")
        return finish(sound, carry_over(known, guide.ends.astype(np.int64), sound))

    def _run(self, text: str) -> Floats:
        line = " ".join(text.split())
        try:
            done = subprocess.run(
                self._command, input=line.encode(), capture_output=True, timeout=TIMEOUT_SECONDS, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", None)
            raise RuntimeError(
                f"{self._command[0]}: {error}{': ' + said.decode(errors='replace') if said else ''}"
            ) from error
        return read_wav(done.stdout)


def read_wav(data: bytes) -> Floats:
    """16-bit WAV of any rate to float32 mono at 24 kHz. Raises ``ValueError`` for anything else."""
    from scipy.signal import resample_poly

    try:
        with wave.open(io.BytesIO(data)) as sound:
            width, channels, rate = sound.getsampwidth(), sound.getnchannels(), sound.getframerate()
            # A file written to a pipe may not know its length.
            raw = sound.readframes(min(sound.getnframes(), len(data)))
    except (wave.Error, EOFError) as error:
        raise ValueError(f"the command gave no WAV file: {error}") from error
    if width != 2:
        raise ValueError(f"the command's WAV file has {8 * width} bits a sample, not 16")
    samples = np.frombuffer(raw[: len(raw) // (2 * channels) * 2 * channels], "<i2").astype(np.float32) / 32768
    samples = samples.reshape(-1, channels).mean(1)
    if not len(samples):
        raise ValueError("the command gave no sound")
    common = np.gcd(_RATE, rate)
    made = resample_poly(samples, _RATE // common, rate // common, window=("kaiser", 10.0))
    return made.astype(np.float32)


def carry_over(known: Floats, ends: Ints, sound: Floats) -> Ints:
    """Positions ``ends`` in a known sound to those in another sound of the same words.

    Raises :class:`AlignmentError` when the best path is hardly better than with the known sound backwards.
    """
    a, b = _features(known), _features(sound)
    distance = np.sqrt(np.maximum((a**2).sum(1)[:, None] + (b**2).sum(1)[None] - 2 * a @ b.T, 0)).astype(np.float32)
    path = warp(distance)
    cost = _cost(distance, path) / _cost(distance[::-1], warp(distance[::-1]))
    if cost > _MOST_RELATIVE_COST:
        raise AlignmentError(f"the sound does not follow the text (cost {cost:.2f} of the same backwards)")
    places = np.zeros(len(a))
    counts = np.bincount(path[:, 0], minlength=len(a))
    np.add.at(places, path[:, 0], path[:, 1])
    centres = places / counts
    carried = np.interp(ends / _HOP - 0.5, np.arange(len(a)), centres) + 0.5
    return np.maximum.accumulate(np.clip(np.rint(carried * _HOP), 0, len(sound)).astype(np.int64))


def _cost(distance: Floats, path: Ints) -> float:
    return float(distance[path[:, 0], path[:, 1]].mean())


def _features(sound: Floats) -> npt.NDArray[np.float32]:
    """Log energies in mel-like bands, one frame every 10 ms, each band with mean 0 and deviation 1: [frames, bands]."""
    padded = np.pad(sound, (_WINDOW // 2, _WINDOW))
    frames = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)[: len(sound) + _HOP : _HOP]
    power = np.abs(np.fft.rfft(frames * np.hanning(_WINDOW).astype(np.float32), axis=1)) ** 2
    edges = 700 * (10 ** (np.linspace(100, 2840, _BANDS + 1) / 2595) - 1) * _WINDOW / _RATE
    bands = [
        power[:, int(low) : max(int(high), int(low) + 1)].mean(1) for low, high in zip(edges, edges[1:], strict=False)
    ]
    values = np.log(np.stack(bands, 1) + 1e-4)
    return ((values - values.mean(0)) / (values.std(0) + 1e-3)).astype(np.float32)


def warp(distance: npt.NDArray[np.float32]) -> Ints:
    """Cheapest monotone path through a matrix of distances [A, B] from corner to corner: pairs [steps, 2].

    A diagonal step counts its distance one and a half times: between the one that a step and the two that a move in
    both sounds would give it.
    """
    rows, columns = distance.shape
    before = np.full(rows + 1, np.inf)
    last = np.full(rows + 1, np.inf)
    came = np.zeros((rows + columns - 1, rows), np.int8)
    for diagonal in range(rows + columns - 1):
        first, end = max(0, diagonal - columns + 1), min(rows, diagonal + 1)
        line = np.arange(first, end)
        here = distance[line, diagonal - line]
        choices = np.stack((before[line] + 1.5 * here, last[line] + here, last[line + 1] + here))
        if diagonal == 0:
            choices[0, 0] = here[0]
        best = choices.argmin(0)
        came[diagonal, line] = best
        now = np.full(rows + 1, np.inf)
        now[line + 1] = choices[best, np.arange(len(line))]
        before, last = last, now
    path = [(rows - 1, columns - 1)]
    while path[-1] != (0, 0):
        row, column = path[-1]
        step = came[row + column, row]
        path.append((row - (step != 2), column - (step != 1)))
    return np.asarray(path[::-1], np.int64)
