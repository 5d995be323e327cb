"""Which teacher speaks which voice: what ``--teacher VOICE=KIND[:ARGUMENT]`` and ``--share VOICE=FRACTION`` say.

Kinds: ``hibari`` (argument: the speaker's size, such as ``0.85`` for a lower voice), ``piper`` (argument: the voice's
``.onnx`` with its ``.onnx.json`` beside it), ``command`` (argument: a command line that reads a text from standard
input and writes a WAV file to standard output).
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from voicechat.train.command import CommandTeacher
from voicechat.train.common import HELD_OUT, Work, is_held_out
from voicechat.train.piper import PiperTeacher, prepare_piper
from voicechat.train.teacher import HibariTeacher, Teacher, prepare_model

KINDS = ("hibari", "piper", "command")
DEFAULT = "heart=hibari"
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True)
class VoicePlan:
    """One voice: its name, its teacher, and the share of the texts that it speaks (held-out ones are all spoken)."""

    name: str
    kind: str
    argument: str
    share: float = 1.0

    def speaks(self, number: int, text_set: str, index: int) -> bool:
        """Whether voice ``number`` speaks a text. The texts of a share are spread evenly, and differ between voices."""
        place = (index * _GOLDEN + number * 0.37) % 1.0
        return is_held_out(text_set, index, HELD_OUT) or place < self.share

    def describe(self) -> str:
        """One line for the model card."""
        if self.kind == "hibari":
            source = 'hibari-tts, voice "heart" (Apache-2.0; distilled from Kokoro-82M, Apache-2.0)'
            lower = float(_size(self.argument))
            return f"{source}, pitch and formants together scaled by {lower:g}" if lower != 1 else source
        return (
            f"Piper voice {Path(self.argument).stem}" if self.kind == "piper" else f"command {self.argument.split()[0]}"
        )

    @property
    def model(self) -> str:
        """Name of the model's file in the work folder; voices that share a model share the file."""
        source = "" if self.kind == "hibari" else self.argument
        return f"{self.kind}-{hashlib.sha256(source.encode()).hexdigest()[:8]}.onnx"

    def prepare(self, work: Work) -> None:
        """Make ready what the teacher needs, once. Raises ``ValueError`` or ``FileNotFoundError`` on a bad argument."""
        path = work.file("teachers", self.model)
        if self.kind == "hibari":
            _size(self.argument)
            if not path.exists():
                prepare_model(path)
        elif self.kind == "piper":
            source = Path(self.argument)
            for needed in (source, _piper_config(source)):
                if not needed.is_file():
                    raise FileNotFoundError(f"--teacher {self.name}: no file {needed}")
            if not path.exists():
                prepare_piper(source, path)
        else:
            reference = work.file("teachers", VoicePlan("", "hibari", "").model)
            if not reference.exists():
                prepare_model(reference)

    def make(self, work: Work) -> Teacher:
        """The teacher, in the process that is going to use it."""
        path = work.file("teachers", self.model)
        if self.kind == "hibari":
            return HibariTeacher(path, _size(self.argument))
        if self.kind == "piper":
            return PiperTeacher(path, _piper_config(Path(self.argument)))
        return CommandTeacher(self.argument, HibariTeacher(work.file("teachers", VoicePlan("", "hibari", "").model)))


def voice_plans(teachers: list[str], shares: list[str]) -> list[VoicePlan]:
    """Plans of all voices in the order of ``teachers``. Raises ``ValueError`` on anything that makes no sense."""
    fractions: dict[str, float] = {}
    for entry in shares:
        name, _, value = entry.partition("=")
        try:
            fractions[name] = float(value)
        except ValueError:
            raise ValueError(f"--share takes VOICE=FRACTION, not {entry!r}") from None
        if not 0 < fractions[name] <= 1:
            raise ValueError(f"--share {name}: a fraction over 0, at most 1, not {value}")
    plans: list[VoicePlan] = []
    for entry in teachers or [DEFAULT]:
        name, _, rest = entry.partition("=")
        kind, _, argument = rest.partition(":")
        if not re.fullmatch(r"[a-z][a-z0-9_-]*", name) or kind not in KINDS or (kind != "hibari" and not argument):
            raise ValueError(f"--teacher takes VOICE=KIND[:ARGUMENT] with a kind of {', '.join(KINDS)}, not {entry!r}")
        if any(plan.name == name for plan in plans):
            raise ValueError(f"--teacher {name}: given twice")
        plans.append(VoicePlan(name, kind, argument, fractions.pop(name, 1.0)))
    if fractions:
        raise ValueError(f"--share: no teacher for {', '.join(fractions)}")
    return plans


def _size(argument: str) -> Fraction:
    try:
        return Fraction(argument or "1").limit_denominator(60)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"a voice's size is a number such as 0.85, not {argument!r}") from None


def _piper_config(model: Path) -> Path:
    return model.with_name(f"{model.name}.json")
