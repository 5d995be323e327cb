"""The voices of a published model: ``spk_dict.pt``, a table of tensors and numbers that torch wrote. No torch here."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

from voicechat.models.qwen_common.config import CheckpointError

FILE = "spk_dict.pt"
_TENSORS = {
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch", "FloatStorage"),
    ("torch", "BFloat16Storage"),
    ("torch", "HalfStorage"),
    ("torch", "LongStorage"),
}


class _Table(pickle.Unpickler):
    """Reads the table's names and numbers and leaves the tensors out; nothing but tables and tensors is accepted."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        if (module, name) in _TENSORS:
            return lambda *_: None
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a table of voices")

    def persistent_load(self, pid: Any) -> Any:
        return None


def speaker_tokens(folder: Path) -> dict[str, int]:
    """Names of the voices in small letters, and the token that begins the text in each.

    Raises :class:`CheckpointError`.
    """
    path = folder / FILE
    try:
        with zipfile.ZipFile(path) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
            table = _Table(io.BytesIO(archive.read(name))).load()
        return {voice.lower(): int(facts["bos_token"]) for voice, facts in table.items()}
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing: it holds the voices. Download the model again.") from None
    except (OSError, zipfile.BadZipFile, pickle.UnpicklingError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is no table of voices ({error}). Download it again.") from None
    except AttributeError as error:
        raise CheckpointError(f"{path} is no table of voices ({error}). Download it again.") from None
