"""GGUF to Hugging Face folders: equal to transformers' own reading of the same made-up file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from made_up import write_gguf
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from voicechat.assemble.gguf_model import convert, hf_name
from voicechat.assemble.progress import Reporter
from voicechat.assemble.store import AssembleError
from voicechat.assemble.w8a8 import quantize_folder, quantize_rows

TEXTS = (
    "hello world",
    "It's 12,345.67  ünïcode\n\n— 你好 😀 I'LL 3rd\r\n x",
    "<|im_start|>user\nhell<|im_end|>\n",
    "   leading and trailing  ",
)


def made(tmp_path: Path, architecture: str, quantization: str, *, output: bool = True, tied: bool = False) -> Path:
    write_gguf(tmp_path / "m.gguf", architecture, output=output)
    target = tmp_path / "hf"
    target.mkdir()
    convert(tmp_path / "m.gguf", target, quantization=quantization, tied=tied, reporter=Reporter(quiet=True))  # type: ignore[arg-type]
    return target


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("output", [True, False])
def test_logits_equal_transformers_own_reading(tmp_path: Path, architecture: str, output: bool) -> None:
    ours = AutoModelForCausalLM.from_pretrained(
        made(tmp_path, architecture, "none", output=output), dtype=torch.float32
    )
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="m.gguf", dtype=torch.float32)
    tensors = theirs.state_dict()
    assert set(ours.state_dict()) == set(tensors)
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, tensors[name].to(torch.bfloat16).float()), name
    theirs.load_state_dict({name: tensor.to(torch.bfloat16).float() for name, tensor in tensors.items()})
    ids = torch.tensor([[1, 2, 3, 259, 100, 7, 7]])
    with torch.no_grad():
        assert torch.allclose(ours(ids).logits, theirs(ids).logits, atol=1e-4)


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_the_tokenizer_equals_transformers_own_reading(tmp_path: Path, architecture: str) -> None:
    ours = AutoTokenizer.from_pretrained(made(tmp_path, architecture, "none"))
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    for text in TEXTS:
        ids = ours(text)["input_ids"]
        assert ids == theirs(text)["input_ids"], text
        assert ours.decode(ids) == text
    turn = [{"role": "user", "content": "hello"}]
    rendered = ours.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    assert rendered == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert (ours.eos_token_id, ours.pad_token_id) == (260, 260)
    assert ours.decode([104, 260], skip_special_tokens=True) == ours.decode([104])


def test_the_ends_of_a_reply_are_in_the_generation_config(tmp_path: Path) -> None:
    generation = json.loads((made(tmp_path, "qwen2", "none") / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 259, "eos_token_id": [260], "pad_token_id": 260}


def test_a_tied_model_takes_the_output_matrix_for_both(tmp_path: Path) -> None:
    tensors = load_file(made(tmp_path, "qwen2", "none", tied=True) / "model.safetensors")
    untied = tmp_path / "untied"
    untied.mkdir()
    convert(tmp_path / "m.gguf", untied, quantization="none", tied=False, reporter=Reporter(quiet=True))
    other = load_file(untied / "model.safetensors")
    assert "lm_head.weight" not in tensors
    assert torch.equal(tensors["model.embed_tokens.weight"], other["lm_head.weight"])


@pytest.mark.parametrize("tied", [True, False])
def test_int8_holds_every_linear_layer_and_the_output_matrix(tmp_path: Path, tied: bool) -> None:
    folder = made(tmp_path, "llama", "int8", tied=tied)
    tensors = load_file(folder / "model.safetensors")
    plain = tmp_path / "plain"
    plain.mkdir()
    convert(tmp_path / "m.gguf", plain, quantization="none", tied=False, reporter=Reporter(quiet=True))
    reference = load_file(plain / "model.safetensors")
    linear = [name for name in tensors if tensors[name].dtype == torch.int8]
    assert len(linear) == 2 * 7 + 1
    for name in linear:
        scale = tensors[f"{name}_scale"].float()
        wanted = reference[name].float()
        assert scale.shape == (len(wanted), 1)
        error = (tensors[name].float() * scale - wanted).abs()
        # half a step of int8, and half a step of the reference's own bfloat16
        assert (error <= 0.51 * scale + wanted.abs() * 2**-8 + wanted.abs().amax(1, keepdim=True) * 2**-8).all(), name
    config = json.loads((folder / "config.json").read_text())
    assert config["tie_word_embeddings"] is False
    assert config["quantization_config"]["format"] == "int-quantized"


def test_a_plain_folder_is_quantised_in_place(tmp_path: Path) -> None:
    folder = made(tmp_path, "llama", "none")
    before = load_file(folder / "model.safetensors")
    quantize_folder(folder)
    after = load_file(folder / "model.safetensors")
    for name, tensor in before.items():
        if after[name].dtype == torch.int8:
            quantized, scale = quantize_rows(tensor.float())
            assert torch.equal(after[name], quantized)
            assert torch.equal(after[f"{name}_scale"], scale)
        else:
            assert torch.equal(after[name], tensor)
    with pytest.raises(AssembleError, match="only plain models"):
        quantize_folder(folder)


def test_what_is_not_known_is_refused(tmp_path: Path) -> None:
    for name in ("blk.0.attn_qkv.weight", "blk.0.attn_q.scale", "output.bias", "unknown", "blk.x.attn_q.weight"):
        with pytest.raises(AssembleError, match="not known"):
            hf_name(name)
    write_gguf(tmp_path / "m.gguf", "gemma", output=False)
    with pytest.raises(AssembleError, match="'gemma' is not known"):
        convert(tmp_path / "m.gguf", tmp_path, quantization="none", tied=False, reporter=Reporter(quiet=True))
