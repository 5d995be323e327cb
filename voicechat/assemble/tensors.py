"""Plain number formats and a streaming safetensors writer: numpy only, one block of rows in memory at a time."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

_BYTES = {"BF16": 2, "I8": 1, "F32": 4, "U8": 1, "I32": 4}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, safetensors dtype and shape of one tensor to be written."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * _BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Job:
    """Tensors that are made together; ``blocks`` yields their bytes, tensor after tensor, in any split."""

    specs: tuple[TensorSpec, ...]
    blocks: Callable[[], Iterator[bytes]]


def bfloat16(values: Floats) -> npt.NDArray[np.uint16]:
    """The bits of ``values`` in bfloat16, rounded to nearest even (as PyTorch does). NaN is not expected."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def from_bfloat16(bits: npt.NDArray[np.uint16]) -> Floats:
    """The float32 values of bfloat16 bits."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def quantize_rows(values: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """Symmetric int8 per row (output channel): ``values[o, i] ~ q[o, i] * scale[o, 0]``; scales exact in bfloat16."""
    scale = np.abs(values).max(axis=1, keepdims=True) / np.float32(127.0)
    scale = from_bfloat16(bfloat16(np.maximum(scale, np.float32(1e-12))))
    quantized = np.clip(np.rint(values / scale), -127, 127).astype(np.int8)
    return quantized, scale


def write_safetensors(path: Path, jobs: Iterable[Job], progress: Callable[[int], None]) -> None:
    """Write the jobs' tensors to ``path``; ``progress`` is called with the bytes of every block."""
    jobs = list(jobs)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for spec in (spec for job in jobs for spec in job.specs):
        header[spec.name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": [offset, offset + spec.nbytes],
        }
        offset += spec.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for job in jobs:
            written = 0
            for block in job.blocks():
                file.write(block)
                written += len(block)
                progress(len(block))
            expected = sum(spec.nbytes for spec in job.specs)
            if written != expected:
                raise ValueError(f"{job.specs[0].name}: {written} bytes were made, {expected} were announced")
