"""Made-up source files for the assembler's tests: tiny GGUF models and wheels that carry data."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

import gguf
import numpy as np

from voicechat.contract.artifacts import Artifact, HubFile, WheelMember

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WIDTH, HIDDEN, LAYERS, HEADS, KV_HEADS = 64, 96, 2, 4, 2


def byte_symbols() -> list[str]:
    """The 256 characters that stand for bytes in byte-level BPE."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    extra = iter(range(256, 512))
    return [chr(byte) if byte in shown else chr(next(extra)) for byte in range(256)]


def write_gguf(path: Path, architecture: str, *, output: bool, seed: int = 0) -> None:
    """A random model of ``architecture`` (llama or qwen2) in Q8_0; ``output``: with an output matrix of its own."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10_000.0)

    tokens = [*byte_symbols(), "he", "ll", "hell", "<|im_start|>", "<|im_end|>", "<unused>"]
    tokens += [f"[PAD{i}]" for i in range(32 - len(tokens) % 32)]
    kinds = [1] * 259 + [3, 3, 4] + [5] * (len(tokens) - 262)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2" if architecture == "qwen2" else "smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["h e", "l l", "he ll"])
    writer.add_bos_token_id(259)
    writer.add_eos_token_id(260)
    writer.add_pad_token_id(260)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)

    def matrix(name: str, rows: int, columns: int) -> None:
        values = rng.normal(0, 0.2, (rows, columns)).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)

    def vector(name: str, size: int, around: float) -> None:
        writer.add_tensor(name, (around + rng.normal(0, 0.1, size)).astype(np.float32))

    kv = WIDTH // HEADS * KV_HEADS
    matrix("token_embd.weight", len(tokens), WIDTH)
    if output:
        matrix("output.weight", len(tokens), WIDTH)
    vector("output_norm.weight", WIDTH, 1.0)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        for name, rows, columns in (
            ("attn_q", WIDTH, WIDTH),
            ("attn_k", kv, WIDTH),
            ("attn_v", kv, WIDTH),
            ("attn_output", WIDTH, WIDTH),
            ("ffn_gate", HIDDEN, WIDTH),
            ("ffn_up", HIDDEN, WIDTH),
            ("ffn_down", WIDTH, HIDDEN),
        ):
            matrix(f"{block}.{name}.weight", rows, columns)
        if architecture == "qwen2":
            for name, rows in (("attn_q", WIDTH), ("attn_k", kv), ("attn_v", kv)):
                vector(f"{block}.{name}.bias", rows, 0.0)
        vector(f"{block}.attn_norm.weight", WIDTH, 1.0)
        vector(f"{block}.ffn_norm.weight", WIDTH, 1.0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_wheel(folder: Path, distribution: str, version: str, member: str, content: bytes) -> Path:
    """A wheel that pip accepts, with one data file in it."""
    name = distribution.replace("-", "_")
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    files = {
        member: content,
        f"{name}/__init__.py": b"raise RuntimeError('this wheel is data, it must never be imported')\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for file, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{file},sha256={digest},{len(data)}\n"
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, data in files.items():
            archive.writestr(file, data)
    return path


def artifact(name: str, *parts: bytes, hub: bool = True) -> Artifact:
    """An artifact of these parts, one made-up wheel for each."""
    members = tuple(
        WheelMember(
            f"made-up-part{i}", "1.0", f"made_up_part{i}/part{i}.bin", len(part), hashlib.sha256(part).hexdigest()
        )
        for i, part in enumerate(parts, start=1)
    )
    whole = b"".join(parts)
    place = HubFile("made/up", name) if hub else None
    return Artifact(name, len(whole), hashlib.sha256(whole).hexdigest(), members, place)


def write_wheels(folder: Path, *parts: bytes) -> list[Path]:
    """The wheels of :func:`artifact`."""
    folder.mkdir(parents=True, exist_ok=True)
    return [
        write_wheel(folder, f"made-up-part{i}", "1.0", f"made_up_part{i}/part{i}.bin", part)
        for i, part in enumerate(parts, start=1)
    ]
