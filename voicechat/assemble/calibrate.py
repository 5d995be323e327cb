"""``python -m voicechat.assemble.calibrate NAME FOLDER``: measure a Thinker and write its smoothing factors.

``FOLDER`` is the Thinker in bfloat16 (``voicechat assemble --set model.thinker.quantization=none``). Needs about four
times its size in memory and half a minute. The file goes into the package, so this is only run when a Thinker is added.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from voicechat.assemble.smoothing import FOLDER, Floats, Smoothing, balance, save

_SYSTEM = "You are a friendly voice assistant. Answer in one or two plain spoken sentences, without lists or markdown."
_TURNS = (
    ("Hello! How are you doing today?", "I am doing well, thank you. What would you like to talk about?"),
    ("Why is the sky blue?", "Air scatters blue light more than red light, so we see blue from every direction."),
    ("Can you tell me a short story?", "Once upon a time a small fox lived at the edge of a forest. Every night she "
     "looked at the stars and wondered who else was looking."),
    ("What is seven times eight?", "Seven times eight is fifty-six."),
    ("Who was the first person on the moon?", "Neil Armstrong was the first to walk on the moon, in July 1969."),
    ("How can I sleep better?", "Go to bed at the same time every day, keep the room dark, and avoid coffee at night."),
    ("What do bees do?", "Bees collect nectar and pollen from flowers, and so they help plants to make seeds."),
    ("Give me an idea for dinner.", "You could make pasta with tomatoes, garlic and basil; it takes twenty minutes."),
    ("What's winter like in Canada?", "Winters in Canada are long and cold, with a lot of snow in most regions."),
    ("I feel a bit sad today.", "I'm sorry to hear that. Would you like to tell me what happened?"),
    ("Explain gravity to a child.", "Gravity is like an invisible hand that holds everything down on the ground."),
    ("Is an elephant bigger than a whale?", "No, a blue whale can weigh as much as thirty elephants."),
)  # fmt: skip


class _Watch:
    """Statistics of one module's inputs over all tokens."""

    def __init__(self, module: nn.Module) -> None:
        self.largest: Tensor | None = None
        self.squares: Tensor | None = None
        self.tokens = 0
        module.register_forward_pre_hook(self._see)

    def _see(self, _module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        values = inputs[0].flatten(0, -2).abs()
        largest = values.amax(0)
        squares = (values / values.amax(1, keepdim=True)).square().sum(0)
        self.largest = largest if self.largest is None else torch.maximum(self.largest, largest)
        self.squares = squares if self.squares is None else self.squares + squares
        self.tokens += len(values)

    def factors(self, *layers: nn.Module) -> Floats:
        """Factors of the inputs that these linear layers share."""
        assert self.largest is not None
        assert self.squares is not None
        columns = torch.stack([layer.weight.abs().amax(0) for layer in layers]).amax(0)
        usual = (self.squares / self.tokens).sqrt()
        return balance(self.largest.numpy(), usual.numpy(), columns.numpy())


@torch.no_grad()
def measure(folder: Path) -> Smoothing:
    """Run the Thinker of ``folder`` over a few turns of conversation and return its factors."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    blocks = model.model.layers
    watches = [
        (_Watch(block.self_attn.q_proj), _Watch(block.mlp.gate_proj), _Watch(block.mlp.down_proj)) for block in blocks
    ]
    for question, answer in _TURNS:
        turns = [("system", _SYSTEM), ("user", question), ("assistant", answer)]
        messages = [{"role": role, "content": text} for role, text in turns]
        model(**tokenizer.apply_chat_template(messages, return_tensors="pt", return_dict=True))
    attention, mlp, down = [], [], []
    for block, (before_attention, before_mlp, before_down) in zip(blocks, watches, strict=True):
        attention.append(
            before_attention.factors(block.self_attn.q_proj, block.self_attn.k_proj, block.self_attn.v_proj)
        )
        mlp.append(before_mlp.factors(block.mlp.gate_proj, block.mlp.up_proj))
        down.append(before_down.factors(block.mlp.down_proj))
    return Smoothing(np.stack(attention), np.stack(mlp), np.stack(down))


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m voicechat.assemble.calibrate", description=__doc__)
    parser.add_argument("name", help="the Thinker's name in the catalogue")
    parser.add_argument("folder", type=Path, help="the Thinker in bfloat16")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for NAME.npz (default: the package's)")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    save(options.out / f"{options.name}.npz", measure(options.folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
