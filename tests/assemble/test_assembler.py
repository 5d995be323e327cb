"""``assemble``: everything once, nothing twice, and on from any interruption. With made-up models."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from made_up import artifact, write_gguf
from safetensors.torch import load_file

from voicechat.assemble import AssembledPaths, AssembleError, assemble, assembler
from voicechat.assemble.assembler import missing_parts
from voicechat.assemble.catalogue import DETECTORS, EARS, THINKERS, ThinkerSource
from voicechat.assemble.progress import Reporter
from voicechat.assemble.store import STAMP
from voicechat.config import Settings, load_settings
from voicechat.contract.artifacts import Artifact
from voicechat.models.embedded.untrained import random_weights


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    random_weights(folder, seed=1)
    return folder


@pytest.fixture
def settings(tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings whose every source file lies in the folder ``local``."""
    local = tmp_path / "local"
    local.mkdir()
    write_gguf(local / "m.gguf", "qwen2", output=True)
    ears = {"model.bin": b"ears", "config.json": b"{}"}
    detectors = {"silero_vad.onnx": b"silero", "silero_vad.LICENSE": b"MIT"}
    for name, content in (ears | detectors).items():
        (local / name).write_bytes(content)
    source = ThinkerSource("made-up", artifact("m.gguf", (local / "m.gguf").read_bytes()), "Apache-2.0", tied=True)
    monkeypatch.setattr(assembler, "THINKERS", {"made-up": source})
    monkeypatch.setattr(assembler, "EARS", tuple(artifact(name, content) for name, content in ears.items()))
    monkeypatch.setattr(assembler, "DETECTORS", tuple(artifact(name, content) for name, content in detectors.items()))
    overrides = [
        f"data_dir={tmp_path / 'data'}",
        f"assemble.local={local}",
        "assemble.hub=false",
        "assemble.pypi=false",
    ]
    overrides += ["model.thinker.source=made-up", f"model.weights={weights}"]
    return load_settings("embedded", overrides=overrides, environ={})


def changed(settings: Settings, **model: Any) -> Settings:
    """Settings with other values in ``model``."""
    tree = settings.model_dump()
    for section, values in model.items():
        tree["model"][section] = {**tree["model"][section], **values} if isinstance(values, dict) else values
    return Settings.model_validate(tree)


def make(settings: Settings, *, verify: bool = False) -> tuple[AssembledPaths, str]:
    log = io.StringIO()
    return assemble(settings, Reporter(log), verify=verify), log.getvalue()


def test_all_folders_are_made_once(settings: Settings, weights: Path) -> None:
    assert len(missing_parts(settings)) == 4
    paths, log = make(settings)
    assert "convert made-up-int8" in log
    assert sorted(file.name for file in paths.folders["thinker"].iterdir()) == [
        STAMP,
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert (paths.ears / "model.bin").read_bytes() == b"ears"
    assert sorted(file.name for file in paths.detectors.iterdir()) == [STAMP, "silero_vad.LICENSE", "silero_vad.onnx"]
    assert json.loads((paths.folders["talker"] / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    assert paths.folders["weights"] == weights
    assert missing_parts(settings) == []
    assert make(settings) == (paths, "")


def test_only_what_changed_is_made_again(settings: Settings) -> None:
    first, _ = make(settings)
    plain, log = make(changed(settings, thinker={"quantization": "none"}))
    assert plain.folders["thinker"] != first.folders["thinker"]
    assert (plain.ears, plain.folders["talker"], plain.detectors) == (
        first.ears,
        first.folders["talker"],
        first.detectors,
    )
    assert "Talker" not in log
    other, log = make(changed(settings, talker={"quantization": "none"}))
    assert other.folders["talker"] != first.folders["talker"]
    assert "convert" not in log
    widths = [
        load_file(made.folders["talker"] / "model.safetensors")["lm_head.weight"].dtype.itemsize
        for made in (first, other)
    ]
    assert widths == [1, 2], "int8, then bfloat16"


def test_damage_is_repaired(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, _ = make(settings)
    file = paths.folders["thinker"] / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    assert f"is damaged: model.safetensors has {len(whole) - 1} bytes" in make(settings)[1]
    assert file.read_bytes() == whole
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    monkeypatch.setattr("voicechat.assemble.store.SMALL", 1 << 10)  # as it is with a model of gigabytes
    assert make(settings)[1] == ""
    assert "is damaged: model.safetensors is not what it was" in make(settings, verify=True)[1]
    assert file.read_bytes() == whole


@pytest.mark.parametrize("step", ["convert", "write_stamp"])
def test_an_interrupt_is_survived(settings: Settings, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def interrupted(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        target = (
            "voicechat.assemble.gguf_model.convert" if step == "convert" else "voicechat.assemble.assembler.write_stamp"
        )
        patch.setattr(target, interrupted)
        with pytest.raises(KeyboardInterrupt):
            make(settings)
    assert len(missing_parts(settings)) == 4
    # the source file is kept, so the folder with the originals may be gone by now
    settings.assemble.local.joinpath("m.gguf").unlink()  # type: ignore[union-attr]
    make(settings)
    assert missing_parts(settings) == []


def test_a_folder_of_the_users_is_taken_as_it_is(settings: Settings, tmp_path: Path) -> None:
    given = tmp_path / "mine"
    given.mkdir()
    with pytest.raises(AssembleError, match=r"has no config\.json"):
        make(changed(settings, thinker={"dir": given}))
    (given / "config.json").write_text("{}")
    with pytest.raises(AssembleError, match="how wide is a hidden state"):
        make(changed(settings, thinker={"dir": given}))
    (given / "config.json").write_text('{"hidden_size": 64}')
    with pytest.raises(AssembleError, match="has no chat template"):
        make(changed(settings, thinker={"dir": given}))
    (given / "chat_template.jinja").write_text("{{ messages }}")
    paths, log = make(changed(settings, thinker={"dir": given}))
    assert paths.folders["thinker"] == given
    assert "convert" not in log
    assert sorted(file.name for file in given.iterdir()) == ["chat_template.jinja", "config.json"]


def test_no_thinker_is_made_for_a_brain_elsewhere(settings: Settings) -> None:
    tree = settings.model_dump()
    tree["brain"].update(url="http://127.0.0.1:1/v1", model="m")
    away = Settings.model_validate(tree)
    paths, _ = make(away)
    assert set(paths.folders) == {"talker", "weights"}
    assert paths.folders["talker"].is_dir()
    assert paths.ears.is_dir()
    assert missing_parts(away) == []
    assert missing_parts(settings) == ["made-up-int8"]


def test_errors_say_what_to_do(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssembleError, match="no 'gpt-9'; there are made-up"):
        make(changed(settings, thinker={"source": "gpt-9"}))
    with pytest.raises(AssembleError, match="voicechat train"):
        make(changed(settings, weights=tmp_path))
    monkeypatch.setattr(assembler, "free_bytes", lambda _folder: 1)
    with pytest.raises(AssembleError, match=r"GB are free; make room or set data_dir"):
        make(settings)


def test_the_catalogue_is_consistent() -> None:
    assert list(THINKERS) == [source.name for source in THINKERS.values()]
    artifacts: list[Artifact] = [source.gguf for source in THINKERS.values()] + [*EARS, *DETECTORS]
    for item in artifacts:
        assert item.size == sum(member.size for member in item.members)
        for checksum in (item.sha256, *(member.sha256 for member in item.members)):
            assert len(bytes.fromhex(checksum)) == 32
    assert {load_settings(name, environ={}).model.thinker.source for name in ("embedded", "embedded-tiny")} <= set(
        THINKERS
    )
