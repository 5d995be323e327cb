"""Parts of the training: budgets, chunked decoding, WordNet, sentences, scoring."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from voicechat.models.embedded.frontend import PAUSE, read_text
from voicechat.models.embedded.talker import TalkerNet
from voicechat.models.embedded.voicebox import VoiceBoxNet, left_context
from voicechat.models.embedded.weights import TalkerConfig, VoiceBoxConfig
from voicechat.train.alignment import pointers, windows
from voicechat.train.common import Budget, Work, write_arrays, write_json
from voicechat.train.evaluate import Item, Said, decode_chunked, fit_to_judge, load_items
from voicechat.train.generate import Prompt, generate
from voicechat.train.projection_data import walk
from voicechat.train.sentences import made_prompt, made_sentence
from voicechat.train.teacher import HibariTeacher, prepare_model
from voicechat.train.texts import plain_items
from voicechat.train.thinkers import tidy_reply
from voicechat.train.transcriber import pieces
from voicechat.train.wordnet import definition_sentence, read_wordnet, sentence

LINE = '00001740 03 n 01 wood_block 0 000 @ 1 n 0000 | a solid piece (usually of wood); "he cut a block"; "blocks burn"'


def test_teacher_aligns_rows_and_sound(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    prepare_model(tmp_path / "teacher.onnx")
    teacher = HibariTeacher(tmp_path / "teacher.onnx")
    rows = [mark.symbol for mark in teacher.read("Yes, I do. It was unquestionably strange!")]
    speech = teacher.speak(rows, seed=1)
    again = teacher.speak(rows, seed=1)
    assert np.array_equal(speech.pcm, again.pcm)
    assert len(speech.ends) == len(rows) and speech.ends[-1] == len(speech.pcm)
    steps = -(-len(speech.pcm) // 960)
    where = pointers(speech.ends, steps)
    assert where[0] == 0 and where[steps - 1] == where[steps] == len(rows) - 1
    assert set(np.diff(where).tolist()) <= {0, 1, 2}
    pause = rows.index(PAUSE, 1)
    inside = speech.pcm[speech.ends[pause - 1] + 2400 : speech.ends[pause] - 2400]
    assert np.abs(inside.astype(int)).mean() < 0.05 * np.abs(speech.pcm.astype(int)).mean()
    with pytest.raises(ValueError, match="pause"):
        teacher.speak(rows[1:], seed=1)


def test_budget_by_steps_and_by_time() -> None:
    budget = Budget(4)
    assert list(budget.run()) == [0, 1, 2, 3]
    spent = Budget(1000, seconds=10.0, before=20.0)
    assert list(spent.run()) == [] and spent.fraction == 1.0
    rates = []
    budget = Budget(100)
    for _ in budget.run():
        rates.append(budget.rate(10))
    assert rates.index(max(rates)) in range(8, 12) and rates[-1] < 0.1


def test_chunked_decoding_with_full_context_is_exact() -> None:
    torch.manual_seed(0)
    config = VoiceBoxConfig(width=16, token_blocks=2, frame_blocks=1)
    voicebox = VoiceBoxNet(config).eval()
    said = Said(torch.randint(0, 4375, (30,)).tolist(), torch.randint(0, 179, (30, 9)))
    whole = decode_chunked(voicebox, said, 30, 0)
    np.testing.assert_allclose(decode_chunked(voicebox, said, 4, left_context(config)), whole, atol=1e-5)
    assert decode_chunked(voicebox, Said([], said.windows[:0]), 4, 8).shape == (0,)


def test_the_teachers_codes_have_the_windows_of_their_pointers() -> None:
    symbols, none = np.asarray([0, 11, 12, 13, 14, 15, 16, 0], np.uint8), 178
    item = Item("a-0", "text", None, symbols, np.asarray([7, 8], np.int16), np.asarray([1, 7], np.int32), None)
    assert item.said.codes == [7, 8]
    assert item.said.windows.tolist() == [
        [none, none, 0, 11, 12, 13, 14, 15, 16],
        [14, 15, 16, 0, none, none, none, none, none],
    ]


def test_held_out_replies_without_pointers_are_refused(tmp_path: Path) -> None:
    work = Work(tmp_path)
    write_json(work.file("held.json"), [])
    write_arrays(work.file("held.npz"), **{"a-0.symbols": np.zeros(2, np.uint8)})
    with pytest.raises(ValueError, match="run the step 'talker' again"):
        load_items(work, 1, "heart")


def test_generated_codes_have_the_windows_of_their_pointers() -> None:
    """Where the pointer stood before a code's own advance, of each text of a batch."""
    torch.manual_seed(0)
    net = TalkerNet(TalkerConfig(layers=1, width=32, heads=2, feed_forward=32)).eval()
    texts = [torch.randint(0, 178, (rows,)) for rows in (12, 5)]
    made = generate(net, [Prompt(symbols) for symbols in texts], temperature=1.0, top_k=40)
    for symbols, one in zip(texts, made, strict=True):
        rows = walk(torch.tensor(one.tokens), len(symbols))
        assert len(one.codes) > 5 and rows[-1] > 0
        np.testing.assert_array_equal(one.windows.numpy(), windows(symbols.numpy(), rows.numpy()))


def test_wordnet_lines(tmp_path: Path) -> None:
    for part in ("verb", "adj", "adv"):
        (tmp_path / f"data.{part}").write_text("  licence\n", encoding="utf-8")
    (tmp_path / "data.noun").write_text(f"  licence | text\n{LINE}\n", encoding="utf-8")
    (entry,) = read_wordnet(tmp_path)
    assert entry.examples == ("he cut a block", "blocks burn")
    assert definition_sentence(entry) == "A wood block is a solid piece."
    assert sentence(entry.examples[0]) == "He cut a block."
    with pytest.raises(FileNotFoundError):
        read_wordnet(tmp_path / "nowhere")


def test_made_sentences_can_be_read() -> None:
    rng = random.Random(0)
    for _ in range(200):
        text = made_sentence(rng)
        marks = read_text(text)
        assert marks and marks[-1].symbol == PAUSE, text
    assert made_prompt(rng, ["tree"])


def test_plain_items_are_reproducible_and_not_too_long() -> None:
    items = plain_items([], made=100, definitions=0, seed=4)
    assert items == plain_items([], made=100, definitions=0, seed=4)
    assert max(len(item["text"]) for item in items) < 700
    assert any(item["text"].count(".") > 2 for item in items)


def test_cut_replies_end_with_a_sentence() -> None:
    assert tidy_reply(" Yes. And then", finished=False) == "Yes."
    assert tidy_reply("And then", finished=False) == ""
    assert tidy_reply("And then", finished=True) == "And then"


def test_texts_that_a_transcriber_drops_are_left_out() -> None:
    assert fit_to_judge("One. Two.") and not fit_to_judge("One. one.") and not fit_to_judge("a" * 1000)


def test_long_sound_is_cut_in_pauses() -> None:
    sound = np.full(24_000 * 40, 1000, np.int16)
    for second in (9, 20, 33):
        sound[24_000 * second : 24_000 * second + 9600] = 0
    parts = pieces(sound)
    assert np.array_equal(np.concatenate(parts), sound) and max(map(len, parts)) <= 24_000 * 14
    cuts = np.cumsum([len(part) for part in parts[:-1]]) / 24_000
    assert all(any(second < cut < second + 0.4 for second in (9, 20, 33)) for cut in cuts)
