"""The embedded family as the server sees it: settings, folders, facts. No torch here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from voicechat.contract.artifacts import sha256_file
from voicechat.contract.family import (
    Decoder,
    DecoderPlace,
    Facts,
    FamilyError,
    Folder,
    GivenFolder,
    LlmFolder,
    MadeFolder,
    Plain,
    PlainSpec,
    RowLayout,
    TalkerModel,
    ThinkerModel,
    Workshop,
)
from voicechat.models.embedded.alphabet import LOOK_AHEAD, STEP_BYTES, STEP_SAMPLES
from voicechat.models.embedded.projection import check_projection, projection_file
from voicechat.models.embedded.settings import EmbeddedSettings
from voicechat.models.embedded.thinker import SYSTEM_PROMPT, EmbeddedThinker
from voicechat.models.folder import context_length, has_chat_template, hidden_size
from voicechat.reading.pronunciations import PronunciationsError
from voicechat.reading.pronunciations import load as load_pronunciations

TALKER_RECIPE = 1
"""Raise this when the export changes otherwise than by its files, so that folders made before are made again."""

_PACKAGE = Path(__file__).resolve().parent
_WEIGHTS = ("talker.safetensors", "voicebox.safetensors", "voice.json")


def find_weights(model: EmbeddedSettings) -> Path:
    """Folder of the trained Talker and VoiceBox. Raises FamilyError if a file is missing."""
    folder = model.weights or _PACKAGE / "weights"
    missing = [name for name in _WEIGHTS if not (folder / name).is_file()]
    if missing:
        raise FamilyError(
            f"the Talker's and VoiceBox's weights are not in {folder} ({', '.join(missing)} missing); "
            "train them with `voicechat train`, or point --set model.weights=FOLDER at a trained set"
        )
    return folder


class EmbeddedFamily:
    """See :class:`voicechat.contract.family.Family`."""

    settings = EmbeddedSettings

    def folders(self, model: EmbeddedSettings, *, thinks: bool) -> Mapping[str, Folder]:
        """``thinker``, ``talker`` (exported for vLLM) and ``weights`` (Talker and VoiceBox as they were trained)."""
        weights = find_weights(model)
        thinker: dict[str, Folder] = {"thinker": _thinker(model)} if thinks else {}
        return {**thinker, "talker": _talker(model, weights), "weights": GivenFolder(weights)}

    def facts(self, model: EmbeddedSettings, folders: Mapping[str, Path], *, thinks: bool) -> Facts:
        """See :class:`voicechat.contract.family.Family`.

        A brain elsewhere, and a Thinker that the weights know nothing of and no projection was fitted for, are read by
        their text alone.
        """
        weights = folders["weights"]
        voice = json.loads((weights / "voice.json").read_text(encoding="utf-8"))
        source, voices, about = model.thinker, voice["talker"]["voices"], voice.get("about", {})
        projection = model.talker.projection if thinks else None
        if projection is not None:
            check_projection(projection, weights, hidden_size(folders["thinker"]))
        known = [name for name, _ in voice["talker"]["thinkers"]] if thinks else []
        own = source.source if projection is None and source.dir is None and source.source in known else None
        return Facts(
            voices=tuple(voices),
            about={name: dict(about[name]) for name in voices if name in about},
            context_tokens=context_length(folders["thinker"]) if thinks else None,
            system_prompt=source.system_prompt or SYSTEM_PROMPT,
            rows=RowLayout(hidden_size(folders["thinker"])) if thinks else None,
            step_samples=STEP_SAMPLES,
            step_bytes=STEP_BYTES,
            look_ahead=LOOK_AHEAD,
            sampling={key: voice["sampling"][key] for key in ("temperature", "top_k")},
            thinker={"folder": str(folders["thinker"]), "dtype": source.dtype} if thinks else {},
            talker={
                "folder": str(folders["talker"]),
                "dtype": model.talker.dtype,
                "weights": str(weights),
                "thinker": own,
                "projection": None if projection is None else str(projection_file(projection)),
                "reading": _reading(model),
            },
            voicebox={"weights": str(weights)},
        )

    def thinker(self, given: Mapping[str, Any]) -> ThinkerModel:
        """See :class:`voicechat.contract.family.Family`."""
        return EmbeddedThinker(given["folder"], given["dtype"])

    def talker(self, given: Mapping[str, Any]) -> TalkerModel:
        """See :class:`voicechat.contract.family.Family`."""
        from voicechat.models.embedded.speaking import EmbeddedTalker

        return EmbeddedTalker(**given)

    def voicebox(self, given: Mapping[str, Any], place: DecoderPlace) -> Decoder:
        """See :class:`voicechat.contract.family.Family`."""
        from voicechat.models.embedded.decoder import make_decoder

        return make_decoder(given["weights"], place)

    def plain(self, spec: PlainSpec) -> Plain:
        """See :class:`voicechat.contract.family.Family`."""
        from voicechat.models.embedded.naive import OneAfterAnother

        return OneAfterAnother(spec)


def _reading(model: EmbeddedSettings) -> dict[str, Any]:
    """The fields of ``Options``, as plain data for another process."""
    mine = model.reading
    try:
        words = {} if mine.pronunciations is None else load_pronunciations(mine.pronunciations.expanduser())
    except PronunciationsError as error:
        raise FamilyError(f"model.reading.pronunciations: {error}") from None
    return {"code": mine.code, "tables": mine.tables, "emoji": mine.emoji, "pronunciations": dict(words)}


def _thinker(model: EmbeddedSettings) -> Folder:
    if model.thinker.dir is None:
        return LlmFolder(model.thinker.source, model.thinker.quantization)
    given = model.thinker.dir.expanduser().absolute()
    if not (given / "config.json").is_file():
        raise FamilyError(f"model.thinker.dir: {given} has no config.json")
    hidden_size(given)  # the pool's rows are as wide
    if not has_chat_template(given):
        raise FamilyError(
            f"model.thinker.dir: the tokenizer in {given} has no chat template, so how the LLM is "
            "asked is not known; if it is a chat model, put its template there as chat_template.jinja"
        )
    return GivenFolder(given)


def _talker(model: EmbeddedSettings, weights: Path) -> Folder:
    """The Talker's export depends on the weights and on the code that exports them."""
    made_of = (weights / "talker.safetensors", weights / "voice.json", _PACKAGE / "talker.py", _PACKAGE / "weights.py")
    quantization = model.talker.quantization
    recipe = {
        "recipe": TALKER_RECIPE,
        "quantization": quantization,
        "files": {path.name: sha256_file(path) for path in made_of},
    }
    key = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:12]

    def make(folder: Path, workshop: Workshop) -> None:
        from voicechat.models.embedded.talker import export_hf

        workshop.say(f"export the Talker to {folder.parent / key}")
        export_hf(weights, folder)
        if quantization == "int8":
            workshop.quantize(folder)

    return MadeFolder(f"talkers/{key}", recipe, 200_000_000, make)


FAMILY = EmbeddedFamily()
