"""Number formats and the safetensors writer, against torch and safetensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.torch import load_file

from voicechat.assemble.tensors import Job, TensorSpec, bfloat16, from_bfloat16, quantize_rows, write_safetensors

floats = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=8),
    elements=st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False),
)


@given(floats)
def test_bfloat16_rounds_as_torch_does(values: np.ndarray) -> None:
    expected = torch.from_numpy(values).to(torch.bfloat16)
    assert np.array_equal(bfloat16(values), expected.view(torch.uint16).numpy())
    assert np.array_equal(from_bfloat16(bfloat16(values)), expected.float().numpy())


@given(hnp.arrays(np.float32, (3, 16), elements=st.floats(-100, 100, width=32, allow_subnormal=False)))
def test_int8_is_within_half_a_step(values: np.ndarray) -> None:
    quantized, scale = quantize_rows(values)
    assert quantized.dtype == np.int8
    assert scale.shape == (3, 1)
    assert np.array_equal(from_bfloat16(bfloat16(scale)), scale)
    # the scale itself is rounded to bfloat16, so the largest values may be cut by up to 0.2 %
    bound = scale * 0.5 + np.abs(values).max(axis=1, keepdims=True) * 2**-8 + 1e-12
    assert (np.abs(quantized * scale - values) <= bound).all()


def test_written_files_are_read_by_safetensors(tmp_path: Path) -> None:
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    q = np.arange(-6, 6, dtype=np.int8).reshape(3, 4)
    counted: list[int] = []
    write_safetensors(
        tmp_path / "x.safetensors",
        [
            Job((TensorSpec("a", "BF16", (3, 4)),), lambda: (bfloat16(row).tobytes() for row in a)),
            Job(
                (TensorSpec("q", "I8", (3, 4)), TensorSpec("q_scale", "F32", (3, 1))),
                lambda: iter([q.tobytes(), a[:, :1].tobytes()]),
            ),
        ],
        counted.append,
    )
    tensors = load_file(tmp_path / "x.safetensors")
    assert torch.equal(tensors["a"].float(), torch.from_numpy(a))
    assert torch.equal(tensors["q"], torch.from_numpy(q))
    assert torch.equal(tensors["q_scale"], torch.from_numpy(a[:, :1].copy()))
    assert sum(counted) == 24 + 12 + 12


def test_a_job_that_makes_too_few_bytes_is_an_error(tmp_path: Path) -> None:
    job = Job((TensorSpec("a", "I8", (4,)),), lambda: iter([b"123"]))
    with pytest.raises(ValueError, match="a: 3 bytes were made, 4"):
        write_safetensors(tmp_path / "x", [job], lambda _bytes: None)
