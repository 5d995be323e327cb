"""Ears that the operator chooses: any Whisper, in CTranslate2's or Hugging Face's form, here or on the hub."""

from __future__ import annotations

import json
import re
from pathlib import Path

from voicechat.assemble.progress import Reporter
from voicechat.assemble.store import AssembleError

EARS_RECIPE = 1
"""Raise this when the conversion changes, so that folders made before are made again."""
_SIZES = re.compile(r"(tiny|base|small|medium)(\.en)?|large-v[123]")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_FILES = ("*.json", "*.txt", "model.bin", "*.safetensors", "pytorch_model*.bin")
_KEPT = ("tokenizer.json", "preprocessor_config.json")
BINARY = "model.bin"


def local_folder(model: str) -> Path | None:
    """The folder that a setting names; None for a name of the hub. Raises AssembleError for what is neither."""
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if model.startswith(("/", ".", "~")) or not (_SIZES.fullmatch(model) or _HUB_NAME.fullmatch(model)):
        raise AssembleError(
            f"ears.model: there is no folder {path}, and it is no name of a model: small, large-v3 or OWNER/NAME, say"
        )
    return None


def is_converted(folder: Path) -> bool:
    """True for CTranslate2's form, False for Hugging Face's. Raises AssembleError for neither."""
    if (folder / BINARY).is_file():
        return True
    try:
        kind = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
    except (OSError, ValueError, AttributeError):
        kind = None
    if kind != "whisper":
        said = f"a model of type '{kind}'" if kind else "no model"
        raise AssembleError(f"ears.model: {folder} holds {said}, not a Whisper of CTranslate2's or Hugging Face's form")
    if not (folder / "tokenizer.json").is_file():
        raise AssembleError(f"ears.model: {folder} has no tokenizer.json, without which nothing it hears is text")
    return False


def convert(source: Path, target: Path, reporter: Reporter) -> None:
    """Write Hugging Face's form in ``source`` in CTranslate2's into the empty folder ``target``."""
    from ctranslate2.converters import TransformersConverter

    reporter.say(f"converting the ears of {source}")
    kept = [name for name in _KEPT if (source / name).is_file()]
    try:
        TransformersConverter(str(source), copy_files=kept).convert(str(target), quantization="float16", force=True)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise AssembleError(f"ears.model: {source} can't be converted: {error}") from None


def download(model: str, target: Path, hub_url: str, reporter: Reporter) -> None:
    """Bring a model of the hub, in either form, into ``target``. Raises AssembleError."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    name = f"Systran/faster-whisper-{model}" if _SIZES.fullmatch(model) else model
    reporter.say(f"downloading the ears {name}")
    try:
        snapshot_download(name, local_dir=target, endpoint=hub_url, allow_patterns=list(_FILES))
    except RepositoryNotFoundError:
        raise AssembleError(f"ears.model: there is no model {name} at {hub_url}") from None
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise AssembleError(f"ears.model: {name} can't be had from {hub_url}: {error}") from None
