"""What goes from the processor to a device."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor


def to_device(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """A copy of ``array`` on ``device``, ordered on the current stream; the caller may reuse ``array`` at once.

    The pinned block in between goes back to torch's allocator, which does not hand it out before the copy is over.
    """
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor.clone()
    return tensor.pin_memory().to(device, non_blocking=True)
