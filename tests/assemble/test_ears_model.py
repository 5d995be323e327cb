"""Ears by choice: a Whisper of the operator's, in either form, and what is said of what is none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.models.ears import many
from voicechat.assemble import AssembledPaths, AssembleError
from voicechat.assemble.assembler import _ears_plan
from voicechat.assemble.ears_model import convert, is_converted, local_folder
from voicechat.assemble.progress import Reporter
from voicechat.config import ConfigError, load_settings
from voicechat.contract.hearing import HearingOptions
from voicechat.models.ears.folder import ears_facts
from voicechat.models.ears.refusal import EarsRefusal
from voicechat.models.ears.whisper import Ears
from voicechat.models.ears.whisper_torch import TorchEars

RATE = 16_000


@pytest.fixture(scope="module")
def hugging_face(tmp_path_factory: pytest.TempPathFactory, models: AssembledPaths) -> Path:
    return many.make(tmp_path_factory.mktemp("whisper") / "many", models.ears)


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory, hugging_face: Path) -> Path:
    target = tmp_path_factory.mktemp("converted") / "many"
    target.mkdir()
    convert(hugging_face, target, Reporter())
    return target


def test_either_form_is_known(hugging_face: Path, converted: Path, models: AssembledPaths, tmp_path: Path) -> None:
    assert not is_converted(hugging_face)
    assert is_converted(converted) and is_converted(models.ears)
    assert ears_facts(models.ears).languages == ("en",) and not ears_facts(models.ears).translates
    facts = ears_facts(converted)
    assert {"en", "de", "zh", "es"} <= set(facts.languages) and facts.translates and facts.words
    for model, folder in ((str(converted), converted), (str(hugging_face), tmp_path / "ears" / "many")):
        settings = load_settings("embedded", overrides=[f"ears.model={model}", f"data_dir={tmp_path}"])
        plan = _ears_plan(settings)
        assert (plan.folder, plan.folder_is_ours) == (folder, folder != converted)


def test_they_hear_in_the_language_that_is_asked_for(converted: Path) -> None:
    """Which language the decoder is told is seen in what it writes; both forms of the ears agree."""
    sound = np.random.default_rng(5).normal(0, 0.1, 2 * RATE).astype(np.float32)
    ears = Ears(str(converted), threads=1, beam_size=1, compute_type="float32")
    on_torch = TorchEars(converted, device=torch.device("cpu"), max_batch=2)
    asked = [HearingOptions(language) for language in ("de", "es")]
    for options, other in zip(asked, on_torch.hear([(sound, options) for options in asked]), strict=True):
        heard = ears.hear(sound, options)
        assert heard.language == other.language == options.language
        assert other.no_speech == pytest.approx(heard.no_speech, abs=1e-3)
        assert other.log_probability == pytest.approx(heard.log_probability, abs=2e-2)
    (found,) = on_torch.hear([(sound, HearingOptions())])
    assert found.language in ears.facts.languages
    assert ears.hear(sound, HearingOptions("de", translate=True)).language == "en"
    with pytest.raises(EarsRefusal, match="'xx' is not heard"):
        ears.hear(sound, HearingOptions("xx"))
    german = Ears(str(converted), threads=1, beam_size=1, language="de")
    assert german.hear(sound).language == "de"


def test_what_is_no_such_model(tmp_path: Path, models: AssembledPaths) -> None:
    for model in (str(tmp_path / "none"), "./none", "enormous"):
        with pytest.raises(AssembleError, match="there is no folder"):
            local_folder(model)
    assert local_folder("small") is None and local_folder("openai/whisper-small") is None
    with pytest.raises(AssembleError, match="holds no model"):
        is_converted(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(AssembleError, match="a model of type 'llama'"):
        is_converted(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "whisper"}))
    with pytest.raises(AssembleError, match=r"tokenizer\.json"):
        is_converted(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(AssembleError, match="can't be converted"):
        convert(tmp_path, tmp_path / "out", Reporter())
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(ValueError, match=r"is not Whisper's"):
        ears_facts(tmp_path)
    settings = load_settings("embedded", overrides=["ears.model=small", "assemble.hub=false"])
    with pytest.raises(AssembleError, match=r"assemble\.hub is false"):
        _ears_plan(settings)


def test_settings_that_do_not_fit() -> None:
    for override in ("ears.url=ftp://here", "ears.language=German"):
        with pytest.raises(ConfigError, match=override.split("=")[0]):
            load_settings("embedded", overrides=[override])
    with pytest.raises(ConfigError, match=r"ears\.model is not"):
        load_settings("embedded", overrides=["ears.url=http://127.0.0.1:1/v1"])
    given = load_settings(
        "embedded", overrides=["ears.url=http://127.0.0.1:1/v1/audio/transcriptions/", "ears.model=whisper-1"]
    )
    assert given.ears.url == "http://127.0.0.1:1/v1"
