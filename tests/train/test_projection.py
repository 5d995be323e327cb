"""A projection for an LLM of another architecture: fitted in its tiny form, on a CPU, and what must not be loaded."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from tests.train.small_llm import WIDTH, write_llm
from voicechat.models.embedded.frontend import TextFrontend, read_text
from voicechat.models.embedded.projection import ProjectionError, check_projection, read_card, talker_sha256
from voicechat.models.embedded.talker import BOS, EOS, VOCABULARY, Conditioner, TalkerNet
from voicechat.models.embedded.untrained import random_weights
from voicechat.models.embedded.weights import TalkerConfig, VoiceBoxConfig, VoiceConfig
from voicechat.train.alignment import pointers
from voicechat.train.cli import add_arguments, main
from voicechat.train.common import Work, write_arrays
from voicechat.train.projection import TINY_PLAN, find_reference, thinker_step
from voicechat.train.projection_data import row_tokens, walk
from voicechat.train.projection_fit import FitPlan, soft_cross_entropy

TALKER = TalkerConfig(
    layers=2, width=64, heads=2, feed_forward=96, voices=("ann",), thinkers=(("known", 576), ("other", 8))
)
VOICEBOX = VoiceBoxConfig(width=32, frame_blocks=2)


def lively(folder: Path, seed: int) -> Path:
    """Random weights whose speech depends on the hidden states: larger than a net that is about to be trained has."""
    from safetensors.torch import load_file, save_file

    random_weights(folder, seed, VoiceConfig(talker=TALKER, voicebox=VOICEBOX))
    path = str(folder / "talker.safetensors")
    tensors = load_file(path)
    for name in ("head_code", "head_advance"):
        tensors[name] = tensors[name] * 20
    save_file(tensors, path)
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lively(tmp_path_factory.mktemp("weights"), 1)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llm(tmp_path_factory.mktemp("neox"))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory, llm: Path, tiny_thinker: Path, weights: Path) -> Work:
    """The work folder of one run from the command line."""
    root = tmp_path_factory.mktemp("work")
    assert run(root, llm, tiny_thinker, weights) == 0
    return Work(root / "projections" / "neox")


def run(root: Path, llm: Path, known: Path, weights: Path, *more: str) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    words = ["thinker", "--tiny", "--work", str(root), "--device", "cpu", "--thinker", f"neox={llm}"]
    return main(parser.parse_args([*words, "--reference", f"known={known}", "--weights", str(weights), *more]))


def curve(work: Work) -> list[dict[str, float]]:
    (path,) = work.root.glob("talker-*/curves/projection.jsonl")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_loss_falls(fitted: Work) -> None:
    """On the replies that it learns from as on those that choose, and the best of the latter is kept."""
    points = curve(fitted)
    assert len(points) == TINY_PLAN.fit.steps // TINY_PLAN.fit.report
    assert points[-1]["loss"] < points[0]["loss"]
    assert points[-1]["best"] == min(point["best"] for point in points)
    assert (next(fitted.root.glob("talker-*/curves")) / "projection.png").is_file()


def test_hidden_states_help_on_held_out_replies(fitted: Work) -> None:
    """Never worse than none at all, and never better than those that the Talker was taught with."""
    measured = read_card(fitted.root).measured
    assert measured["reference"] <= measured["with_hidden"] <= measured["without_hidden"]
    assert measured["gap_closed"] > 0.05
    assert measured["same_code_with"] >= measured["same_code_without"]


def test_what_was_written_is_loaded(fitted: Work, weights: Path) -> None:
    """The conditioner adds what the matrix makes of a state; without a state nothing."""
    card = read_card(fitted.root)
    assert (card.thinker, card.hidden_size, card.width) == ("neox", WIDTH, TALKER.width)
    path = check_projection(fitted.root, weights, WIDTH)
    conditioner = Conditioner.from_weights(weights, projection=path)
    plain = Conditioner.from_weights(weights)
    symbols, voice = torch.randint(0, 178, (3, 9)), torch.zeros(3, dtype=torch.long)
    states, shown = torch.randn(3, WIDTH), torch.tensor([True, True, False])
    rows = conditioner(symbols, states, shown, voice)
    without = plain(symbols, None, shown, voice)
    torch.testing.assert_close(rows[2], without[2])
    assert float((rows[:2] - without[:2]).abs().min(1).values.max()) > 0
    with pytest.raises(ValueError, match="not both"):
        Conditioner.from_weights(weights, "known", path)


def test_settings_are_written_for_the_server(fitted: Work, llm: Path, weights: Path) -> None:
    from voicechat.app import within_context
    from voicechat.assemble.assembler import _plans
    from voicechat.config import load_settings
    from voicechat.models.folder import context_length

    path = fitted.root / "neox.yaml"
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["model"]["name"] == "neox"
    settings = load_settings(str(path), environ={})
    assert settings.model.thinker.dir == llm
    assert settings.model.talker.projection == fitted.root / "projection.safetensors"
    assert settings.model.weights == weights
    assert _plans(settings)[0]["thinker"].folder == llm
    facts: Any = argparse.Namespace(context_tokens=context_length(llm), rows=None)
    assert within_context(settings, facts).thinker.max_model_len == 512


def test_a_finished_fit_does_nothing_more(fitted: Work, llm: Path, tiny_thinker: Path, weights: Path) -> None:
    before = curve(fitted), read_card(fitted.root)
    assert run(fitted.root.parent.parent, llm, tiny_thinker, weights) == 0
    assert (curve(fitted), read_card(fitted.root)) == before


def test_a_new_talker_needs_a_new_projection_but_no_new_replies(
    fitted: Work, llm: Path, tiny_thinker: Path, weights: Path, tmp_path: Path
) -> None:
    other = lively(tmp_path / "weights", 2)
    with pytest.raises(ProjectionError, match="other Talker weights"):
        check_projection(fitted.root, other, WIDTH)
    texts = fitted.file("replies.json").stat().st_mtime_ns, fitted.file("states.npz").stat().st_mtime_ns
    short = replace(TINY_PLAN, fit=FitPlan(steps=1, batch_steps=600, report=1))
    thinker_step(
        fitted.root.parent.parent, name="neox", folder=llm, reference=("known", tiny_thinker), weights=other,
        plan=short, device=torch.device("cpu"), out=tmp_path / "out",
    )  # fmt: skip
    assert check_projection(tmp_path / "out", other, WIDTH).is_file()
    assert read_card(tmp_path / "out").talker_sha256 == talker_sha256(other) != talker_sha256(weights)
    assert (fitted.file("replies.json").stat().st_mtime_ns, fitted.file("states.npz").stat().st_mtime_ns) == texts


def test_what_does_not_fit_is_refused(fitted: Work, weights: Path, tmp_path: Path) -> None:
    with pytest.raises(ProjectionError, match="64 wide; those of the configured Thinker are 576 wide"):
        check_projection(fitted.root, weights, 576)
    with pytest.raises(ProjectionError, match=r"projection\.safetensors is missing"):
        check_projection(tmp_path, weights, WIDTH)
    (tmp_path / "projection.safetensors").write_bytes(b"")
    for text in ("{}", "[]", "no JSON", '{"format": 1, "thinker": "x"}'):
        (tmp_path / "projection.json").write_text(text)
        with pytest.raises(ProjectionError, match="not a projection's card"):
            check_projection(tmp_path, weights, WIDTH)
    (tmp_path / "projection.json").write_text('{"format": 99}')
    with pytest.raises(ProjectionError, match="format 1"):
        check_projection(tmp_path, weights, WIDTH)


@pytest.mark.parametrize(
    ("pair", "reference", "message"),
    [
        ("../x={llm}", "known={known}", "no name for a file"),
        ("neox={llm}/nowhere", "known={known}", "no config.json"),
        ("neox={llm}", "stranger={known}", "knows no Thinker 'stranger'; it knows known, other"),
        ("neox={bare}", "known={known}", "no chat template"),
        ("{llm}", "known={known}", "takes NAME=PATH"),
        ("neox={llm}", "other={known}", "is not other: 576 wide, not 8"),
    ],
)
def test_what_cannot_be_fitted_is_told(
    pair: str, reference: str, message: str, llm: Path, tiny_thinker: Path, weights: Path, tmp_path: Path
) -> None:
    places = {"llm": llm, "known": tiny_thinker, "bare": write_llm(tmp_path / "bare", template=None)}
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    words = ["thinker", "--tiny", "--work", str(tmp_path), "--thinker", pair.format(**places)]
    words += ["--reference", reference.format(**places), "--weights", str(weights)]
    with pytest.raises(SystemExit, match=message):
        main(parser.parse_args(words))


def test_a_folder_is_not_used_for_two_llms(fitted: Work, tiny_thinker: Path, weights: Path, tmp_path: Path) -> None:
    other = write_llm(tmp_path / "other", width=96)
    with pytest.raises(SystemExit, match="a fit of something else"):
        run(fitted.root.parent.parent, other, tiny_thinker, weights)


def test_the_reference_is_one_that_is_assembled(tmp_path: Path) -> None:
    assert find_reference(["one", "two"], tmp_path) is None
    folder = tmp_path / "thinkers" / "two-int8"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert find_reference(["one", "two"], tmp_path) == ("two", folder)


def test_soft_cross_entropy_equals_that_of_the_whole_table() -> None:
    torch.manual_seed(0)
    net = TalkerNet(TALKER).eval()
    with torch.no_grad():
        for name in ("head_code", "head_advance", "head_special"):
            getattr(net, name).mul_(20)
    states, teacher = torch.randn(2, 5, TALKER.width)
    losses, same = soft_cross_entropy(net, states, teacher)
    _, head = net.full_tables()
    assert head.shape[0] == VOCABULARY
    wanted = torch.nn.functional.cross_entropy(states @ head.T, (teacher @ head.T).softmax(-1), reduction="none")
    torch.testing.assert_close(losses, wanted, rtol=1e-4, atol=1e-4)
    assert soft_cross_entropy(net, teacher, teacher)[1].all() and same.shape == (5,)


def test_the_pointer_walks_as_the_tokens_say() -> None:
    assert walk(torch.tensor([3, 1, 2, 1, EOS]), 4).tolist() == [0, 0, 1, 3, 3]
    assert walk(torch.tensor([BOS - 1]), 3).tolist() == [0]


def test_rows_belong_to_the_tokens_that_the_server_gives_them() -> None:
    text, pieces = "Yes, it is there.", ["Yes", ",", " it", " is", " the", "re", "."]
    ends = [sum(map(len, pieces[: number + 1])) for number in range(len(pieces))]
    frontend = TextFrontend()
    rows = [row for piece in pieces for row in frontend.push(piece)] + frontend.finish()
    symbols, tokens = row_tokens(text, ends)
    assert [tuple(row) for row in rows] == list(zip(symbols.tolist(), tokens.tolist(), strict=True))


def test_a_thinker_that_the_talker_knows_gets_its_own_matrix_again(
    tiny_thinker: Path, weights: Path, tmp_path: Path
) -> None:
    """Its matrix is thrown away; what is fitted from its replies speaks as the Talker's own does."""
    words = ("red", "blue", "green", "one", "two", "three", "cats", "dogs", "fish", "birds", "run", "sleep")
    replies = [
        {"prompt": "Say it.", "system": "", "text": f"The {a} {b} {c}."}
        for a, b, c in zip(words, words[5:] + words[:5], words[3:] + words[:3], strict=True)
    ]
    work = Work(tmp_path / "projections" / "again")
    work.file("replies.json").write_text(json.dumps({"asked": 1, "items": replies}), encoding="utf-8")
    plan = replace(TINY_PLAN, replies=len(replies), fit=FitPlan(steps=4, batch_steps=600, report=2))
    measured = thinker_step(
        tmp_path, name="again", folder=tiny_thinker, reference=("known", tiny_thinker), weights=weights, plan=plan,
        device=torch.device("cpu"),
    )  # fmt: skip
    assert measured["replies"] >= 1
    assert measured["gap_closed"] > 0.8


def training_folder(root: Path, voice: str) -> Work:
    """As far as it matters here, what a training leaves: replies, rows with their sound's ends, codes that fit them."""
    work = Work(root)
    rng = np.random.default_rng(0)
    words = ("red", "blue", "green", "one", "two", "three", "cats", "dogs", "fish", "birds", "run", "sleep")
    texts = [f"the {a} {b}." for a, b in zip(words, words[5:] + words[:5], strict=True)]
    items = [{"prompt": "say it", "system": "", "text": text} for text in texts]
    work.file("texts", "someone.json").write_text(json.dumps(items), encoding="utf-8")
    work.file("voices.json").write_text(json.dumps([voice]), encoding="utf-8")
    marks = [read_text(text) for text in texts]
    lengths = [rng.integers(600, 2400, len(rows)).cumsum() for rows in marks]
    # the code says the row's symbol: it can be learnt from nothing but the text
    codes = [np.asarray([7 * rows[at].symbol for at in pointers(ends.astype(np.int32), -(-ends[-1] // 960))[:-1]])
             for rows, ends in zip(marks, lengths, strict=True)]  # fmt: skip
    write_arrays(
        work.file("speech", voice, "someone", "000000.npz"), rows=np.asarray([len(rows) for rows in marks]),
        symbols=np.concatenate([[mark.symbol for mark in rows] for rows in marks]).astype(np.uint8),
        ends=np.concatenate(lengths).astype(np.int32),
        positions=np.concatenate([[mark.end for mark in rows] for rows in marks]).astype(np.int32),
    )  # fmt: skip
    write_arrays(
        work.file("codes.npz"), codes=np.concatenate(codes).astype(np.int16), counts=np.asarray(list(map(len, codes))),
        voice=np.zeros(len(codes), np.int64), text_set=np.asarray(["someone"] * len(codes)),
        index=np.arange(len(codes)),
    )  # fmt: skip
    return work


def test_a_training_gives_the_codes_of_real_speech(llm: Path, weights: Path, tmp_path: Path) -> None:
    """No Thinker that the Talker knows is needed then."""
    training = training_folder(tmp_path, TALKER.voices[0])
    plan = replace(TINY_PLAN, fit=FitPlan(steps=30, batch_steps=600, report=10, rate=3e-3, warm_up=2))
    measured = thinker_step(
        tmp_path, name="neox", folder=llm, reference=None, weights=weights, plan=plan, device=torch.device("cpu")
    )
    assert measured["with_hidden"] < measured["without_hidden"]
    assert "reference" not in measured
    points = curve(Work(tmp_path / "projections" / "neox"))
    assert points[-1]["loss"] < points[0]["loss"]
    training.file("voices.json").write_text('["stranger"]', encoding="utf-8")
    with pytest.raises(ValueError, match="has the voices stranger"):
        thinker_step(
            tmp_path, name="neox", folder=llm, reference=None, weights=weights, plan=plan, device=torch.device("cpu")
        )


def test_without_a_reference_or_codes_it_says_what_to_do(llm: Path, weights: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="voicechat assemble --model embedded-tiny"):
        thinker_step(
            tmp_path, name="neox", folder=llm, reference=None, weights=weights, plan=TINY_PLAN,
            device=torch.device("cpu"),
        )  # fmt: skip
