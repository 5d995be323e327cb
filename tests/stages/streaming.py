"""A reply's codes cut into chunks, and decoded one chunk after the other, as the coordinator has it done."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from voicechat.cascade.chunks import Chunk, ChunkBuffer, ChunkPolicy
from voicechat.models.embedded.alphabet import STEP_BYTES, SYMBOL_WINDOW, SYMBOLS
from voicechat.models.embedded.decoder import pack_steps, unpack_steps
from voicechat.models.embedded.voicebox import TOKEN_SAMPLES, VoiceBoxNet

Floats = npt.NDArray[np.float32]


def symbols_of(steps: int, seed: int = 0) -> bytes:
    """What the Talker sees at each step of a text of no language, of which it reads a row in two steps."""
    text = np.random.default_rng(seed).integers(0, SYMBOLS, steps // 2 + SYMBOL_WINDOW, np.uint8).tobytes()
    return b"".join(text[step // 2 : step // 2 + SYMBOL_WINDOW] for step in range(steps))


def tensors(codes: Sequence[int], symbols: bytes) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [1, T] and windows of symbols [1, T, 9] for the net."""
    windows = np.frombuffer(symbols, np.uint8).reshape(1, len(codes), SYMBOL_WINDOW)
    return torch.tensor([list(codes)]), torch.from_numpy(windows.astype(np.int64))


def whole(net: VoiceBoxNet, codes: list[int], symbols: bytes) -> Floats:
    """The sound of a reply, decoded in one piece."""
    sound: Floats = net.decode(*tensors(codes, symbols))[0].numpy()
    return sound


def chunks_of(policy: ChunkPolicy, codes: list[int], symbols: bytes, at_once: int = 3) -> list[Chunk]:
    """Chunks of a reply whose codes come a few at a time."""
    buffer, chunks = ChunkBuffer(policy, STEP_BYTES), []
    for start in range(0, len(codes), at_once):
        end = start + at_once
        buffer.push(pack_steps(codes[start:end], symbols[SYMBOL_WINDOW * start : SYMBOL_WINDOW * end]))
        while (chunk := buffer.pop()) is not None:
            chunks.append(chunk)
    buffer.close()
    while (chunk := buffer.pop()) is not None:
        chunks.append(chunk)
    return chunks


def streamed(net: VoiceBoxNet, chunks: list[Chunk]) -> Floats:
    """Sound of all chunks, each with the phase at which the one before ended."""
    return _decoded(net, chunks, chunks)


def exactly(net: VoiceBoxNet, codes: list[int], symbols: bytes, chunks: list[Chunk]) -> Floats:
    """As :func:`streamed` with the same phases, but each chunk's sound is made with the whole reply around it."""
    wide = [
        Chunk(pack_steps(codes, symbols), chunk.first_step, chunk.emit, chunk.first_step, chunk.last)
        for chunk in chunks
    ]
    return _decoded(net, chunks, wide)


def _decoded(net: VoiceBoxNet, chunks: list[Chunk], wider: list[Chunk]) -> Floats:
    """The sound of ``wider`` with the phases of ``chunks``, of which each is a part of it."""
    parts, phase = [], torch.zeros(1, dtype=torch.float64)
    for chunk, wide in zip(chunks, wider, strict=True):
        sound, after = _decode(net, wide, phase)
        parts.append(sound[wide.left * TOKEN_SAMPLES : (wide.left + wide.emit) * TOKEN_SAMPLES])
        phase = after if wide is chunk else _decode(net, chunk, phase)[1]
    return np.concatenate(parts)


def _decode(net: VoiceBoxNet, chunk: Chunk, phase: torch.Tensor) -> tuple[Floats, torch.Tensor]:
    places = torch.tensor([[chunk.first_step - chunk.left], [chunk.left], [chunk.left + chunk.emit]])
    voices = torch.zeros(1, dtype=torch.long)
    sound, after = net.stream(*tensors(*unpack_steps(chunk.steps)), voices, *places, phase)
    return sound[0].numpy(), after
