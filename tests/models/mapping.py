"""Whether an engine's model takes each parameter of transformers' model once, with its shape: on the meta device.

    python -m tests.models.mapping FAMILY STAGE FOLDER

``FOLDER`` holds ``config.json`` of the published size; STAGE is thinker or talker. Prints how many tensors were given
and how many parameters they filled. Whatever is left over, missing, filled twice or of another shape ends it with an
error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

FILLS = {"qwen2_5_omni": "Qwen2_5Omni", "qwen3_omni": "Qwen3OmniMoe"}


class Filled(TorchDispatchMode):
    """Counts the numbers that are copied into parameters; each copy has to be of its place's shape."""

    numbers = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.copy_.default:
            assert args[0].shape == args[1].shape, (args[0].shape, args[1].shape)
            self.numbers += args[0].numel()
        return function(*args, **(kwargs or {}))


def published(kind: str, config: dict[str, Any], folder: Path) -> dict[str, Tensor]:
    """The tensors of the published files, on the meta device: experts one by one. Fills in ``config.json``."""
    import transformers

    with torch.device("meta"):
        made = getattr(transformers, f"{kind}Config")(**config)
        made.save_pretrained(str(folder))
        model = getattr(transformers, f"{kind}ForConditionalGeneration")(made).to(torch.bfloat16)
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        stem, _, last = name.rpartition(".")
        if stem.endswith(".experts") and parameter.ndim == 3:
            for number, expert in enumerate(parameter.detach()):
                if last == "gate_up_proj":
                    gate, up = expert.chunk(2)
                    tensors |= {f"{stem}.{number}.gate_proj.weight": gate, f"{stem}.{number}.up_proj.weight": up}
                else:
                    tensors[f"{stem}.{number}.{last}.weight"] = expert
        else:
            tensors[name] = parameter.detach()
    return tensors


def main(family: str, stage: str, folder: str) -> None:
    """See above."""
    from voicechat.models.qwen_common.vision import find_torchvision

    find_torchvision()
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.engine.arg_utils import EngineArgs

    from voicechat.models.registry import find_family
    from voicechat.stages.vllm.adapter import know_architectures

    tensors = published(FILLS[family], json.loads((Path(folder) / "config.json").read_text()), Path(folder))
    given = {"folder": folder, "dtype": "bfloat16", "random": False, "quantization": None, "images": 1, "sounds": 1}
    given |= {"speakers": [0], "likeliest": True, "max_steps": 16}
    made = getattr(find_family(family), stage)(given)
    know_architectures(made.engine.architectures)
    read: list[str] = []

    class Published:
        def __init__(self, folder: Path | str) -> None:
            self.folder = Path(folder)

        def read(self, prefixes: Sequence[str], *, label: str) -> Iterator[tuple[str, Tensor]]:
            for name, tensor in tensors.items():
                if name.startswith(tuple(prefixes)):
                    read.append(name)
                    yield name, tensor

    options = {name: value for name, value in made.engine.options.items() if name != "load_format"}
    engine = EngineArgs(
        model=folder, dtype="bfloat16", skip_tokenizer_init=True, enforce_eager=True, max_model_len=512,
        enable_prompt_embeds=stage == "talker", **options,
    ).create_engine_config()  # fmt: skip
    (place,) = made.engine.architectures.values()
    module, _, name = place.partition(":")
    with set_current_vllm_config(engine), tempfile.TemporaryDirectory() as meeting:
        init_distributed_environment(1, 0, f"file://{meeting}/meeting", 0, "gloo")
        initialize_model_parallel()
        source = __import__(module, fromlist=[name])
        source.Checkpoint = Published
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("meta"):
            model = getattr(source, name)(vllm_config=engine)
            with Filled() as filled:
                loaded = model.load_weights(iter(()))
    parameters = dict(model.named_parameters())
    assert set(parameters) == loaded, sorted(set(parameters) ^ loaded)[:5]
    wanted = [name for name in tensors if name.startswith(f"{stage}.")]
    assert [name for name in read if name.startswith(f"{stage}.")] == wanted
    numbers = sum(tensors[name].numel() for name in read)
    assert numbers == sum(parameter.numel() for parameter in parameters.values()) == filled.numbers, (
        numbers, sum(parameter.numel() for parameter in parameters.values()), filled.numbers,
    )  # fmt: skip
    print(f"{len(read)} tensors, {len(parameters)} parameters, {numbers} numbers")


def count_mapped(family: str, stage: str, config: dict[str, Any], folder: Path) -> int:
    """How many numbers were mapped, by a process of its own. Fails with its words."""
    (folder / "config.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "tests.models.mapping", family, stage, str(folder)]
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"}
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return int(done.stdout.split()[-2])


if __name__ == "__main__":
    main(*sys.argv[1:])
