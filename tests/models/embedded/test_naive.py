"""The baseline over tiny models of random weights: all stages run, one after another, and follow the Talker's rules."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.speech import voice
from voicechat.contract.family import PlainSpec
from voicechat.models.embedded import talker
from voicechat.models.embedded.frontend import Row
from voicechat.models.embedded.naive import OneAfterAnother
from voicechat.models.embedded.speaking import SPARE_STEPS, STEPS_PER_SYMBOL
from voicechat.models.embedded.untrained import random_weights
from voicechat.models.embedded.weights import TalkerConfig, VoiceBoxConfig, VoiceConfig

WORDS = "the sky is blue because light of the sun meets air and so we see it".split()
TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Thinker of one layer that knows a few words, and a voice to go with it."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    path = tmp_path_factory.mktemp("naive")
    names = ["[UNK]", *dict.fromkeys(WORDS)]
    tokenizer = Tokenizer(models.WordLevel({name: index for index, name in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", chat_template=TEMPLATE).save_pretrained(path)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(names),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        eos_token_id=None,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    shape = TalkerConfig(layers=1, width=64, heads=2, feed_forward=64, thinkers=(("tiny", 32),))
    random_weights(path / "weights", config=VoiceConfig(talker=shape, voicebox=VoiceBoxConfig(32, 1, 1, 1)))
    return path


@pytest.fixture(scope="module")
def config(folder: Path) -> PlainSpec:
    return PlainSpec(
        thinker={"folder": str(folder)},
        talker={"weights": str(folder / "weights"), "thinker": "tiny"},
        ears_dir=None,
        system_prompt="be kind",
        max_tokens=6,
        temperature=0.0,
        top_p=1.0,
        repetition_penalty=1.0,
        sampling={"temperature": 0.0, "top_k": 50},
        ears_beam_size=1,
        threads=2,
    )


@pytest.fixture(scope="module")
def models(config: PlainSpec) -> OneAfterAnother:
    return OneAfterAnother(config)


def test_an_answer(models: OneAfterAnother) -> None:
    answer = models.answer("why is the sky blue", None, None)
    assert answer.tokens == 6
    assert answer.heard is None
    assert 0 < answer.steps <= STEPS_PER_SYMBOL * 20 * 6 + SPARE_STEPS
    assert answer.audio_s == pytest.approx(answer.steps * 0.04)
    times = answer.times
    assert list(times) == ["thinker", "talker", "voicebox"]
    assert 0 < times["thinker"] < times["talker"] < times["voicebox"] == answer.total_s
    again = models.answer("why is the sky blue", None, 3)
    assert again.tokens == 3
    assert answer.text.startswith(again.text)


def test_facts_say_what_was_chosen(models: OneAfterAnother) -> None:
    for name, ways in {"thinker": 4, "talker": 4, "voicebox": 2}.items():  # types, on one and two threads
        trials = {fact: value for fact, value in models.facts.items() if fact.startswith(f"{name}_trial_")}
        assert len(trials) == ways
        assert trials[f"{name}_trial_{models.facts[name]}_s"] == min(trials.values())


def test_each_token_has_its_hidden_state(models: OneAfterAnother, config: PlainSpec) -> None:
    with torch.inference_mode():
        ids, hidden = models._think("why is the sky blue", 5)
        assert hidden.shape == (5, 32)
        predicted = models._thinker.lm_head(hidden.to(models._thinker.dtype)).argmax(-1)
    assert predicted.tolist() == ids


def test_rows_see_the_text_around_them(models: OneAfterAnother, folder: Path) -> None:
    rows = [Row(0, 0), Row(5, 0), Row(6, 1), Row(7, 1), Row(0, 1)]
    hidden = torch.randn(2, 32)
    with torch.inference_mode():
        symbols = models._symbols(rows)
        added = models._condition(rows, symbols, hidden).float()
        conditioner = talker.Conditioner.from_weights(folder / "weights", "tiny")
        none = talker.NONE_SYMBOL
        around = torch.tensor([[none, none, 0, 5, 6, 7, 0, none, none]])
        wanted = conditioner(around, hidden[:1], torch.tensor([True]), torch.tensor([0]))
        past = torch.full((1, 9), none)
        beyond = conditioner(past, hidden[1:], torch.tensor([True]), torch.tensor([0]))
    assert len(symbols) == len(added) == len(rows) + talker.LEFT + 1
    assert torch.equal(symbols[1:2], around)
    assert torch.equal(symbols[-1:], past)
    torch.testing.assert_close(added[1:2], wanted, rtol=0.02, atol=0.02)
    torch.testing.assert_close(added[-1:], beyond, rtol=0.02, atol=0.02)


def test_nothing_to_say(models: OneAfterAnother) -> None:
    codes, symbols = models._talk([" ", "\n"], torch.zeros(2, 32))
    assert codes == []
    assert symbols.shape == (0, 9)


def test_each_code_has_the_symbols_of_its_step(models: OneAfterAnother) -> None:
    with torch.inference_mode():
        codes, symbols = models._talk(["Hello there."], torch.randn(1, 32), most=12)
    assert symbols.shape == (len(codes), 9)
    assert symbols[0, : talker.LEFT].tolist() == [talker.NONE_SYMBOL] * talker.LEFT
    assert symbols[0, talker.LEFT] == 0, "the pause before the text"


def test_it_draws_at_random_with_a_temperature(config: PlainSpec, models: OneAfterAnother) -> None:
    models.config = dataclasses.replace(config, sampling={"temperature": 1.0, "top_k": 0})
    torch.manual_seed(1)
    state = torch.zeros(64, dtype=models._talker.code_embed.dtype)
    drawn = {models._draw(state) for _ in range(20)}
    models.config = config
    assert len(drawn) > 10
    assert talker.BOS not in drawn


def test_without_ears_it_is_deaf(models: OneAfterAnother) -> None:
    with pytest.raises(ValueError, match="no ears"):
        models.answer(None, voice(0.5).astype(np.float32), None)
