"""Which row of a text is spoken at each step of its sound, and what a step sees of the rows around it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from voicechat.models.embedded.talker import ADVANCES, STEP_SAMPLES, symbol_windows

Ints = npt.NDArray[np.int64]


def pointers(ends: npt.NDArray[np.int32], steps: int) -> Ints | None:
    """Row under the centre of each step, and the last row for the step that ends the text: ``steps + 1`` values.

    Where rows are shorter than a step can pass (two at once), the pointer lags behind for a step or two. ``None`` if
    it would still lag when the sound is over.
    """
    centres = np.arange(steps) * STEP_SAMPLES + STEP_SAMPLES // 2
    rows = np.minimum(np.searchsorted(ends, centres, side="right"), len(ends) - 1)
    where = np.append(rows, len(ends) - 1).astype(np.int64)
    fast = np.diff(where)
    while len(fast) and fast.max() >= ADVANCES:
        first = int(np.argmax(fast >= ADVANCES))
        where[first + 1] = where[first] + ADVANCES - 1
        fast = np.diff(where)
        if first == len(fast) - 1:
            return None
    return where


def windows(symbols: npt.NDArray[Any], rows: Ints) -> npt.NDArray[np.uint8]:
    """The symbols [N, 9] of a text that are seen from its ``rows`` [N]."""
    seen = symbol_windows(torch.from_numpy(symbols.astype(np.int64)))
    return seen.numpy().astype(np.uint8)[rows]
