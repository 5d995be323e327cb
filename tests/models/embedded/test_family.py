"""The family as the server asks it: folders, facts, and what it refuses. Nothing of a model is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from voicechat.config import load_settings
from voicechat.contract.family import Facts, FamilyError, GivenFolder, LlmFolder, MadeFolder
from voicechat.models.embedded.alphabet import LOOK_AHEAD, STEP_SAMPLES
from voicechat.models.embedded.family import FAMILY
from voicechat.models.embedded.settings import EmbeddedSettings
from voicechat.models.embedded.voicebox import RIGHT_CONTEXT, TOKEN_SAMPLES

VOICE = {
    "talker": {"voices": ["ann", "ben"], "thinkers": [["smollm2-135m", 576]]},
    "sampling": {"temperature": 0.4, "top_k": 33},
    "about": {"ben": {"name": "Ben"}, "gone": {"name": "X"}},
}


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 576, "n_positions": 1024}))
    (tmp_path / "voice.json").write_text(json.dumps(VOICE))
    return {"thinker": tmp_path, "talker": tmp_path / "t", "weights": tmp_path}


def model(*overrides: str) -> EmbeddedSettings:
    made = load_settings("embedded-tiny", overrides=overrides, environ={}).model
    assert isinstance(made, EmbeddedSettings)
    return made


def facts(folders: dict[str, Path], *overrides: str, thinks: bool = True) -> Facts:
    return FAMILY.facts(model(*overrides), folders, thinks=thinks)


def test_what_the_weights_say(folders: dict[str, Path]) -> None:
    told = facts(folders)
    assert (told.voices, told.about) == (("ann", "ben"), {"ben": {"name": "Ben"}})
    assert told.sampling == {"temperature": 0.4, "top_k": 33}
    assert told.rows is not None and (told.rows.width, told.rows.begin) == (576, "predicting")
    assert (told.context_tokens, told.sees, told.hears) == (1024, False, False)
    assert "voice" in told.system_prompt
    assert facts(folders, "model.thinker.system_prompt=Be brief.").system_prompt == "Be brief."


def test_the_server_knows_the_nets_numbers() -> None:
    """The server imports no torch, so they are written down twice."""
    assert (LOOK_AHEAD, STEP_SAMPLES) == (RIGHT_CONTEXT, TOKEN_SAMPLES)


def test_a_thinker_unknown_to_the_weights_is_read_by_its_text_alone(folders: dict[str, Path]) -> None:
    assert facts(folders).talker["thinker"] == "smollm2-135m"
    assert facts(folders, "model.thinker.source=other").talker["thinker"] is None
    assert facts(folders, f"model.thinker.dir={folders['thinker']}").talker["thinker"] is None


def test_a_brain_elsewhere_is_read_by_its_text_alone(folders: dict[str, Path]) -> None:
    """Nothing of a Thinker's folder is read."""
    del folders["thinker"]
    told = facts(folders, thinks=False)
    assert (told.rows, told.context_tokens, told.talker["thinker"], told.thinker) == (None, None, None, {})


def test_a_projection_stands_for_what_the_weights_know(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given by its file or by its folder."""
    monkeypatch.setattr("voicechat.models.embedded.family.check_projection", lambda *_: None)
    for place in (tmp_path, tmp_path / "projection.safetensors"):
        told = facts(folders, f"model.talker.projection={place}").talker
        assert (told["thinker"], told["projection"]) == (None, str(tmp_path / "projection.safetensors"))
    assert facts(folders).talker["projection"] is None


def test_the_folders_that_it_asks_for() -> None:
    asked = FAMILY.folders(model(), thinks=True)
    assert asked["thinker"] == LlmFolder("smollm2-135m", "int8")
    talker, weights = asked["talker"], asked["weights"]
    assert isinstance(talker, MadeFolder) and talker.path.startswith("talkers/")
    assert isinstance(weights, GivenFolder) and (weights.path / "voice.json").is_file()
    assert set(FAMILY.folders(model(), thinks=False)) == {"talker", "weights"}


def test_weights_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(FamilyError, match=r"talker\.safetensors, voicebox\.safetensors, voice\.json missing"):
        FAMILY.folders(model(f"model.weights={tmp_path}"), thinks=True)
