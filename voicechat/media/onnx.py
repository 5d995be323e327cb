"""Opening small ONNX models that run on one core of this process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


def open_model(path: Path, inputs: set[str]) -> InferenceSession:
    """The model at ``path``, single-threaded and never spinning. Raises ValueError if it can't be read as one that
    takes ``inputs``, FileNotFoundError if it is not there."""
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as errors

    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    try:
        model = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except (
        errors.Fail,
        errors.InvalidArgument,
        errors.InvalidGraph,
        errors.InvalidProtobuf,
        errors.NotImplemented,
    ) as error:
        raise ValueError(f"{path} is no ONNX model: {error}") from None
    found = {value.name for value in model.get_inputs()}
    if found != inputs:
        raise ValueError(f"{path} takes {', '.join(sorted(found))}, not {', '.join(sorted(inputs))}")
    return model
