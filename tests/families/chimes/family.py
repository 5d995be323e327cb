"""A family that speaks in chimes: of no use but to show what a family is. Everything in it is random or a sine.

It differs from the bundled one in all that a family may decide: the Thinker hears and sees, and has a hidden row for
every position, prompt included, made of two states by a model class of its own; text rows have three columns; a step is
four codebooks, of which three come from a predictor inside the Talker's worker; a step is 20 ms; the VoiceBox looks one
step ahead and carries its phase along. Of torch and vLLM nothing is imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from voicechat.contract.family import (
    Decoder,
    DecoderPlace,
    Facts,
    FamilyError,
    Folder,
    MadeFolder,
    Plain,
    PlainSpec,
    RowLayout,
    TalkerModel,
    ThinkerModel,
    Workshop,
)
from voicechat.contract.model_settings import ModelSettings

WIDTH = 64
"""Of both models' hidden states."""
CODES = 32
BOOKS = 4
STEPS_PER_ROW = 4
STEP_SAMPLES = 480
VOICES = ("brass", "glass")
WORDS = tuple(f"{first}{vowel}{last}" for first in "bdgklmnprst" for vowel in "aeiou" for last in ("", "n", "sh"))
MARKS = ("<s>", "<system>", "<user>", "<assistant>", "<red>", "<green>", "<blue>", "<dark>", "<loud>", "<still>")
VOCABULARY = 192


class ChimesSettings(ModelSettings):
    """Which chimes."""

    seed: int = Field(default=1, description="of all weights")


class ChimesFamily:
    """See :class:`voicechat.contract.family.Family`."""

    settings = ChimesSettings

    def folders(self, model: ChimesSettings, *, thinks: bool) -> Mapping[str, Folder]:
        def folder(name: str) -> Folder:
            def make(path: Path, workshop: Workshop) -> None:
                from chimes import weights

                workshop.say(f"cast the {name}")
                getattr(weights, f"make_{name}")(path, model.seed)

            return MadeFolder(f"chimes/{name}-{model.seed}", {"seed": model.seed}, 1_000_000, make)

        return {name: folder(name) for name in (("thinker", "talker") if thinks else ("talker",))}

    def facts(self, model: ChimesSettings, folders: Mapping[str, Path], *, thinks: bool) -> Facts:
        return Facts(
            voices=VOICES,
            about={"brass": {"name": "Brass"}},
            sees=True,
            hears=True,
            context_tokens=512,
            system_prompt="Chime.",
            rows=RowLayout(2 * WIDTH, "prompt") if thinks else None,
            step_samples=STEP_SAMPLES,
            step_bytes=BOOKS,
            look_ahead=1,
            text_columns=3,
            extra_bytes=BOOKS - 1,
            sampling={"temperature": 0.0},
            thinker={"folder": str(folders["thinker"])} if thinks else {},
            talker={"folder": str(folders["talker"])},
        )

    def thinker(self, given: Mapping[str, Any]) -> ThinkerModel:
        from chimes.thinker import ChimesThinkerModel

        return ChimesThinkerModel(given["folder"])

    def talker(self, given: Mapping[str, Any]) -> TalkerModel:
        from chimes.talker import ChimesTalker

        return ChimesTalker(given["folder"])

    def voicebox(self, given: Mapping[str, Any], place: DecoderPlace) -> Decoder:
        from chimes.voicebox import Chimes

        return Chimes()

    def plain(self, spec: PlainSpec) -> Plain:
        raise FamilyError("the chimes have no plain form")


FAMILY = ChimesFamily()
