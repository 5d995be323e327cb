"""Prompts of any chat LLM: the ids are those of the tokenizer's own template, whatever it looks like."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from voicechat.contract.messages import Turn
from voicechat.models.embedded.thinker import ChatPrompt

SYSTEM = "You answer in one sentence."
SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|user|>", "<|assistant|>", "<start_of_turn>", "<end_of_turn>")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLAIN = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
REFUSES_SYSTEM = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n{{ m['content'] | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
DROPS_SYSTEM = (
    "<s>{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]"
    "{% elif m['role'] == 'assistant' %}{{ m['content'] }}</s>{% endif %}{% endfor %}"
)
TALK = (Turn("user", "Hello!"), Turn("assistant", "Hi. What is it?"), Turn("user", "Where is Paris?"))


def tokenizer(template: str | None) -> Any:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    plain.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    fast = PreTrainedTokenizerFast(tokenizer_object=plain, bos_token="<s>", eos_token="</s>")
    if template is not None:
        fast.chat_template = template
    return fast


def templated(made: Any, messages: list[dict[str, str]]) -> list[int]:
    """Ids as transformers itself makes them."""
    out = made.apply_chat_template(messages, tokenize=True, add_generation_prompt=True)
    return list(out if isinstance(out, list) else out["input_ids"])


def messages(*turns: Turn) -> list[dict[str, str]]:
    return [{"role": turn.role, "content": turn.text} for turn in turns]


@pytest.mark.parametrize("template", [CHATML, PLAIN])
def test_ids_are_those_of_the_template(template: str) -> None:
    made = tokenizer(template)
    prompt = ChatPrompt(made, SYSTEM)
    assert prompt.ids(TALK) == templated(made, messages(Turn("system", SYSTEM), *TALK))
    own = (Turn("system", "Be rude."), *TALK)
    assert prompt.ids(own) == templated(made, messages(*own)), "the caller's system turn stands instead of ours"


@pytest.mark.parametrize("template", [REFUSES_SYSTEM, DROPS_SYSTEM])
def test_where_no_system_turn_is_known_its_text_comes_with_the_first_question(template: str) -> None:
    made = tokenizer(template)
    prompt = ChatPrompt(made, SYSTEM)
    first = Turn("user", f"{SYSTEM}\n\nHello!")
    assert prompt.ids(TALK) == templated(made, messages(first, *TALK[1:]))
    rude = Turn("user", "Be rude.\n\nHello!")
    assert prompt.ids((Turn("system", "Be rude."), *TALK)) == templated(made, messages(rude, *TALK[1:]))
    alone = (Turn("system", "Say hello."),)
    assert prompt.ids(alone) == templated(made, messages(Turn("user", "Say hello.")))


def test_a_conversation_that_the_template_refuses() -> None:
    prompt = ChatPrompt(tokenizer(REFUSES_SYSTEM), SYSTEM)
    with pytest.raises(ValueError, match="Roles must alternate"):
        prompt.ids((Turn("user", "One."), Turn("user", "Two.")))


def test_a_tokenizer_without_a_template() -> None:
    with pytest.raises(ValueError, match="template"):
        ChatPrompt(tokenizer(None), SYSTEM)
