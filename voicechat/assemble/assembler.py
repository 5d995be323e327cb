"""``assemble(settings)``: everything a model needs, in the data folder, made once."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voicechat.assemble import smoothing
from voicechat.assemble.catalogue import (
    DETECTORS,
    DETECTORS_NAME,
    EARS,
    EARS_NAME,
    THINKERS,
    ThinkerSource,
)
from voicechat.assemble.folder import has_chat_template, hidden_size
from voicechat.assemble.progress import Reporter
from voicechat.assemble.projection import check_projection
from voicechat.assemble.sources import Fetcher, free_bytes
from voicechat.assemble.store import (
    AssembleError,
    is_whole,
    link_or_copy,
    locked,
    new_folder,
    remove_partials,
    sha256_file,
    write_stamp,
)
from voicechat.config import Settings
from voicechat.contract.artifacts import Artifact

THINKER_RECIPE = 1
TALKER_RECIPE = 1
"""Raise these when a conversion changes, so that folders made before are made again."""

_PACKED_WEIGHTS = ("talker.safetensors", "voicebox.safetensors", "voice.json")


@dataclass(frozen=True, slots=True)
class AssembledPaths:
    """Folders that the stages load.

    ``thinker``: Hugging Face folder of the LLM; not made if a brain elsewhere thinks. ``talker``: Hugging Face folder
    of the Talker, exported for vLLM.
    ``ears``: faster-whisper's folder. ``weights``: the trained Talker and VoiceBox as the package carries them.
    ``detectors``: Silero VAD and Smart Turn, which the server itself loads.
    """

    thinker: Path
    talker: Path
    ears: Path
    weights: Path
    detectors: Path


def assemble(settings: Settings, reporter: Reporter | None = None, *, verify: bool = False) -> AssembledPaths:
    """Make every folder of the model that is not there yet, and return them all.

    A second call only looks at stamps and sizes; ``verify`` also compares all checksums. Interrupted at any point,
    the next call goes on from the parts that are whole. Raises AssembleError.
    """
    reporter = reporter or Reporter()
    data = settings.data_dir
    weights, plans = _plans(settings)
    wanted = _wanted(settings, plans)
    if not all(is_whole(plan.folder, plan.recipe, verify=verify) for plan in wanted):
        with locked(data, reporter):
            remove_partials(data)
            fetcher = Fetcher(settings.assemble, data, reporter)
            for plan in wanted:
                if not is_whole(plan.folder, plan.recipe, verify=verify):
                    plan.check_space()
                    with new_folder(plan.folder) as folder:
                        plan.make(folder, fetcher, reporter)
                        write_stamp(folder, plan.recipe)
            fetcher.discard_downloads()
        reporter.say(f"{settings.model.name} is assembled in {data}")
    if settings.model.talker.projection is not None and settings.brain.url is None:
        check_projection(settings.model.talker.projection, weights, hidden_size(plans[0].folder))
    thinker, ears, talker, detectors = (plan.folder for plan in plans)
    return AssembledPaths(thinker=thinker, talker=talker, ears=ears, weights=weights, detectors=detectors)


def missing_parts(settings: Settings) -> list[str]:
    """Names of the folders that :func:`assemble` would still have to make. Raises AssembleError."""
    _, plans = _plans(settings)
    return [plan.folder.name for plan in _wanted(settings, plans) if not is_whole(plan.folder, plan.recipe)]


def _wanted(settings: Settings, plans: list[_Plan]) -> list[_Plan]:
    """Those that are ours to make: no Thinker if a brain elsewhere thinks."""
    return [
        plan
        for plan in plans
        if plan.folder_is_ours and not (settings.brain.url is not None and isinstance(plan, _Thinker))
    ]


def _plans(settings: Settings) -> tuple[Path, list[_Plan]]:
    data = settings.data_dir
    weights = find_weights(settings)
    ears = _Files(data / "ears" / EARS_NAME, EARS)
    detectors = _Files(data / "detectors" / DETECTORS_NAME, DETECTORS)
    return weights, [_Thinker(settings, data), ears, _Talker(settings, weights, data), detectors]


def find_weights(settings: Settings) -> Path:
    """Folder of the trained Talker and VoiceBox. Raises AssembleError if a file is missing."""
    folder = settings.model.weights
    if folder is None:
        folder = Path(__file__).resolve().parent.parent / "models" / settings.model.family / "weights"
    missing = [name for name in _PACKED_WEIGHTS if not (folder / name).is_file()]
    if missing:
        raise AssembleError(
            f"the Talker's and VoiceBox's weights are not in {folder} ({', '.join(missing)} missing); "
            "train them with `voicechat train`, or point --set model.weights=FOLDER at a trained set"
        )
    return folder


class _Plan:
    """One folder to be made. ``folder_is_ours`` is False for a folder that the user gave."""

    folder_is_ours = True

    def __init__(self, folder: Path, recipe: dict[str, Any], need_bytes: int) -> None:
        self.folder = folder
        self.recipe = recipe
        self._need_bytes = need_bytes

    def check_space(self) -> None:
        """Raise AssembleError if the disk is plainly too full."""
        free = free_bytes(self.folder)
        if free < self._need_bytes:
            raise AssembleError(
                f"{self.folder.parent} needs about {self._need_bytes / 1e9:.1f} GB, {free / 1e9:.1f} GB are free; "
                "make room or set data_dir (VOICECHAT_HOME) to another disk"
            )

    def make(self, folder: Path, fetcher: Fetcher, reporter: Reporter) -> None:
        """Fill the empty ``folder``."""
        raise NotImplementedError


class _Thinker(_Plan):
    def __init__(self, settings: Settings, data: Path) -> None:
        self._given = settings.model.thinker
        self.folder_is_ours = self._given.dir is None
        if self._given.dir is not None:
            given = self._given.dir.expanduser().absolute()
            if not (given / "config.json").is_file():
                raise AssembleError(f"model.thinker.dir: {given} has no config.json")
            hidden_size(given)  # the pool's rows are as wide
            if not has_chat_template(given):
                raise AssembleError(
                    f"model.thinker.dir: the tokenizer in {given} has no chat template, so how the LLM is "
                    "asked is not known; if it is a chat model, put its template there as chat_template.jinja"
                )
            super().__init__(given, {}, 0)
            return
        self._source = _source(self._given.source)
        recipe: dict[str, Any] = {
            "recipe": THINKER_RECIPE,
            "gguf": self._source.gguf.sha256,
            "quantization": self._given.quantization,
        }
        factors = smoothing.FOLDER / f"{self._source.name}.npz"
        if self._given.quantization == "int8" and factors.is_file():
            recipe["smoothing"] = sha256_file(factors)
        name = self._source.name if self._given.quantization == "none" else f"{self._source.name}-int8"
        super().__init__(data / "thinkers" / name, recipe, 4 * self._source.gguf.size)

    def make(self, folder: Path, fetcher: Fetcher, reporter: Reporter) -> None:
        source = fetcher.fetch(self._source.gguf)
        from voicechat.assemble.gguf_model import convert

        convert(
            source,
            folder,
            quantization=self._given.quantization,
            tied=self._source.tied,
            reporter=reporter,
            label=self.folder.name,
            smoothing=smoothing.load(self._source.name),
        )


class _Files(_Plan):
    """Files that are used as they come."""

    def __init__(self, folder: Path, artifacts: tuple[Artifact, ...]) -> None:
        self._artifacts = artifacts
        recipe = {"files": {artifact.name: artifact.sha256 for artifact in artifacts}}
        super().__init__(folder, recipe, 3 * sum(artifact.size for artifact in artifacts))

    def make(self, folder: Path, fetcher: Fetcher, reporter: Reporter) -> None:
        for artifact in self._artifacts:
            link_or_copy(fetcher.fetch(artifact), folder / artifact.name)


class _Talker(_Plan):
    """The Talker's export depends on the weights and on the code that exports them."""

    def __init__(self, settings: Settings, weights: Path, data: Path) -> None:
        self._weights = weights
        self._quantization = settings.model.talker.quantization
        package = Path(__file__).resolve().parent.parent / "models" / settings.model.family
        made_of = (
            weights / "talker.safetensors",
            weights / "voice.json",
            package / "talker.py",
            package / "weights.py",
        )
        recipe = {
            "recipe": TALKER_RECIPE,
            "quantization": self._quantization,
            "files": {path.name: sha256_file(path) for path in made_of},
        }
        key = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:12]
        super().__init__(data / "talkers" / key, recipe, 200_000_000)

    def make(self, folder: Path, fetcher: Fetcher, reporter: Reporter) -> None:
        from voicechat.assemble.w8a8 import quantize_folder
        from voicechat.models.embedded.talker import export_hf

        reporter.say(f"export the Talker to {self.folder}")
        export_hf(self._weights, folder)
        if self._quantization == "int8":
            quantize_folder(folder)


def _source(name: str) -> ThinkerSource:
    try:
        return THINKERS[name]
    except KeyError:
        raise AssembleError(f"model.thinker.source: no {name!r}; there are {', '.join(THINKERS)}") from None
