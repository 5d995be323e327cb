"""Makes the weights of the watermark detector's network anew: ``python -m voicechat.bench.watermark_train CLIPS OUT``.

CLIPS is a folder of unmarked speech (int16 mono 24 kHz ``.npy`` or any sound that PyAV reads). It is marked with random
keys and sent through channels, and the network learns to tell each tile's sign from what is around the tile. None of
the sounds that the bench reports on may be among them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from voicechat.bench import watermark_attacks as attacks
from voicechat.bench.watermark_sounds import read_sound
from voicechat.watermark.code import Floats
from voicechat.watermark.embed import Embedder
from voicechat.watermark.features import AROUND, STEPS_OF_A_ROW, Levels, inputs, loudness
from voicechat.watermark.front import INPUTS
from voicechat.watermark.keys import Key
from voicechat.watermark.pattern import BANDS, ROWS, Pattern

CHANNELS = ("clean", "opus24_loss5", "opus16", "mulaw", "noise20", "echo")
_SECONDS = 7
_NARROW = 22
"""Bands that a channel of 8 kHz has."""


def examples(paths: list[Path]) -> tuple[Floats, Floats]:
    """What is seen of many tiles, and their signs."""
    seen, signs = [], []
    for number, path in enumerate(paths):
        pcm = read_sound(path)[: 24_000 * _SECONDS]
        rng = np.random.default_rng(number)
        key, payload = Key(rng.bytes(32)), int(rng.integers(65536))
        embedder = Embedder(key, payload)
        marked = np.concatenate([embedder.push(pcm), embedder.finish()])
        for name in CHANNELS:
            attack = attacks.ATTACKS[name]
            sound, rate = attack.apply(marked, number)
            stream = Levels(rate, (1.0,))
            levels = np.concatenate([stream.push(sound.astype(np.float32)), stream.finish()])
            steps = np.arange(1 + round(attack.delay_ms / 5), len(levels) - AROUND, STEPS_OF_A_ROW)
            rows = np.flatnonzero(steps >= AROUND)
            bands = _NARROW if rate == 8000 else BANDS
            every = np.concatenate(list(inputs(levels, *loudness(levels))), 1)
            seen.append(every[:, steps[rows] - AROUND, 0, :bands].reshape(INPUTS, -1).T)
            signs.append(Pattern.of(key).marked(payload)[rows % ROWS, :bands].reshape(-1))
    return np.concatenate(seen), np.concatenate(signs)


def train(seen: Floats, signs: Floats, epochs: int, width: int) -> dict[str, Floats]:
    """Weights and biases by name. Least squares, as the best estimate of a sign makes the best correlation with it."""
    import torch

    torch.manual_seed(0)
    x, y = torch.from_numpy(seen), torch.from_numpy(signs)
    linear, tanh = torch.nn.Linear, torch.nn.Tanh
    model = torch.nn.Sequential(linear(x.shape[1], width), tanh(), linear(width, width), tanh(), linear(width, 1))
    size = 2048
    steps = epochs * len(x) // size
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps + 1)
    for step in range(steps):
        batch = torch.randint(0, len(x), (size,))
        loss = ((model(x[batch])[:, 0] - y[batch]) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 500 == 0:
            print(f"step {step} of {steps}: {float(loss):.4f}", flush=True)
    kept = {}
    for number, layer in enumerate(model[::2]):
        kept[f"weight{number}"] = layer.weight.detach().numpy()
        kept[f"bias{number}"] = layer.bias.detach().numpy()
    return kept


def main() -> None:
    """Read the command line, train, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clips", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=18)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--width", type=int, default=48)
    options = parser.parse_args()
    paths = sorted(p for p in options.clips.iterdir() if p.suffix != ".txt")[: options.count]
    kept = train(*examples(paths), options.epochs, options.width)
    np.savez(options.out, allow_pickle=False, **kept)


if __name__ == "__main__":
    main()
