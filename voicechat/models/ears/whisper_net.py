"""Whisper's network in PyTorch, from the folder that the CPU's ears use: CTranslate2's ``model.bin``.

Made for hearing several sounds at once: the encoder takes rows of different lengths and masks what is behind their
ends, so that a row comes out as if it were alone, and the decoder's step keeps all that changes from step to step in
memory of fixed size, so that a CUDA graph can be captured of it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F

RATE = 16_000
HOP = 160
FFT = 400
BINARY_VERSION = 6
"""Of CTranslate2's format; the last one, since 2021."""
_DTYPES = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)
"""By number in the file."""

UNHEARD = -30_000.0
"""Added, divided by 8, to the scores of what does not count: float16 can hold it, and its exponential is zero."""

Weights = dict[str, torch.Tensor]


class _Reader:
    """Values one after another from bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, kind: str) -> int:
        """An integer of one of ``struct``'s kinds."""
        (value,) = struct.unpack_from(f"<{kind}", self._data, self._at)
        self._at += struct.calcsize(f"<{kind}")
        return int(value)

    def bytes(self, count: int) -> bytes:
        """The next ``count`` bytes. Raises ValueError if there are fewer."""
        self._at += count
        if self._at > len(self._data):
            raise ValueError("the file ends too early")
        return self._data[self._at - count : self._at]

    def text(self) -> str:
        """A string with its length in front and a zero behind."""
        return self.bytes(self.number("H"))[:-1].decode()

    def variable(self) -> tuple[str, torch.Tensor]:
        """A name and its value."""
        name = self.text()
        shape = [self.number("I") for _ in range(self.number("B"))]
        dtype = _DTYPES[self.number("B")]
        return name, torch.frombuffer(bytearray(self.bytes(self.number("I"))), dtype=dtype).reshape(shape)


def read_weights(path: Path) -> Weights:
    """Variables of a ``model.bin`` by name: arrays as float32 (int8 and int16 dequantised), scalars as they are.

    Raises OSError, and ValueError for a file that is none, or of another version or model.
    """
    reader = _Reader(path.read_bytes())
    try:
        version, name, _ = reader.number("I"), reader.text(), reader.number("I")
        if version != BINARY_VERSION or name != "WhisperSpec":
            raise ValueError(f"{name} of version {version}, not WhisperSpec of version {BINARY_VERSION}")
        stored = dict(reader.variable() for _ in range(reader.number("I")))
        aliases = [(reader.text(), reader.text()) for _ in range(reader.number("I"))]
    except (struct.error, UnicodeDecodeError, IndexError, RuntimeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None
    weights = {}
    for name, value in stored.items():
        if name.endswith("_scale"):
            continue
        scale = stored.get(f"{name}_scale")
        if scale is not None:
            value = value.float() / scale.float().reshape(-1, *[1] * (value.dim() - 1))
        weights[name] = value.float() if value.dim() else value
    return weights | {alias: weights[name] for alias, name in aliases if name in weights}


class LogMel(torch.nn.Module):
    """Whisper's features: float32 sound at 16 kHz ``[batch, samples]`` to ``[batch, mels, samples // 160 + 1]``.

    The dynamic range is bounded by the loudest frame of each row, so silence behind a sound changes nothing in it.
    """

    window: torch.Tensor
    filters: torch.Tensor

    def __init__(self, mels: int) -> None:
        from transformers.audio_utils import mel_filter_bank

        super().__init__()
        bank = mel_filter_bank(FFT // 2 + 1, mels, 0.0, RATE / 2, RATE, norm="slaney", mel_scale="slaney")
        self.register_buffer("filters", torch.from_numpy(bank).float().T.contiguous())
        self.register_buffer("window", torch.hann_window(FFT, dtype=torch.float64))

    def forward(self, pcm: torch.Tensor) -> torch.Tensor:
        """See above. The transform is of float64: quiet bands beside loud ones would else be off by 1e-3."""
        padded = F.pad(pcm.double(), (0, HOP))
        spectrum = torch.stft(padded, FFT, HOP, window=self.window, pad_mode="reflect", return_complex=True)
        power = spectrum[..., :-1].abs().square().float()
        logs = (self.filters @ power).clamp(min=1e-10).log10()
        return (torch.maximum(logs, logs.amax((1, 2), keepdim=True) - 8.0) + 4.0) / 4.0


class Whisper:
    """The network, on ``device``, in ``dtype``. All methods are for inference mode."""

    def __init__(self, weights: Weights, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self.heads = int(weights["decoder/num_heads"])
        self.mels = weights["encoder/conv1/weight"].shape[1]
        self.positions, self.width = weights["encoder/position_encodings/encodings"].shape
        self.vocabulary = len(weights["decoder/embeddings/weight"])
        self.layers = sum(name.startswith("decoder/") and name.endswith("/attention/linear_0/bias") for name in weights)
        self.longest = len(weights["decoder/position_encodings/encodings"])
        self._encoder_layers = sum(name.endswith("/ffn/linear_0/bias") for name in weights) - self.layers
        self._weights = {
            name: value.to(device, dtype) if value.dim() else value
            for name, value in weights.items()
            if name != "decoder/projection/weight"
        }
        # The projection is the embedding's own table, if it is no table of its own.
        projection = weights.get("decoder/projection/weight")
        table = self._weights["decoder/embeddings/weight"]
        shared = projection is None or projection is weights["decoder/embeddings/weight"]
        self._projection = table if projection is None or shared else projection.to(device, dtype)

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight, bias = self._weights[f"{name}/gamma"], self._weights[f"{name}/beta"]
        return F.layer_norm(x, (self.width,), weight, bias)

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, self._weights[f"{name}/weight"], self._weights[f"{name}/bias"])

    def _feed(self, x: torch.Tensor, name: str) -> torch.Tensor:
        inner = F.gelu(self._linear(self._norm(x, f"{name}/layer_norm"), f"{name}/linear_0"))
        return x + self._linear(inner, f"{name}/linear_1")

    def _split(self, x: torch.Tensor, parts: int) -> tuple[torch.Tensor, ...]:
        """``[batch, length, parts * width]`` to ``parts`` of ``[batch, heads, length, width / heads]``."""
        batch, length, _ = x.shape
        return x.view(batch, length, parts, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)

    def encode(self, features: torch.Tensor, frames: Sequence[int]) -> torch.Tensor:
        """Features ``[batch, mels, frames]`` to what the decoder listens to, ``[batch, frames / 2, width]``.

        Of row n only ``frames[n]`` frames, an even number, count: what it gives for the others means nothing.
        """
        x = features.to(self.dtype)
        length = x.shape[-1]
        heard = None
        if any(own < length for own in frames):
            inside = torch.arange(length, device=self.device) < torch.tensor(frames).to(self.device)[:, None]
            x = x * inside[:, None]
            heard = inside[:, ::2]
        for name, stride in (("encoder/conv1", 1), ("encoder/conv2", 2)):
            weight, bias = self._weights[f"{name}/weight"], self._weights[f"{name}/bias"]
            x = F.gelu(F.conv1d(x, weight, bias, stride=stride, padding=1))
        x = x.transpose(1, 2) + self._weights["encoder/position_encodings/encodings"][: length // 2]
        for layer in range(self._encoder_layers):
            name = f"encoder/layer_{layer}/self_attention"
            q, k, v = self._split(self._linear(self._norm(x, f"{name}/layer_norm"), f"{name}/linear_0"), 3)
            mixed = _mix(q, k, v, heard)
            x = x + self._linear(mixed.transpose(1, 2).flatten(2), f"{name}/linear_1")
            x = self._feed(x, f"encoder/layer_{layer}/ffn")
        return self._norm(x, "encoder/layer_norm")

    def cache(self, batch: int, length: int) -> torch.Tensor:
        """Memory for keys and values: ``[layers, 2, batch, heads, length, width / heads]``."""
        shape = (self.layers, 2, batch, self.heads, length, self.width // self.heads)
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def listen(self, encoded: torch.Tensor, sound: torch.Tensor) -> None:
        """Put the keys and values of what was encoded into ``sound``, a :meth:`cache` of at least its size."""
        batch, length, _ = encoded.shape
        for layer in range(self.layers):
            for part, value in enumerate(
                self._split(self._linear(encoded, f"decoder/layer_{layer}/attention/linear_1"), 2)
            ):
                sound[layer, part, :batch, :, :length] = value

    def step(
        self, token: torch.Tensor, position: torch.Tensor, text: torch.Tensor, sound: torch.Tensor, deaf: torch.Tensor
    ) -> torch.Tensor:
        """Logits of the next token, float32 ``[batch, vocabulary]``.

        ``token``: the last one of each row, ``[batch]``; ``position``: its place, ``[1]``, the same in all rows;
        ``text``: the :meth:`cache` of the rows' tokens, which is written at that place; ``sound``: that of
        :meth:`listen`; ``deaf``: ``[batch, 1, 1, length of sound]``, -inf where a row has no sound, else 0.
        """
        x = F.embedding(token, self._weights["decoder/embeddings/weight"])[:, None]
        x = x + self._weights["decoder/position_encodings/encodings"].index_select(0, position)
        future = torch.arange(text.shape[-2], device=self.device) > position
        ahead = torch.zeros(future.shape, dtype=self.dtype, device=self.device).masked_fill(future, float("-inf"))
        for layer in range(self.layers):
            name = f"decoder/layer_{layer}/self_attention"
            q, k, v = self._split(self._linear(self._norm(x, f"{name}/layer_norm"), f"{name}/linear_0"), 3)
            keys, values = text[layer, 0], text[layer, 1]
            keys.index_copy_(2, position, k)
            values.index_copy_(2, position, v)
            x = x + self._linear(_attend(q, keys, values, ahead), f"{name}/linear_1")
            name = f"decoder/layer_{layer}/attention"
            (q,) = self._split(self._linear(self._norm(x, f"{name}/layer_norm"), f"{name}/linear_0"), 1)
            x = x + self._linear(_attend(q, sound[layer, 0], sound[layer, 1], deaf), f"{name}/linear_2")
            x = self._feed(x, f"decoder/layer_{layer}/ffn")
        return F.linear(self._norm(x[:, 0], "decoder/layer_norm"), self._projection).float()


def _mix(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heard: torch.Tensor | None) -> torch.Tensor:
    """Attention of ``[batch, heads, length, size]`` to itself where ``heard``, ``[batch, length]``; None: everywhere.

    A mask would keep the kernels away that need no memory for all pairs. One more dimension does the same: queries are
    one in it, and keys that do not count far below zero.
    """
    if heard is None:
        return F.scaled_dot_product_attention(q, k, v)
    size = q.shape[-1]
    q, k, v = (F.pad(x, (0, 8)) for x in (q, k, v))
    q[..., size] = 1.0
    k[..., size] = torch.zeros_like(heard, dtype=k.dtype).masked_fill(~heard, UNHEARD)[:, None]
    return F.scaled_dot_product_attention(q, k, v, scale=size**-0.5)[..., :size]


def _attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Attention of one query per row, ``[batch, heads, 1, size]``, to ``[batch, 1, heads * size]``.

    Two plain products: the fused kernels share their work out by queries, of which there is only one.
    """
    scores = (q * q.shape[-1] ** -0.5) @ keys.transpose(-1, -2) + mask
    weights = scores.softmax(-1, dtype=torch.float32).to(q.dtype)
    return (weights @ values).transpose(1, 2).flatten(2)
