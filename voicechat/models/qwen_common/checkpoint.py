"""The weights of a model as published, sharded safetensors, of which a stage reads only its own part."""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from voicechat.models.qwen_common.config import CheckpointError as CheckpointError

log = logging.getLogger(__name__)

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
_REPORT_BYTES = 2 << 30


class Stored(NamedTuple):
    """Where a tensor lies: name of its file, shape, bytes."""

    file: str
    shape: tuple[int, ...]
    size: int


class Checkpoint:
    """The tensors of a folder. Raises :class:`CheckpointError` where files are missing or broken."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._files = self._list_files()
        missing = sorted({name for name in self._files if not (self.folder / name).is_file()})
        if missing:
            named = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
            raise CheckpointError(
                f"{self.folder}: {len(missing)} of {len(self._files)} weight files are missing: {named}. "
                "Download the model again; what is there is kept."
            )
        self.tensors: dict[str, Stored] = {}
        for name in self._files:
            self.tensors |= self._header(name)

    def _list_files(self) -> list[str]:
        index = self.folder / INDEX
        if index.is_file():
            try:
                return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
            except (ValueError, KeyError, AttributeError) as error:
                raise CheckpointError(f"{index} is broken: {error!r}") from None
        if (self.folder / SINGLE).is_file():
            return [SINGLE]
        raise CheckpointError(f"{self.folder} has neither {INDEX} nor {SINGLE}: there are no weights in safetensors")

    def _header(self, name: str) -> dict[str, Stored]:
        """Of one file, by the format's own table: 8 bytes of length, then JSON."""
        path = self.folder / name
        whole = path.stat().st_size
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))
            if 8 + length > whole:
                raise CheckpointError(f"{path} is cut off or no safetensors file. Download it again.")
            try:
                table = json.loads(file.read(length))
            except ValueError:
                raise CheckpointError(f"{path} is no safetensors file. Download it again.") from None
        table.pop("__metadata__", None)
        end = max((facts["data_offsets"][1] for facts in table.values()), default=0)
        if 8 + length + end != whole:
            raise CheckpointError(
                f"{path} has {whole} bytes where its table says {8 + length + end}. Download it again."
            )
        return {
            key: Stored(name, tuple(facts["shape"]), facts["data_offsets"][1] - facts["data_offsets"][0])
            for key, facts in table.items()
        }

    def names(self, prefixes: Sequence[str]) -> list[str]:
        """Names that begin with one of ``prefixes``, file by file."""
        chosen = [name for name in self.tensors if name.startswith(tuple(prefixes))]
        return sorted(chosen, key=lambda name: (self.tensors[name].file, name))

    def bytes_of(self, prefixes: Sequence[str]) -> int:
        """Size of a part."""
        return sum(self.tensors[name].size for name in self.names(prefixes))

    def read(
        self, prefixes: Sequence[str], *, label: str, say: Callable[[str], None] = log.info
    ) -> Iterator[tuple[str, Tensor]]:
        """The tensors of a part, one after another, on the CPU; ``say`` hears how far it is every 2 GiB.

        Raises :class:`CheckpointError` if there are none.
        """
        from safetensors import safe_open

        names = self.names(prefixes)
        if not names:
            wanted = ", ".join(prefixes)
            raise CheckpointError(f"{self.folder} has no {label}: none of its tensors begins with {wanted}")
        total = self.bytes_of(prefixes)
        done = said = 0
        with ExitStack() as stack:
            current, opened = "", None
            for name in names:
                stored = self.tensors[name]
                if stored.file != current:
                    stack.close()
                    opened = stack.enter_context(safe_open(str(self.folder / stored.file), "pt"))
                    current = stored.file
                assert opened is not None
                yield name, opened.get_tensor(name)
                done += stored.size
                if done - said >= _REPORT_BYTES:
                    said = done
                    say(f"{label}: {done / 2**30:.1f} of {total / 2**30:.1f} GiB read")

    def rows(self, name: str, ids: Sequence[int]) -> Tensor:
        """Some rows of a matrix; only they are read. Raises :class:`CheckpointError` if it isn't there."""
        from safetensors import safe_open

        if name not in self.tensors:
            raise CheckpointError(f"{self.folder} has no tensor {name}")
        with safe_open(str(self.folder / self.tensors[name].file), "pt") as opened:
            matrix = opened.get_slice(name)
            return torch.cat([matrix[row : row + 1] for row in ids])


def load_part(net: torch.nn.Module, checkpoint: Checkpoint, prefix: str, *, label: str) -> None:
    """Load a module whose parameters are named as in the checkpoint behind ``prefix``, in the module's own type.

    Raises :class:`CheckpointError` where names or shapes differ.
    """
    wanted = dict(net.named_parameters())
    for name, tensor in checkpoint.read([prefix], label=label):
        parameter = wanted.pop(name.removeprefix(prefix), None)
        if parameter is None:
            raise CheckpointError(f"{checkpoint.folder}: {label} has no parameter for the tensor {name}")
        if parameter.shape != tensor.shape:
            raise CheckpointError(f"{name} has shape {list(tensor.shape)}, not {list(parameter.shape)}")
        parameter.data.copy_(tensor)
    if wanted:
        raise CheckpointError(f"{checkpoint.folder}: {label} misses {len(wanted)} tensors, as {prefix}{min(wanted)}")
