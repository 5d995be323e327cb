"""All training steps in their tiny form, one after the other, on a CPU; each can be run again at no cost."""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from voicechat.models.embedded.talker import Conditioner, load_talker
from voicechat.models.embedded.untrained import random_weights
from voicechat.models.embedded.voicebox import BINS, left_context, load_voicebox
from voicechat.models.embedded.weights import (
    CARD_FILE,
    TALKER_FILE,
    VOICE_FILE,
    VOICEBOX_FILE,
    load_tensors,
    load_voice_config,
)
from voicechat.train.cli import TINY_TALKER, add_arguments, main, tiny_voicebox_plan
from voicechat.train.coded import CODES_FILE
from voicechat.train.common import Work, thinker_paths
from voicechat.train.evaluate import Said, decode_chunked, load_items
from voicechat.train.pack import pack_decoder
from voicechat.train.spectrum import lift_noise
from voicechat.train.thinkers import TrainingThinker
from voicechat.train.voicebox import DECODER_FILE, ENCODER_FILE, PLAIN_DECODER_FILE, voicebox_step


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return main(parser.parse_args(arguments))


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, tiny_thinker: Path) -> Work:
    """A work folder after texts, speech, VoiceBox and Talker."""
    pytest.importorskip("onnx")
    folder = tmp_path_factory.mktemp("work")
    write_replies = Work(folder).file("texts", "smollm2-135m.json")
    replies = ["Yes, I think so.", "It is Paris.", "There are two of them.", "No. Never!", "On the 5th of May."]
    items = [{"prompt": "Say it.", "system": "", "text": text} for text in replies]
    write_replies.write_text(json.dumps(items), encoding="utf-8")
    common = ("--tiny", "--work", str(folder), "--device", "cpu")
    assert run("texts", *common, "--thinker", f"smollm2-135m={tiny_thinker}") == 0
    voices = ("--teacher", "heart=hibari", "--teacher", "alto=hibari:0.85", "--share", "alto=0.5")
    assert run("speech", *common, "--processes", "1", *voices) == 0
    assert run("voicebox", *common) == 0
    assert run("talker", *common) == 0
    return Work(folder)


def curve(work: Work, name: str) -> list[dict[str, float]]:
    lines = work.file("curves", f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_losses_go_down(work: Work) -> None:
    for name, measure in (("voicebox-codec", "mel"), ("voicebox-codec", "phoneme"), ("talker", "loss")):
        # The first point is a single batch, the others are means over the steps since the one before.
        points = [point[measure] for point in curve(work, name)][1:]
        assert points[-1] < points[0], (name, measure, points)


def test_hidden_states_are_measured_apart(work: Work) -> None:
    last = curve(work, "talker")[-1]
    assert {"ce_text", "ce_smollm2-135m", "accuracy_text", "ce_heart", "ce_alto", "score"} <= set(last)


def test_voices_share_the_texts(work: Work) -> None:
    assert work.voices() == ("heart", "alto")
    spoken = {}
    for voice in work.voices():
        with np.load(work.file("speech", voice, "plain", "000000.npz")) as shard:
            spoken[voice] = shard["samples"] > 0
        with np.load(work.file("speech", voice, "smollm2-135m", "000000.npz")) as shard:
            assert (shard["samples"] > 0).all(), "held-out texts are spoken by every voice"
    assert spoken["heart"].all()
    assert 0.3 < spoken["alto"].mean() < 0.7


def test_rows_and_codes_fit(work: Work) -> None:
    with np.load(work.file("held.npz")) as held:
        items = json.loads(work.file("held.json").read_text(encoding="utf-8"))
        assert [item["key"] for item in items] == ["smollm2-135m-0", "smollm2-135m-1"]
        for item in items:
            symbols = held[f"{item['key']}.symbols"]
            assert symbols[0] == symbols[-1] == 0
            assert held[f"{item['key']}.hidden"].shape == (len(symbols), 576)
            for voice in work.voices():
                assert held[f"{item['key']}.codes.{voice}"].max() < 4375
                rows = held[f"{item['key']}.pointers.{voice}"]
                assert len(rows) == len(held[f"{item['key']}.codes.{voice}"])
                assert rows[0] == 0 and rows[-1] in range(len(symbols) - 3, len(symbols))
                assert set(np.diff(rows).tolist()) <= {0, 1, 2}
    assert [len(item.said.windows) for item in load_items(work, 2, "alto")] == [
        len(item.codes) for item in load_items(work, 2, "alto")
    ]


def test_samples_can_be_heard(work: Work) -> None:
    names = {path.name for path in work.root.glob("samples/*.wav")}
    wanted = {"teacher-heart-plain.wav", "voicebox-alto-1.wav", "talker-alto-text-smollm2-135m-0.wav"}
    assert wanted <= names


def test_finished_steps_do_nothing_more(work: Work) -> None:
    before = curve(work, "talker")
    assert run("voicebox", "--tiny", "--work", str(work.root), "--device", "cpu") == 0
    assert run("talker", "--tiny", "--work", str(work.root), "--device", "cpu") == 0
    assert curve(work, "talker") == before


def test_pack(work: Work, tmp_path: Path) -> None:
    assert run("pack", "--tiny", "--work", str(work.root), "--out", str(tmp_path)) == 0
    voices = ("heart", "alto")
    assert load_talker(tmp_path).config == replace(TINY_TALKER, voices=voices)
    voicebox = load_voicebox(tmp_path)
    assert voicebox.config.voices == 2
    codes = torch.randint(0, 4375, (1, 12), generator=torch.Generator().manual_seed(0)).expand(2, 12)
    symbols = torch.randint(0, 179, (1, 12, 9)).expand(2, -1, -1)
    heart, alto = voicebox.decode(codes, symbols, torch.tensor([0, 1]))
    assert torch.equal(heart, voicebox.decode(codes[:1], symbols[:1])[0]), "the first voice is the default"
    assert not torch.allclose(heart, alto, atol=1e-4)
    conditioner = Conditioner.from_weights(tmp_path, "smollm2-135m")
    rows = conditioner(
        torch.zeros(2, 9, dtype=torch.long), torch.ones(2, 576), torch.ones(2, dtype=torch.bool), torch.tensor([0, 1])
    )
    assert not torch.allclose(rows[0], rows[1])
    assert "WordNet" in (tmp_path / CARD_FILE).read_text(encoding="utf-8")


def test_pack_the_decoder_before_the_gan(work: Work, tmp_path: Path) -> None:
    common = ("pack", "--tiny", "--work", str(work.root), "--out")
    assert run(*common, str(tmp_path / "plain"), "--plain-decoder") == 0
    assert run(*common, str(tmp_path / "gan")) == 0
    plain, gan = (load_voicebox(tmp_path / name).state_dict() for name in ("plain", "gan"))
    assert set(plain) == set(gan)
    assert not torch.equal(plain["head.weight"], gan["head.weight"])


def test_pack_random(tmp_path: Path) -> None:
    assert run("pack", "--random", "--out", str(tmp_path)) == 0
    load_talker(tmp_path)


def test_steps_in_the_wrong_order(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="speech"):
        run("voicebox", "--tiny", "--work", str(tmp_path), "--device", "cpu")
    with pytest.raises(FileNotFoundError, match="voicebox"):
        run("talker", "--tiny", "--work", str(tmp_path), "--device", "cpu")
    with pytest.raises(FileNotFoundError, match="train first"):
        run("pack", "--tiny", "--work", str(tmp_path), "--out", str(tmp_path / "out"))
    with pytest.raises(SystemExit):
        run("texts")


def test_thinker_pairs() -> None:
    assert thinker_paths(["a=/b=c"]) == {"a": Path("/b=c")}
    with pytest.raises(ValueError, match="NAME=PATH"):
        thinker_paths(["a"])


def test_replies_and_hidden_states(tiny_thinker: Path) -> None:
    thinker = TrainingThinker(tiny_thinker, torch.device("cpu"))
    prompt = thinker.prompt_ids("Hello?", None)
    assert len(thinker.replies([prompt, prompt + prompt], 4)) == 2
    items = [{"prompt": "Hello?", "text": "Yes."}, {"prompt": "A longer question?", "text": "No, never."}]
    states, counts, ends = thinker.hidden_states(items)
    assert counts.tolist() == [4, 10] and ends.tolist() == [*range(1, 5), *range(1, 11)]
    ids = torch.tensor([prompt + thinker.tokenizer("Yes.", add_special_tokens=False)["input_ids"]])
    with torch.inference_mode():
        hidden = thinker.model.model(input_ids=ids).last_hidden_state[0]
    np.testing.assert_allclose(states[:4], hidden[len(prompt) - 1 : -1].numpy(), atol=2e-2)


@pytest.fixture(scope="module")
def weights(work: Work, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small voice, packed."""
    folder = tmp_path_factory.mktemp("weights")
    assert run("pack", "--tiny", "--work", str(work.root), "--out", str(folder)) == 0
    return folder


def same_speech(work: Work, folder: Path) -> Work:
    """A work folder in which nothing is trained yet."""
    for name in ("speech", "voices.json", "speech.complete"):
        source = work.root / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
    return Work(folder)


@pytest.fixture(scope="module")
def again(work: Work, weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Work:
    """A work folder with the same speech, after the step ``decoder``."""
    made = same_speech(work, tmp_path_factory.mktemp("again"))
    common = ("--tiny", "--work", str(made.root), "--device", "cpu")
    assert run("decoder", *common, "--weights", str(weights), "--snapshots", "0") == 0
    return made


@pytest.fixture(scope="module")
def kept(work: Work, weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Work:
    """As ``again``, but with the encoder that the codes are of."""
    made = same_speech(work, tmp_path_factory.mktemp("kept"))
    options = ("--tiny", "--work", str(made.root), "--device", "cpu", "--weights", str(weights))
    assert run("decoder", *options, "--encoder", str(work.file(ENCODER_FILE))) == 0
    return made


def test_a_new_encoder_learns_the_old_codes_and_the_decoder_goes_on(again: Work, weights: Path) -> None:
    for name, measure in (("voicebox-codec", "mel"), ("voicebox-codec", "listener_accuracy")):
        points = [point[measure] for point in curve(again, name)][1:]
        assert (points[-1] < points[0]) == (measure == "mel"), (name, measure, points)
    measures = {"mel", "hearing", "fool", "feature", "judge", *(f"pull_{voice}" for voice in again.voices())}
    assert measures <= set(curve(again, "voicebox-gan")[-1])
    before = load_tensors(weights / VOICEBOX_FILE)
    assert "decoder" not in torch.load(again.file("voicebox", "codec.pt"), weights_only=True)
    snapshots = sorted(path.name for path in again.root.glob("snapshots/*.safetensors"))
    assert len(snapshots) == 7 and {"plain.safetensors", "last.safetensors", "gan-000004.safetensors"} <= set(snapshots)
    for name in snapshots:
        state = load_tensors(again.file("snapshots", name))
        assert state.keys() == before.keys() and not torch.equal(state["head.weight"], before["head.weight"])


def test_a_kept_encoder_stays_and_its_codes_with_it(work: Work, kept: Work, again: Work) -> None:
    wanted, ours, other = (load_tensors(one.file(ENCODER_FILE)) for one in (work, kept, again))
    assert wanted.keys() == ours.keys() and all(torch.equal(ours[name], value) for name, value in wanted.items())
    assert not all(torch.equal(other[name], value) for name, value in wanted.items())
    with np.load(work.file(CODES_FILE)) as theirs, np.load(kept.file(CODES_FILE)) as codes:
        assert set(theirs) == set(codes)
        for name in theirs:
            np.testing.assert_array_equal(codes[name], theirs[name])
        assert len(np.unique(codes["codes"])) > 20
    learned = torch.load(kept.file("voicebox", "codec.pt"), weights_only=True)
    assert set(learned) == {"listener", "optimizer", "step", "elapsed"}
    points = curve(kept, "voicebox-codec")
    assert set(points[0]) == {"step", "seconds", "hearing", "listener_accuracy", "hours"}
    assert points[-1]["hearing"] < points[1]["hearing"]


def test_a_kept_encoders_decoder_is_trained_and_can_be_packed(work: Work, kept: Work, weights: Path) -> None:
    before, after = (load_tensors(weights / VOICEBOX_FILE), load_state(kept, DECODER_FILE))
    assert before.keys() == after.keys()
    assert not torch.equal(before["head.weight"], after["head.weight"])
    assert [point["step"] for point in curve(kept, "voicebox-plain")] == [0, 19]


def load_state(work: Work, *name: str) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(work.file(*name), weights_only=True)
    return state


@pytest.mark.parametrize("share", [0, 1])
def test_the_decoder_is_the_plain_one_or_the_gans_mean_by_their_share(
    again: Work, weights: Path, share: int, tmp_path: Path
) -> None:
    """But for biases of magnitudes: the correction of the spectrum, and the lift of the noise."""
    made = Work(shutil.copytree(again.root, tmp_path / "copy"))
    steps = load_state(made, "voicebox", "gan.pt")["step"]
    plan = replace(tiny_voicebox_plan(), weights=weights, gan_steps=steps, share=share, lift=6.0)
    voicebox_step(made, plan, torch.device("cpu"))
    plain, mixed = load_state(made, PLAIN_DECODER_FILE), load_state(made, DECODER_FILE)
    mean = torch.load(made.file("voicebox", "gan.pt"), weights_only=True)["mean"]
    assert plain.keys() == mixed.keys() == mean.keys()
    assert not torch.equal(plain["head.weight"], mean["head.weight"])
    wanted = (plain, mean)[share]
    assert all(torch.equal(value, wanted[name]) for name, value in mixed.items() if name != "head.bias")
    added = mixed["head.bias"] - wanted["head.bias"]
    tone, phase, noise = added.split((BINS, BINS, len(added) - 2 * BINS))
    torch.testing.assert_close(phase, torch.zeros_like(phase), rtol=0, atol=1e-6)
    assert tone.abs().max() <= 0.5 + 1e-5
    lifted = load_voicebox(weights)
    bias = lifted.head.bias.clone()
    lift_noise(lifted, plan.lift)
    lift = (lifted.head.bias - bias)[2 * BINS :]
    torch.testing.assert_close(noise, tone[::2].repeat(2) + lift, rtol=1e-4, atol=1e-5)


def test_a_decoder_step_goes_on_where_it_stopped(again: Work, weights: Path) -> None:
    before = curve(again, "voicebox-gan")
    plan = replace(tiny_voicebox_plan(), weights=weights, gan_steps=6)
    voicebox_step(again, plan, torch.device("cpu"))
    after = curve(again, "voicebox-gan")
    assert after[: len(before)] == before and [point["step"] for point in after[len(before) :]] == [5]
    assert [point["step"] for point in curve(again, "voicebox-plain")] == [0, 19]


def test_pack_a_decoder_beside_the_talker_that_is_there(again: Work, weights: Path, tmp_path: Path) -> None:
    options = ("pack", "--work", str(again.root), "--keep-talker", "--weights", str(weights), "--out", str(tmp_path))
    assert run(*options) == 0
    for name in (TALKER_FILE, VOICE_FILE, CARD_FILE):
        assert (tmp_path / name).read_bytes() == (weights / name).read_bytes()
    voicebox = load_voicebox(tmp_path)
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 4375, (40,), generator=generator).tolist()
    said = Said(codes, torch.randint(0, 179, (40, 9), generator=generator))
    whole = decode_chunked(voicebox, said, 40, 0, 1)
    served = decode_chunked(voicebox, said, 4, left_context(voicebox.config), 1)
    np.testing.assert_allclose(served, whole, atol=1e-4)
    assert not np.allclose(whole, decode_chunked(load_voicebox(weights), said, 40, 0, 1), atol=1e-3)
    random_weights(tmp_path / "other")
    with pytest.raises(ValueError, match="shape"):
        pack_decoder(again, tmp_path / "other", tmp_path)


def test_a_decoder_of_other_voices_is_refused(again: Work, tmp_path: Path) -> None:
    random_weights(tmp_path)
    with pytest.raises(ValueError, match="voices heart, the speech heart, alto"):
        run("decoder", "--tiny", "--work", str(again.root), "--device", "cpu", "--weights", str(tmp_path))


def test_packing_anew_keeps_what_is_said_of_the_voices(work: Work, tmp_path: Path) -> None:
    options = ("pack", "--tiny", "--work", str(work.root), "--out", str(tmp_path))
    assert run(*options) == 0
    path = tmp_path / VOICE_FILE
    known = json.loads(path.read_text(encoding="utf-8"))
    known |= {"about": {"alto": {"name": "Alto"}, "gone": {"name": "Gone"}}, "sampling": {"temperature": 0.5}}
    path.write_text(json.dumps(known), encoding="utf-8")
    assert run(*options) == 0
    config = load_voice_config(tmp_path)
    assert config.about == {"alto": {"name": "Alto"}}
    assert config.sampling.temperature == 0.5
