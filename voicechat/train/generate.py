"""Plain step-by-step generation with the Talker in torch: the reference for what the engine has to do."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from voicechat.models.embedded.talker import (
    ADVANCES,
    BOS,
    EOS,
    Cache,
    TalkerNet,
    project_hidden,
    symbol_windows,
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """Symbols of a whole text [R], the Thinker's states per row [R, H] if any, numbers of Thinker and voice."""

    symbols: Tensor
    hidden: Tensor | None = None
    thinker: int = 0
    voice: int = 0


@dataclass(frozen=True, slots=True)
class Generated:
    """One reply: its codes, whether it ended by itself, and the longest time spent on one row in steps."""

    codes: list[int]
    ended: bool
    longest_dwell: int
    tokens: list[int]
    """Codes and advances, as the Talker said them; the end is not among them."""
    windows: Tensor
    """Symbols that the Talker saw at the step of each code, long [T, 9]."""


def condition_table(net: TalkerNet, prompt: Prompt) -> Tensor:
    """The condition at every row of a text, [R, width]."""
    device = net.code_embed.device
    windows = symbol_windows(prompt.symbols.to(device))
    table = net.conditioner.embed_symbols(windows) + net.conditioner.voice.weight[prompt.voice]
    if prompt.hidden is not None:
        matrix = net.thinkers[prompt.thinker]
        assert isinstance(matrix, torch.nn.Linear)
        table = table + project_hidden(matrix, prompt.hidden.to(device))
    return table


@torch.inference_mode()
def generate(
    net: TalkerNet,
    prompts: list[Prompt],
    *,
    temperature: float,
    top_k: int = 50,
    seed: int = 0,
    steps_per_row: float = 4.0,
) -> list[Generated]:
    """Speak several texts at once. ``temperature`` 0 is greedy. EOS is allowed only on the last row."""
    device = net.code_embed.device
    generator = torch.Generator(device).manual_seed(seed)
    tables = [condition_table(net, prompt) for prompt in prompts]
    rows = torch.tensor([len(table) for table in tables], device=device)
    conditions = torch.nn.utils.rnn.pad_sequence(tables, batch_first=True)
    embedding, head = (table.to(device) for table in net.full_tables())
    length = int(int(rows.max()) * steps_per_row) + 40
    cache = Cache(net.config, len(prompts), length, device, torch.float32)
    pointer = torch.zeros(len(prompts), dtype=torch.long, device=device)
    token = torch.full_like(pointer, BOS)
    done = torch.zeros_like(pointer, dtype=torch.bool)
    dwell = torch.zeros_like(pointer)
    longest = torch.zeros_like(pointer)
    every = torch.arange(len(prompts), device=device)
    made: list[Tensor] = []
    stood: list[Tensor] = []
    for step in range(length):
        states = net((embedding[token] + conditions[every, pointer])[:, None], cache)[:, 0]
        logits = states @ head.T
        logits[:, BOS] = logits[:, EOS + 1 :] = float("-inf")
        logits[:, EOS] = torch.where(pointer == rows - 1, logits[:, EOS], float("-inf"))
        token = choose(logits, temperature, top_k, generator)
        done |= token == EOS
        made.append(torch.where(done, -1, token))
        stood.append(pointer)
        token = torch.where(done, 0, token)
        moved = torch.minimum(pointer + token % ADVANCES, rows - 1)
        dwell = torch.where((moved == pointer) & ~done, dwell + 1, 0)
        longest = torch.maximum(longest, dwell)
        pointer = torch.where(done, pointer, moved)
        if step % 16 == 15 and bool(done.all()):
            break
    said = [[token for token in line if token >= 0] for line in torch.stack(made, 1).tolist()]
    places = torch.stack(stood, 1).cpu()
    return [
        Generated(
            [token // ADVANCES for token in tokens], bool(ended), int(most) + 1, tokens,
            symbol_windows(prompt.symbols.cpu())[where[: len(tokens)]],
        )
        for prompt, tokens, where, ended, most in zip(prompts, said, places, done.cpu(), longest.cpu(), strict=True)
    ]  # fmt: skip


def choose(logits: Tensor, temperature: float, top_k: int, generator: torch.Generator) -> Tensor:
    """Sample one token per line of logits [B, V]; temperature 0 takes the likeliest."""
    if temperature <= 0:
        return logits.argmax(-1)
    values, index = (logits / temperature).topk(top_k)
    drawn = torch.multinomial(values.softmax(-1), 1, generator=generator)
    return index.gather(1, drawn)[:, 0]
