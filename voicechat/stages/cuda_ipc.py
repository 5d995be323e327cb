"""Device memory that several processes share: CUDA's driver calls for it, and a tensor over what they return.

A plain allocation is exported as a handle of 64 bytes and opened elsewhere under another address; both then see one
memory. It has to outlive every process that opened it, so a process of its own keeps it: see
:mod:`voicechat.stages.keeper`.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

HANDLE_BYTES = 64
_LAZY_PEER_ACCESS = 1


class CudaError(RuntimeError):
    """A driver call failed; ``str()`` names it and says why."""


class _Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_ubyte * HANDLE_BYTES)]


class Driver:
    """The calls that torch does not offer. The device of each call is torch's current one."""

    def __init__(self, library: Any = None) -> None:
        self._library = library if library is not None else ctypes.CDLL("libcuda.so.1")
        self._library.cuIpcOpenMemHandle_v2.argtypes = [ctypes.POINTER(ctypes.c_uint64), _Handle, ctypes.c_uint]

    def allocate(self, size: int) -> int:
        """Address of ``size`` new bytes."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def free(self, address: int) -> None:
        """Give back what :meth:`allocate` returned."""
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def export(self, address: int) -> bytes:
        """Handle of an allocation for other processes of this machine."""
        handle = _Handle()
        self._call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(address))
        return bytes(handle.reserved)

    def open(self, handle: bytes) -> int:
        """Address, in this process, of an allocation that another one exported; peer GPUs get access to it."""
        if len(handle) != HANDLE_BYTES:
            raise ValueError(f"a handle has {HANDLE_BYTES} bytes, not {len(handle)}")
        address = ctypes.c_uint64()
        found = _Handle((ctypes.c_ubyte * HANDLE_BYTES).from_buffer_copy(handle))
        self._call("cuIpcOpenMemHandle_v2", ctypes.byref(address), found, ctypes.c_uint(_LAZY_PEER_ACCESS))
        return address.value

    def close(self, address: int) -> None:
        """Unmap what :meth:`open` returned."""
        self._call("cuIpcCloseMemHandle", ctypes.c_uint64(address))

    def _call(self, name: str, *arguments: Any) -> None:
        code = int(getattr(self._library, name)(*arguments))
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(code, ctypes.byref(text))
            why = text.value.decode() if text.value else "unknown error"
            raise CudaError(f"{name}: {why} (CUDA error {code})")


class _Bytes:
    """Foreign device memory in the form in which torch takes it without a copy."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


def as_tensor(address: int, size: int, device: torch.device) -> torch.Tensor:
    """uint8 ``[size]`` over device memory; nobody frees it. Raises CudaError if torch would copy it."""
    tensor = torch.as_tensor(_Bytes(address, size), device=device)
    if tensor.data_ptr() != address:
        raise CudaError(f"torch did not take the memory at {address:#x} as memory of {device}")
    return tensor
