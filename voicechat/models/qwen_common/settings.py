"""The section ``model`` of the settings for the Qwen-Omni families, and where their folders come from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from voicechat.contract.family import FamilyError, Folder, GivenFolder, MadeFolder, Workshop
from voicechat.contract.model_settings import ModelSettings

SYSTEM_PROMPT = (
    "You are Qwen, a virtual human developed by the Qwen Team, Alibaba Group, capable of perceiving auditory and "
    "visual inputs, as well as generating text and speech."
)
"""The published models were trained with it: without it their voices are not what they should be."""
_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.pt")
_GIB = 1 << 30
DOWNLOADS = {
    "Qwen/Qwen2.5-Omni-3B": 12 * _GIB,
    "Qwen/Qwen2.5-Omni-7B": 23 * _GIB,
    "Qwen/Qwen3-Omni-30B-A3B-Instruct": 71 * _GIB,
}
"""Published models, and what they take on disk."""


class QwenOmniSettings(ModelSettings):
    """Which weights are served under which name."""

    source: str = Field(
        default="", description="a folder with the published files, or the model's name on the Hugging Face hub"
    )
    revision: str = Field(default="main", description="of the model on the hub")
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    quantization: str | None = Field(
        default=None, description="of the Thinker's weights, as vLLM names it (fp8, …); unset: as they are published"
    )
    random_weights: bool = Field(
        default=False, description="run the shapes of `source` with random weights: to measure speed without weights"
    )
    voices: tuple[str, ...] = Field(default=(), description="voices to offer, the default first; unset: all")
    system_prompt: str | None = Field(
        default=None, description="system turn when the caller sends none; unset: the one the model was trained with"
    )
    further_codes: Literal["drawn", "likeliest"] = Field(
        default="drawn", description="how Qwen3-Omni's code predictor chooses; likeliest makes a greedy Talker greedy"
    )
    max_steps: int = Field(default=4096, ge=1, description="speech steps of one reply at most")
    images: int = Field(default=8, ge=0, description="images of one request at most")
    sounds: int = Field(default=16, ge=0, description="sounds of one request at most")


def source_folder(model: QwenOmniSettings) -> Folder:
    """Where the published files are, or how they are fetched. Raises FamilyError if nothing is named."""
    if not model.source:
        raise FamilyError("model.source: name a folder with the published files, or the model's name on the hub")
    path = Path(model.source).expanduser().absolute()
    if (path / "config.json").is_file():
        return GivenFolder(path)
    if path.is_dir() or model.source.count("/") != 1 or model.source.startswith((".", "/", "~")):
        raise FamilyError(f"model.source: {path} has no config.json; it should hold the files of a published model")
    key = hashlib.sha256(f"{model.source}@{model.revision}".encode()).hexdigest()[:8]
    recipe = {"repository": model.source, "revision": model.revision}

    def make(folder: Path, workshop: Workshop) -> None:
        workshop.say(f"download {model.source} from the Hugging Face hub")
        download(model.source, model.revision, folder)

    name = model.source.replace("/", "--")
    return MadeFolder(f"models/{name}-{key}", recipe, DOWNLOADS.get(model.source, 30 * _GIB), make)


def download(repository: str, revision: str, folder: Path) -> None:
    """Fetch a model's files, with the hub client's own progress. Raises FamilyError with what to do."""
    import os

    os.environ.pop("HF_HUB_OFFLINE", None)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        snapshot_download(repository, revision=revision, local_dir=str(folder), allow_patterns=list(_FILES))
    except RepositoryNotFoundError:
        raise FamilyError(f"the Hugging Face hub has no model {repository!r} (or asks for a token: HF_TOKEN)") from None
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise FamilyError(
            f"{repository} could not be downloaded ({str(error).splitlines()[0]}). Without a network, copy its files "
            "to this machine and name their folder: --set model.source=FOLDER"
        ) from error


def offered_voices(model: QwenOmniSettings, known: Mapping[str, Any], first: str) -> tuple[str, ...]:
    """Names of the voices to offer. Raises FamilyError for one that the model does not have.

    ``first``: the published model's own default; a table in a JSON file has no order that could say it.
    """
    names = (*(name for name in known if name == first), *sorted(name for name in known if name != first))
    wrong = [name for name in model.voices if name not in known]
    if wrong or not names:
        raise FamilyError(f"model.voices: there is no voice {', '.join(wrong)}; there are {', '.join(names)}")
    return model.voices or names
