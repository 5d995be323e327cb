"""``assemble(settings)``: everything a model needs, in the data folder, made once."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voicechat.assemble import ears_model, smoothing
from voicechat.assemble.catalogue import (
    DETECTORS,
    DETECTORS_NAME,
    EARS,
    EARS_NAME,
    THINKERS,
    ThinkerSource,
)
from voicechat.assemble.ears_model import EARS_RECIPE, is_converted, local_folder
from voicechat.assemble.progress import Reporter
from voicechat.assemble.sources import Fetcher, free_bytes
from voicechat.assemble.store import (
    AssembleError,
    damage,
    is_whole,
    link_or_copy,
    locked,
    new_folder,
    remove_partials,
    write_stamp,
)
from voicechat.config import Settings
from voicechat.contract.artifacts import Artifact, sha256_file
from voicechat.contract.family import Facts, FamilyError, Folder, GivenFolder, LlmFolder, MadeFolder
from voicechat.models.registry import find_family

THINKER_RECIPE = 1
"""Raise this when the conversion changes, so that folders made before are made again."""


@dataclass(frozen=True, slots=True)
class AssembledPaths:
    """Folders that the stages load, and what the model in them is.

    ``folders``: the family's own, by its names. ``ears``: faster-whisper's folder. ``detectors``: Silero VAD and Smart
    Turn, which the server itself loads.
    """

    folders: Mapping[str, Path]
    ears: Path
    detectors: Path
    facts: Facts


def assemble(settings: Settings, reporter: Reporter | None = None, *, verify: bool = False) -> AssembledPaths:
    """Make every folder of the model that is not there yet, and return them all.

    A second call only looks at stamps, sizes and small files; ``verify`` also compares all checksums. A damaged folder
    is named, and made again. Interrupted at any point, the next call goes on from the parts that are whole. Raises
    AssembleError.
    """
    reporter = reporter or Reporter()
    data = settings.data_dir
    plans, ears, detectors = _plans(settings)
    wanted = [plan for plan in (*plans.values(), ears, detectors) if plan.folder_is_ours]
    if not all(is_whole(plan.folder, plan.recipe, verify=verify) for plan in wanted):
        with locked(data, reporter):
            remove_partials(data)
            fetcher = Fetcher(settings.assemble, data, reporter)
            for plan in wanted:
                if not is_whole(plan.folder, plan.recipe, verify=verify):
                    if (why := damage(plan.folder, verify=verify)) is not None:
                        reporter.say(f"{plan.folder} is damaged: {why}; it is made again")
                    plan.check_space()
                    with new_folder(plan.folder) as folder:
                        plan.make(folder, fetcher, reporter)
                        write_stamp(folder, plan.recipe)
            fetcher.discard_downloads()
        reporter.say(f"{settings.model.name} is assembled in {data}")
    folders = {name: plan.folder for name, plan in plans.items()}
    try:
        facts = find_family(settings.model.family).facts(settings.model, folders, thinks=settings.brain.url is None)
    except FamilyError as error:
        raise AssembleError(str(error)) from None
    return AssembledPaths(folders, ears.folder, detectors.folder, facts)


def missing_parts(settings: Settings) -> list[str]:
    """Names of the folders that :func:`assemble` would still have to make. Raises AssembleError."""
    plans, ears, detectors = _plans(settings)
    wanted = [plan for plan in (*plans.values(), ears, detectors) if plan.folder_is_ours]
    return [plan.folder.name for plan in wanted if not is_whole(plan.folder, plan.recipe)]


def family_folders(settings: Settings) -> Mapping[str, Folder]:
    """The folders that the model's family asks for. Raises AssembleError."""
    try:
        return find_family(settings.model.family).folders(settings.model, thinks=settings.brain.url is None)
    except FamilyError as error:
        raise AssembleError(str(error)) from None


def _plans(settings: Settings) -> tuple[dict[str, _Plan], _Plan, _Plan]:
    data = settings.data_dir
    plans = {name: _plan(folder, data) for name, folder in family_folders(settings).items()}
    return plans, _ears_plan(settings), _Files(data / "detectors" / DETECTORS_NAME, DETECTORS)


def _ears_plan(settings: Settings) -> _Plan:
    model, folder = settings.ears.model, settings.data_dir / "ears"
    if model is None or settings.ears.url is not None:
        return _Files(folder / EARS_NAME, EARS)
    source = local_folder(model)
    if source is not None and is_converted(source):
        return _Given(source, {}, 0)
    if source is None and not settings.assemble.hub:
        raise AssembleError(f"ears.model: {model} is on the hub, and assemble.hub is false")
    return _ChosenEars(model, source, folder, settings.assemble.hub_url)


def _plan(folder: Folder, data: Path) -> _Plan:
    match folder:
        case GivenFolder():
            return _Given(folder.path, {}, 0)
        case LlmFolder():
            return _Llm(folder, data)
        case MadeFolder():
            return _Made(folder, data)


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


class _Given(_Plan):
    folder_is_ours = False


class _Llm(_Plan):
    """An LLM of the catalogue, converted from GGUF."""

    def __init__(self, given: LlmFolder, data: Path) -> None:
        self._quantization = given.quantization
        self._source = _source(given.source)
        recipe: dict[str, Any] = {
            "recipe": THINKER_RECIPE,
            "gguf": self._source.gguf.sha256,
            "quantization": given.quantization,
        }
        factors = smoothing.FOLDER / f"{self._source.name}.npz"
        if given.quantization == "int8" and factors.is_file():
            recipe["smoothing"] = sha256_file(factors)
        name = self._source.name if given.quantization == "none" else f"{self._source.name}-int8"
        super().__init__(data / "thinkers" / name, recipe, 4 * self._source.gguf.size)

    def make(self, folder: Path, fetcher: Fetcher, reporter: Reporter) -> None:
        source = fetcher.fetch(self._source.gguf)
        from voicechat.assemble.gguf_model import convert

        convert(
            source,
            folder,
            quantization=self._quantization,
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


class _ChosenEars(_Plan):
    """Whisper in Hugging Face's form, converted, or what the hub has of either form."""

    def __init__(self, model: str, source: Path | None, folder: Path, hub_url: str) -> None:
        self._model, self._source, self._hub_url = model, source, hub_url
        recipe: dict[str, Any] = {"recipe": EARS_RECIPE, "model": str(source or model)}
        if source is not None:
            recipe["weights"] = {
                path.name: [path.stat().st_size, path.stat().st_mtime_ns]
                for path in sorted(source.iterdir())
                if path.suffix in (".safetensors", ".bin", ".json")
            }
        name = source.resolve().name if source is not None else model.replace("/", "--")
        super().__init__(folder / name, recipe, 0)

    def make(self, folder: Path, fetcher: Fetcher, reporter: Reporter) -> None:
        if self._source is not None:
            ears_model.convert(self._source, folder, reporter)
            return
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".hub-") as downloaded:
            ears_model.download(self._model, Path(downloaded), self._hub_url, reporter)
            if is_converted(Path(downloaded)):
                for path in Path(downloaded).iterdir():
                    if path.is_file():
                        link_or_copy(path, folder / path.name)
            else:
                ears_model.convert(Path(downloaded), folder, reporter)


class _Made(_Plan):
    """A folder that the family makes."""

    def __init__(self, given: MadeFolder, data: Path) -> None:
        self._make = given.make
        super().__init__(data / given.path, dict(given.recipe), given.need_bytes)

    def make(self, folder: Path, fetcher: Fetcher, reporter: Reporter) -> None:
        self._make(folder, _Workshop(fetcher, reporter))


class _Workshop:
    """See :class:`voicechat.contract.family.Workshop`."""

    def __init__(self, fetcher: Fetcher, reporter: Reporter) -> None:
        self.fetch = fetcher.fetch
        self.say = reporter.say

    def quantize(self, folder: Path) -> None:
        from voicechat.assemble.w8a8 import quantize_folder

        quantize_folder(folder)


def _source(name: str) -> ThinkerSource:
    try:
        return THINKERS[name]
    except KeyError:
        raise AssembleError(f"model.thinker.source: no {name!r}; there are {', '.join(THINKERS)}") from None
