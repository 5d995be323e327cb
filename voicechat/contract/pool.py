"""The data plane: one block of shared memory, allocated at start and never grown.

A *slot* is leased to one response at a time. In it lie

- ``hidden``: the Thinker's hidden rows (bfloat16, kept as ``uint16`` bits here); of what they are made the family says.
  Between engines on a GPU they lie in device memory instead; see :mod:`voicechat.stages.rows`;
- ``text``: the Talker's text rows, some integers each, in columns that the family gives a meaning;
- ``extra``: what the Talker's worker adds to each token of a request, if the family has it add something;
- ``pcm``: a ring of int16 samples through which the VoiceBox hands its sound to the server.

A *bay* is leased for one sound on its way to the ears, or one sound or image on its way to the Thinker. Only positions
and counts travel on the control plane.

Single-writer rule: each lane of a slot has one writing process. A counter is raised only after the rows that it
announces are written, and readers look at it first. The Talker's scheduler and worker look at counters whenever they
please, without a message in between, so this rests on a processor that keeps the order of stores and that of loads, as
x86-64 does. Others (AArch64) may show a counter before its rows, and Python has no fence to forbid it: :class:`Pool`
refuses to be made there.
"""

from __future__ import annotations

import errno
import os
import platform
import secrets
import time
from collections.abc import Sequence
from multiprocessing import shared_memory
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

_ALIGN = 4096


def check_machine(machine: str) -> None:
    """Raise OSError for a processor on which stores may be seen in another order than they were made in."""
    if machine.lower() not in ("x86_64", "amd64"):
        raise OSError(errno.ENOTSUP, f"voicechat runs on x86-64 only: on {machine} shared memory gives no such order")


class PoolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Size of a pool, and the name under which other processes open it.

    ``hidden_size`` is the width of a hidden row, ``max_rows`` the most of them in a reply, ``max_text_rows`` the text
    rows at once, of ``text_columns`` integers; ``extra_bytes`` are added to each of a request's ``max_steps`` tokens.
    ``pcm_samples`` is the length of a slot's sound ring, ``bay_samples`` the longest sound (16 kHz) for the ears.
    ``rows`` says where hidden rows may lie: in this block (``host``), on a GPU (``device``), or, if the keeper finds
    that the GPUs don't reach each other, either (``either``).
    """

    name: str
    slots: int
    hidden_size: int
    max_rows: int
    max_text_rows: int
    pcm_samples: int
    bays: int
    bay_samples: int
    text_columns: int = 2
    extra_bytes: int = 0
    max_steps: int = 0
    rows: Literal["host", "device", "either"] = "host"

    @staticmethod
    def new_name() -> str:
        """A name that no other pool on this machine has."""
        return f"voicechat-{secrets.token_hex(6)}"


class Pool:
    """A mapped pool. The attributes are numpy views into shared memory; see the module's text for their meaning.

    ``generation``, ``hidden_ready``, ``text_ready``, ``text_final``, ``thinker_ack``, ``talker_ack``:
    int64 ``[slots]``;
    ``hidden``: uint16 ``[slots, max_rows, hidden_size]``; ``text``: int32 ``[slots, max_text_rows, text_columns]``;
    ``extra``: uint8 ``[slots, max_steps, extra_bytes]``; ``pcm``: int16 ``[slots, pcm_samples]``; ``bays``: float32
    ``[bays, bay_samples]``; ``counters``: int64 ``[4]``: hidden rows written, nanoseconds of writing, hidden rows read,
    nanoseconds of reading (on a GPU: nanoseconds until the work was handed to the device);
    ``row_faults``: int64 ``[1]``: rows that were read on a GPU and were not those of the reader's lease, always 0;
    ``keeper``: int64 ``[3]`` and ``keeper_handle``: uint8 ``[64]``: see :mod:`voicechat.stages.keeper`.
    """

    def __init__(self, spec: PoolSpec, *, create: bool = False) -> None:
        self.spec = spec
        fields: list[tuple[str, npt.DTypeLike, tuple[int, ...]]] = [
            ("generation", np.int64, (spec.slots,)),
            ("hidden_ready", np.int64, (spec.slots,)),
            ("text_ready", np.int64, (spec.slots,)),
            ("text_final", np.int64, (spec.slots,)),
            ("thinker_ack", np.int64, (spec.slots,)),
            ("talker_ack", np.int64, (spec.slots,)),
            ("counters", np.int64, (4,)),
            ("row_faults", np.int64, (1,)),
            ("keeper", np.int64, (3,)),
            ("keeper_handle", np.uint8, (64,)),
            ("hidden", np.uint16, (spec.slots, 0 if spec.rows == "device" else spec.max_rows, spec.hidden_size)),
            ("text", np.int32, (spec.slots, spec.max_text_rows, spec.text_columns)),
            ("extra", np.uint8, (spec.slots, spec.max_steps if spec.extra_bytes else 0, spec.extra_bytes)),
            ("pcm", np.int16, (spec.slots, spec.pcm_samples)),
            ("bays", np.float32, (spec.bays, spec.bay_samples)),
        ]
        offsets, size = [], 0
        for _, dtype, shape in fields:
            offsets.append(size)
            size += -(-int(np.prod(shape)) * np.dtype(dtype).itemsize // _ALIGN) * _ALIGN
        if create:
            check_machine(platform.machine())
        self._memory = shared_memory.SharedMemory(name=spec.name, create=create, size=size if create else 0)
        self._owner = create
        if create:
            self._allocate(size)
        views = {
            name: np.ndarray(shape, dtype, buffer=self._memory.buf, offset=offset)
            for (name, dtype, shape), offset in zip(fields, offsets, strict=True)
        }
        self.generation: npt.NDArray[np.int64] = views["generation"]
        self.hidden_ready: npt.NDArray[np.int64] = views["hidden_ready"]
        self.text_ready: npt.NDArray[np.int64] = views["text_ready"]
        self.text_final: npt.NDArray[np.int64] = views["text_final"]
        self.thinker_ack: npt.NDArray[np.int64] = views["thinker_ack"]
        self.talker_ack: npt.NDArray[np.int64] = views["talker_ack"]
        self.counters: npt.NDArray[np.int64] = views["counters"]
        self.row_faults: npt.NDArray[np.int64] = views["row_faults"]
        self.keeper: npt.NDArray[np.int64] = views["keeper"]
        self.keeper_handle: npt.NDArray[np.uint8] = views["keeper_handle"]
        self.hidden: npt.NDArray[np.uint16] = views["hidden"]
        self.text: npt.NDArray[np.int32] = views["text"]
        self.extra: npt.NDArray[np.uint8] = views["extra"]
        self.pcm: npt.NDArray[np.int16] = views["pcm"]
        self.bays: npt.NDArray[np.float32] = views["bays"]
        self.size = size

    def _allocate(self, size: int) -> None:
        """Take every page now: a /dev/shm that is too small must fail at start, not kill the server in a reply."""
        try:
            os.posix_fallocate(getattr(self._memory, "_fd"), 0, size)  # noqa: B009 - private, but of all versions
        except OSError as error:
            self.close()
            text = f"shared memory is too small for a pool of {-(-size >> 20)} MiB: {error.strerror}"
            raise OSError(error.errno, text) from None

    def begin(self, slot: int, generation: int) -> None:
        """Make a free slot ready for its next lease. Only the lease holder's side calls this."""
        self.hidden_ready[slot] = 0
        self.text_ready[slot] = 0
        self.text_final[slot] = 0
        self.thinker_ack[slot] = 0
        self.talker_ack[slot] = 0
        self.generation[slot] = generation

    def append_text(self, slot: int, rows: Sequence[Sequence[int]], *, final: bool) -> None:
        """Write text rows behind those that are there and announce them; ``final`` closes the text.

        Raises ValueError if the lane is full.
        """
        start = int(self.text_ready[slot])
        end = start + len(rows)
        if end > self.spec.max_text_rows:
            raise ValueError(f"a sentence has more text rows than the pool has room for ({self.spec.max_text_rows})")
        if rows:
            self.text[slot, start:end] = rows
            self.text_ready[slot] = end
        if final:
            self.text_final[slot] = 1

    def drop_text(self, slot: int, count: int) -> None:
        """Forget the first ``count`` text rows; the others move up.

        Only between two requests of the Talker: a step of the old one that still runs may read anything, and nobody
        uses what it makes.
        """
        left = self.text[slot, count : int(self.text_ready[slot])].copy()
        self.text_ready[slot] = 0
        self.text[slot, : len(left)] = left
        self.text_ready[slot] = len(left)

    def read_hidden(self, slots: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> npt.NDArray[np.uint16]:
        """Copies of hidden rows ``[n, hidden_size]``, one for each of ``slots`` and ``rows`` ``[n]``; counted."""
        started = time.monotonic_ns()
        found: npt.NDArray[np.uint16] = self.hidden[slots, rows]
        self.counters[2] += len(slots)
        self.counters[3] += time.monotonic_ns() - started
        return found

    def write_bay(self, bay: int, data: npt.NDArray[Any]) -> int:
        """Put a sound or the bytes of a file into a bay; how many bytes that are. Raises ValueError if it is full."""
        raw = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
        if len(raw) > self.bay_bytes:
            raise ValueError(f"{len(raw)} bytes do not fit a bay of {self.bay_bytes}")
        self.bays[bay].view(np.uint8)[: len(raw)] = raw
        return len(raw)

    def read_bay(self, bay: int, size: int) -> bytes:
        """A copy of the first ``size`` bytes of a bay."""
        return self.bays[bay].view(np.uint8)[:size].tobytes()

    @property
    def bay_bytes(self) -> int:
        """Most bytes that a bay takes."""
        return 4 * self.spec.bay_samples

    def write_pcm(self, slot: int, start: int, samples: npt.NDArray[np.int16]) -> None:
        """Write samples into the ring, from stream position ``start`` on."""
        for at, part in self._ring(start, len(samples)):
            self.pcm[slot, at] = samples[part]

    def read_pcm(self, slot: int, start: int, count: int) -> npt.NDArray[np.int16]:
        """A copy of ``count`` samples from stream position ``start`` on."""
        out = np.empty(count, np.int16)
        for at, part in self._ring(start, count):
            out[part] = self.pcm[slot, at]
        return out

    def _ring(self, start: int, count: int) -> list[tuple[slice, slice]]:
        length = self.spec.pcm_samples
        if count > length:
            raise ValueError(f"{count} samples do not fit a ring of {length}")
        at = start % length
        first = min(count, length - at)
        pieces = [(slice(at, at + first), slice(0, first))]
        if first < count:
            pieces.append((slice(0, count - first), slice(first, count)))
        return pieces

    def close(self) -> None:
        """Unmap, and remove the memory if this object created it. The views must not be used afterwards. Idempotent."""
        for name in [key for key, value in vars(self).items() if isinstance(value, np.ndarray)]:
            delattr(self, name)
        try:
            self._memory.close()
        except BufferError:
            # Someone still holds a view (a torch tensor, say); the mapping goes with the process.
            pass
        if self._owner:
            self._owner = False
            self._memory.unlink()
