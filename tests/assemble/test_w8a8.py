"""Rounding to int8."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from voicechat.assemble.w8a8 import quantize_rows


@settings(deadline=None)
@given(hnp.arrays(np.float32, (3, 16), elements=st.floats(-100, 100, width=32, allow_subnormal=False)))
def test_int8_is_within_half_a_step(array: np.ndarray) -> None:
    values = torch.from_numpy(array)
    quantized, scale = quantize_rows(values)
    assert (quantized.dtype, scale.dtype) == (torch.int8, torch.bfloat16)
    assert scale.shape == (3, 1)
    # the scale itself is rounded to bfloat16, so the largest values may be cut by up to 0.2 %
    bound = scale.float() * 0.5 + values.abs().amax(1, keepdim=True) * 2**-8 + 1e-12
    assert ((quantized * scale.float() - values).abs() <= bound).all()
