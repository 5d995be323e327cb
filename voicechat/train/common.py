"""What all training steps share: the work folder, progress lines, budgets, atomic files, plots, sound files."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from voicechat.media.wav import encode_wav

logger = logging.getLogger("voicechat.train")

SAMPLE_RATE = 24_000
PLAIN = "plain"
"""The text set that no Thinker wrote."""
HELD_OUT = 100
"""So many first replies of each Thinker are spoken by every voice and never trained on."""
VOICES_FILE = "voices.json"
TEACHERS_FILE = "teachers.json"
Int16 = npt.NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class Work:
    """The work folder of one training. Every file in it is written whole or not at all."""

    root: Path

    def file(self, *parts: str) -> Path:
        """A path in the folder; its parent is made."""
        path = self.root.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def keep_sample(self, name: str, pcm: Int16) -> None:
        """Leave a sound (24 kHz) in ``samples/``, to be heard."""
        self.file("samples", f"{name}.wav").write_bytes(encode_wav(pcm, SAMPLE_RATE))

    def text_sets(self) -> list[str]:
        """Names of the text sets made so far."""
        return sorted(path.stem for path in self.root.glob("texts/*.json"))

    def voices(self) -> tuple[str, ...]:
        """Names of the voices, in the order of their numbers. Raises ``FileNotFoundError`` before ``speech`` began."""
        path = self.file(VOICES_FILE)
        if not path.exists():
            raise FileNotFoundError(f"{path} is missing: run the step 'speech' first")
        return tuple(json.loads(path.read_text(encoding="utf-8")))

    def texts(self, name: str) -> list[dict[str, str]]:
        """Items of one set: ``prompt`` and ``text``."""
        data: list[dict[str, str]] = json.loads(self.file("texts", f"{name}.json").read_text(encoding="utf-8"))
        return data


def is_held_out(text_set: str, index: int, held_out: int) -> bool:
    """Whether a text must never be trained on: the first ``held_out`` replies of each Thinker."""
    return text_set != PLAIN and index < held_out


def write_json(path: Path, data: Any) -> None:
    """Write JSON atomically."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
    temporary.replace(path)


def write_arrays(path: Path, compress: bool = False, **arrays: npt.NDArray[Any]) -> None:
    """Write an ``.npz`` atomically."""
    temporary = path.with_name(f".{path.name}.tmp.npz")
    (np.savez_compressed if compress else np.savez)(temporary, **arrays)  # type: ignore[arg-type]
    temporary.replace(path)


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """``torch.save``, atomically."""
    temporary = path.with_name(f".{path.name}.tmp")
    torch.save(state, temporary)
    temporary.replace(path)


def load_checkpoint(path: Path, device: torch.device) -> dict[str, Any] | None:
    """A checkpoint's state, or ``None`` when there is none."""
    if not path.exists():
        return None
    state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    return state


def to_pcm(sound: npt.NDArray[np.float32]) -> Int16:
    """Float sound in [-1, 1] to int16."""
    return (np.clip(sound, -1.0, 1.0) * 32767.0).astype(np.int16)


def pick_device(name: str | None) -> torch.device:
    """The named device, or the first GPU, or the CPU."""
    device = torch.device(name or ("cuda:0" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda":
        # cuDNN's attention plans anew for each length of sequence: over 100 ms a time.
        torch.backends.cuda.enable_cudnn_sdp(False)
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
    return device


class Stateful(Protocol):
    """A net or an optimiser."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


@dataclass(slots=True)
class Budget:
    """How far a loop has come: by steps, and by time where a limit is given. ``fraction`` drives the schedules."""

    steps: int
    seconds: float | None = None
    step: int = 0
    before: float = 0.0
    """Seconds spent before a resume."""
    _start: float = field(default_factory=time.monotonic)

    @property
    def elapsed(self) -> float:
        """Seconds spent in the loop, resumed parts included."""
        return self.before + time.monotonic() - self._start

    @property
    def fraction(self) -> float:
        """0 at the start, 1 at the end."""
        by_time = self.elapsed / self.seconds if self.seconds else 0.0
        return min(1.0, max(self.step / self.steps, by_time))

    def run(self) -> Iterator[int]:
        """Step numbers until the budget is used up."""
        while self.fraction < 1.0:
            yield self.step
            self.step += 1

    def rate(self, warm_up: int, floor: float = 0.03) -> float:
        """Cosine schedule with a linear warm-up: factor for the learning rate."""
        rise = min(1.0, (self.step + 1) / max(1, warm_up))
        return rise * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * self.fraction)))

    def every(self, steps: int) -> bool:
        """True on the first step and then every so many."""
        return self.step % steps == 0


@torch.no_grad()
def follow(mean: Iterable[torch.Tensor], trained: Iterable[torch.Tensor], memory: float, step: int) -> None:
    """Move a running mean of weights on, with this ``memory`` per step; at the start its memory is short."""
    torch._foreach_lerp_(list(mean), list(trained), 1 - min(memory, (step + 1) / (step + 10)))


class RunningMean:
    """Mean of a step's measures since the last report, summed on the device so that no step waits for it."""

    def __init__(self) -> None:
        self._sum: torch.Tensor | None = None
        self._count = 0

    def add(self, measures: torch.Tensor) -> None:
        """Take in one step's measures [N]."""
        self._sum = measures.clone() if self._sum is None else self._sum + measures
        self._count += 1

    def take(self) -> list[float]:
        """The means; begins anew."""
        if self._sum is None:
            return []
        means: list[float] = (self._sum / self._count).tolist()
        self._sum, self._count = None, 0
        return means


class Curve:
    """Measures over steps: progress lines on the log, a JSON-lines file, a PNG where matplotlib is installed."""

    def __init__(self, work: Work, name: str) -> None:
        self.name = name
        self._path = work.file("curves", f"{name}.jsonl")
        self.points: list[dict[str, float]] = []
        if self._path.exists():
            lines = self._path.read_text(encoding="utf-8").splitlines()
            self.points = [json.loads(line) for line in lines if line.strip()]

    def add(self, budget: Budget, **measures: float) -> None:
        """Record a point and print a progress line."""
        point = {"step": float(budget.step), "seconds": round(budget.elapsed, 1), **measures}
        self.points.append(point)
        with self._path.open("a", encoding="utf-8") as out:
            out.write(json.dumps(point) + "\n")
        shown = " ".join(f"{key} {value:.4g}" for key, value in measures.items())
        logger.info(
            "%s %3.0f %% step %d %.0f s: %s", self.name, 100 * budget.fraction, budget.step, budget.elapsed, shown
        )

    def plot(self) -> None:
        """Draw the curves, one panel per measure; nothing happens without matplotlib."""
        try:
            from matplotlib.figure import Figure
        except ImportError:
            return
        names = [
            name
            for name in dict.fromkeys(key for point in self.points for key in point)
            if name not in {"step", "seconds"}
        ]
        if not names:
            return
        figure = Figure(figsize=(4 * len(names), 3), layout="constrained")
        for index, name in enumerate(names):
            axes = figure.add_subplot(1, len(names), index + 1)
            points = [(point["step"], point[name]) for point in self.points if name in point]
            axes.plot([x for x, _ in points], [y for _, y in points])
            axes.set_title(f"{self.name}: {name}")
            axes.set_xlabel("step")
        figure.savefig(self._path.with_suffix(".png"), dpi=90)


class Loop:
    """The steps of one phase of training: goes on from its checkpoint, keeps it, and tells what was measured.

    ``parts``: nets, optimisers and what else has a state. ``report``: steps between two points of the curve.
    """

    KEEP = 2_000
    """Steps between two checkpoints."""

    def __init__(
        self, work: Work, name: str, path: Path, parts: Mapping[str, Stateful], budget: Budget, report: int,
        device: torch.device,
    ) -> None:  # fmt: skip
        self.budget, self.curve, self.recent = budget, Curve(work, name), RunningMean()
        self._path, self._parts, self._report = path, parts, report
        state = load_checkpoint(path, device)
        self.resumed = state is not None
        if state is not None:
            for part_name, part in parts.items():
                part.load_state_dict(state[part_name])
            budget.step, budget.before = int(state["step"]), float(state["elapsed"])
            logger.info("resumed %s at step %d", path.name, budget.step)

    def steps(self) -> Iterator[int]:
        """Step numbers until the budget is used up."""
        for number in self.budget.run():
            yield number
            if number % self.KEEP == self.KEEP - 1:
                self.save()

    @property
    def due(self) -> bool:
        """True on the steps that are to be told of: the first, every so many, and the last."""
        return self.budget.step % self._report == 0 or self.budget.step == self.budget.steps - 1

    def tell(
        self, names: Sequence[str], measures: torch.Tensor, more: Callable[[], dict[str, float]] = dict[str, float]
    ) -> None:
        """Take in a step's measures [N]; where it is due, put their means since the last time on the curve."""
        self.recent.add(measures)
        if self.due:
            self.curve.add(self.budget, **dict(zip(names, self.recent.take(), strict=True)), **more())

    def save(self) -> None:
        """Write all parts and how far the loop has come."""
        state: dict[str, Any] = {name: part.state_dict() for name, part in self._parts.items()}
        save_checkpoint(self._path, state | {"step": self.budget.step, "elapsed": self.budget.elapsed})

    def finish(self) -> None:
        """Write the last state and draw the curve."""
        self.save()
        self.curve.plot()


def wait_for(path: Path, what: str, watch: bool, poll: Callable[[float], None] = time.sleep) -> None:
    """Wait until a file appears. Raises ``FileNotFoundError`` at once unless ``watch``."""
    if not path.exists() and not watch:
        raise FileNotFoundError(f"{path} is missing: {what}")
    if not path.exists():
        logger.info("waiting for %s", path)
    while not path.exists():
        poll(0.5)


def thinker_paths(pairs: list[str]) -> dict[str, Path]:
    """``NAME=PATH`` pairs. Raises ``ValueError`` on anything else."""
    out = {}
    for pair in pairs:
        name, separator, path = pair.partition("=")
        if not separator or not name or not path:
            raise ValueError(f"--thinker takes NAME=PATH, not {pair!r}")
        out[name] = Path(path)
    return out
