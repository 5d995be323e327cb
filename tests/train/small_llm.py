"""A chat LLM of an architecture that no embedded Thinker has: a tiny random GPT-NeoX whose letters are its tokens."""

from __future__ import annotations

from pathlib import Path

LETTERS = "etaoinsrhldcumfpgwybvk"
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ raise_exception('this model knows no system turn') }}{% endif %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
WIDTH = 64


def write_llm(folder: Path, *, template: str | None = TEMPLATE, width: int = WIDTH) -> Path:
    """Write a whole Hugging Face folder; its replies are words of random letters."""
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import GenerationConfig, GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedTokenizerFast

    symbols = ["<|end|>", "<|user|>", "<|assistant|>", *LETTERS, "Ġ", "."]
    tokenizer = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(symbols)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(symbol, special=True) for symbol in symbols[:3]])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")
    if template is not None:
        fast.chat_template = template
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = GPTNeoXConfig(
        vocab_size=len(symbols), hidden_size=width, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=width // 32, max_position_embeddings=512, initializer_range=0.2, eos_token_id=0,
        bos_token_id=0,
    )  # fmt: skip
    model = GPTNeoXForCausalLM(config)
    with torch.no_grad():
        weight = model.get_output_embeddings().weight
        weight[0] -= weight[0]  # the end is neither sure nor impossible
        weight[symbols.index("<|user|>")] = weight[symbols.index("<|assistant|>")] = 0
    model.save_pretrained(folder)
    GenerationConfig(eos_token_id=[0], bos_token_id=0).save_pretrained(folder)
    return folder
