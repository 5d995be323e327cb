"""The published Qwen2.5-Omni-3B and 7B: each parameter has one place, of its shape; what their folders say."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.mapping import count_mapped
from voicechat.contract.family import FamilyError, GivenFolder
from voicechat.models.qwen2_5_omni.engines import sound_length
from voicechat.models.qwen2_5_omni.family import FAMILY
from voicechat.models.qwen2_5_omni.speakers import speaker_tokens
from voicechat.models.qwen2_5_omni.utterance import TalkerIds
from voicechat.models.qwen_common.config import CheckpointError
from voicechat.models.qwen_common.settings import QwenOmniSettings

ROPE = {"rope_type": "default", "mrope_section": [16, 24, 24], "rope_theta": 1e6}
EYES = {"hidden_size": 1280, "intermediate_size": 3420}
TEXT = {"rope_parameters": ROPE, "tie_word_embeddings": False}
TALKER = {"hidden_size": 896, "num_hidden_layers": 24, "rope_parameters": ROPE}
SIZES: dict[str, dict[str, Any]] = {
    "7B": {
        "thinker_config": {"text_config": TEXT, "vision_config": EYES},
        "talker_config": {
            **TALKER, "embedding_size": 3584, "intermediate_size": 18944,
            "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 128,
        },
    },
    "3B": {
        "thinker_config": {
            "text_config": {
                **TEXT, "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 11008,
                "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 2,
            },
            "vision_config": {**EYES, "out_hidden_size": 2048},
            "audio_config": {"output_dim": 2048},
        },
        "talker_config": {
            **TALKER, "embedding_size": 2048, "intermediate_size": 4864,
            "num_attention_heads": 14, "num_key_value_heads": 2, "head_dim": 64,
        },
    },
}  # fmt: skip


def config_of(size: str) -> dict[str, Any]:
    """``config.json`` of a published size, defaults filled in."""
    from transformers import Qwen2_5OmniConfig

    config = Qwen2_5OmniConfig(**SIZES[size], token2wav_config={}, architectures=["Qwen2_5OmniModel"])
    made: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return made


def save_voices(folder: Path, **voices: int) -> None:
    table = {
        name: {"cond": torch.ones(1, 192), "ref_mel": torch.ones(1, 9, 80), "bos_token": voices[name]}
        for name in voices
    }
    torch.save(table, folder / "spk_dict.pt")


@pytest.mark.slow
@pytest.mark.parametrize("size", ["7B", "3B"])
@pytest.mark.parametrize("stage", ["thinker", "talker"])
def test_engines_take_each_parameter_once(tmp_path: Path, size: str, stage: str) -> None:
    numbers = count_mapped("qwen2_5_omni", stage, config_of(size), tmp_path)
    low, high = {"thinker7B": (8.5e9, 9.2e9), "talker7B": (1.8e9, 2e9), "thinker3B": (4.4e9, 5e9),
                 "talker3B": (0.6e9, 0.8e9)}[stage + size]  # fmt: skip
    assert low < numbers < high


def test_the_voicebox_takes_each_parameter_once() -> None:
    from transformers import Qwen2_5OmniConfig
    from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavModel

    from voicechat.models.qwen2_5_omni.token2wav import Token2Wav

    config = config_of("7B")["token2wav_config"]
    with torch.device("meta"):
        ours = Token2Wav(config)
        theirs = Qwen2_5OmniToken2WavModel(Qwen2_5OmniConfig().token2wav_config)
    shapes = {name: parameter.shape for name, parameter in theirs.named_parameters()}
    assert {name: parameter.shape for name, parameter in ours.net.named_parameters()} == shapes
    assert (ours.shape.block, ours.shape.step_samples, ours.shape.codes) == (12, 480, 8194)


def test_what_the_family_says_of_it(tmp_path: Path) -> None:
    config = config_of("3B")
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_voices(tmp_path, Ethan=151861, Chelsie=151860)
    model = QwenOmniSettings(family="qwen2_5_omni", source=str(tmp_path))
    assert FAMILY.folders(model, thinks=True) == {"model": GivenFolder(tmp_path)}
    facts = FAMILY.facts(model, {"model": tmp_path}, thinks=True)
    assert facts.voices == ("chelsie", "ethan") and facts.talker["speakers"] == [151860, 151861]
    assert (facts.step_samples, facts.step_bytes, facts.extra_bytes, facts.look_ahead) == (480, 2, 0, 12)
    assert facts.rows is not None and (facts.rows.width, facts.rows.begin) == (2048, "prompt")
    ids = TalkerIds.of(config, 10)
    assert (ids.codec_bos, ids.codec_eos, ids.codec_pad, ids.codec_mask) == (8293, 8294, 8292, 8296)
    with pytest.raises(FamilyError, match="brain elsewhere"):
        FAMILY.folders(model, thinks=False)
    with pytest.raises(FamilyError, match="no voice bob; there are chelsie, ethan"):
        FAMILY.facts(model.model_copy(update={"voices": ("bob",)}), {"model": tmp_path}, thinks=True)
    (tmp_path / "spk_dict.pt").unlink()
    with pytest.raises(FamilyError, match="spk_dict.pt is missing"):
        FAMILY.facts(model, {"model": tmp_path}, thinks=True)
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "qwen3_omni_moe"}))
    with pytest.raises(FamilyError, match="of type 'qwen3_omni_moe', not 'qwen2_5_omni'"):
        FAMILY.facts(model, {"model": tmp_path}, thinks=True)


def test_a_table_of_voices_runs_nothing(tmp_path: Path) -> None:
    class Bad:
        def __reduce__(self) -> Any:
            return print, ("run",)

    with zipfile.ZipFile(tmp_path / "spk_dict.pt", "w") as archive:
        archive.writestr("x/data.pkl", pickle.dumps({"Chelsie": Bad()}))
    with pytest.raises(CheckpointError, match=r"builtins\.print has no place in a table of voices"):
        speaker_tokens(tmp_path)
    (tmp_path / "spk_dict.pt").write_bytes(b"<html>")
    with pytest.raises(CheckpointError, match="no table of voices"):
        speaker_tokens(tmp_path)


def test_lengths_of_sounds() -> None:
    """As the published encoder's own rule has them."""
    from transformers import Qwen2_5OmniConfig
    from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniAudioEncoder

    with torch.device("meta"):
        encoder = Qwen2_5OmniAudioEncoder(Qwen2_5OmniConfig().thinker_config.audio_config)
    for frames in (4, 5, 6, 7, 99, 100, 101, 3000):
        assert int(encoder._get_feat_extract_output_lengths(torch.tensor(frames))[1]) == sound_length(frames)
