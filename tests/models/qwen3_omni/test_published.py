"""The published Qwen3-Omni-30B-A3B: each parameter has one place, of its shape; what its folder says, and bad ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.mapping import count_mapped
from voicechat.contract.family import FamilyError, GivenFolder, MadeFolder
from voicechat.models.qwen3_omni.code2wav import Code2Wav, Code2WavConfig
from voicechat.models.qwen3_omni.family import FAMILY
from voicechat.models.qwen3_omni.predictor import PredictorConfig, parameter_names
from voicechat.models.qwen3_omni.utterance import TalkerIds
from voicechat.models.qwen_common.checkpoint import Checkpoint, CheckpointError
from voicechat.models.qwen_common.settings import QwenOmniSettings

ROPE = {"rope_theta": 1e6, "rope_type": "default", "mrope_section": [24, 20, 20], "interleaved": True}
MARKS = {"audio_token_id": 151675, "image_token_id": 151655, "video_token_id": 151656, "audio_start_token_id": 151669}
EXPERTS = {
    "num_experts": 128,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "norm_topk_prob": True,
    "rope_parameters": ROPE,
}
CONFIG: dict[str, Any] = {
    "model_type": "qwen3_omni_moe",
    "thinker_config": {
        **MARKS,
        "text_config": {
            **EXPERTS,
            "tie_word_embeddings": False,
            "vocab_size": 152064, "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
            "intermediate_size": 768, "moe_intermediate_size": 768, "num_experts_per_tok": 8,
            "max_position_embeddings": 65536,
        },
        "audio_config": {"output_dim": 2048},
        "vision_config": {"out_hidden_size": 2048, "image_size": 768, "apply_vit_abs_pos_embed": True},
    },
    "talker_config": {
        **MARKS,
        "accept_hidden_layer": 24, "spatial_merge_size": 2, "thinker_hidden_size": 2048, "num_code_groups": 16,
        "codec_bos_id": 2149,
        "codec_eos_token_id": 2150, "codec_pad_id": 2148, "codec_nothink_id": 2155, "codec_think_bos_id": 2156,
        "codec_think_eos_id": 2157, "speaker_id": {"chelsie": 2301, "ethan": 2302, "aiden": 2303},
        "text_config": {
            **EXPERTS,
            "vocab_size": 3072, "hidden_size": 1024, "num_hidden_layers": 20, "num_attention_heads": 16,
            "num_key_value_heads": 2, "intermediate_size": 2048, "moe_intermediate_size": 384,
            "shared_expert_intermediate_size": 768, "num_experts_per_tok": 6,
        },
        "code_predictor_config": {
            "vocab_size": 2048, "num_code_groups": 16, "hidden_size": 1024, "num_hidden_layers": 5,
            "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072,
        },
    },
    "code2wav_config": {"num_quantizers": 16},
}  # fmt: skip


@pytest.fixture(scope="module")
def whole() -> Any:
    """Transformers' model on the meta device."""
    from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration

    with torch.device("meta"):
        return Qwen3OmniMoeForConditionalGeneration(Qwen3OmniMoeConfig(**CONFIG))


def test_each_parameter_has_one_place(whole: Any) -> None:
    config = whole.config.to_dict()
    with torch.device("meta"):
        vocoder = Code2Wav(Code2WavConfig.of(config["code2wav_config"]))
    places = {f"code2wav.{name}": tuple(parameter.shape) for name, parameter in vocoder.named_parameters()}
    talker = config["talker_config"]
    predictor = parameter_names(PredictorConfig.of({**talker["code_predictor_config"], "num_code_groups": 16}))
    places |= {f"talker.code_predictor.{name}": shape for name, shape in predictor.items()}
    for name in ("text_projection", "hidden_projection"):
        places |= {
            f"talker.{name}.linear_fc1.weight": (2048, 2048),
            f"talker.{name}.linear_fc1.bias": (2048,),
            f"talker.{name}.linear_fc2.weight": (1024, 2048),
            f"talker.{name}.linear_fc2.bias": (1024,),
        }
    backbone = 0
    for name, parameter in whole.named_parameters():
        if name.startswith("thinker.") or name.startswith(("talker.model.", "talker.codec_head.")):
            assert name not in places
            backbone += parameter.numel()  # vLLM's own classes load these, by the names of the folder
        else:
            assert places.pop(name) == tuple(parameter.shape), name
    assert not places
    assert 33e9 < backbone < 36e9  # 30 B of the Thinker with its towers, 3 B of the Talker


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["thinker", "talker"])
def test_engines_take_each_parameter_once(tmp_path: Path, stage: str) -> None:
    numbers = count_mapped("qwen3_omni", stage, CONFIG, tmp_path)
    low, high = {"thinker": (31e9, 33e9), "talker": (3.5e9, 3.8e9)}[stage]
    assert low < numbers < high


def folder(path: Path, config: dict[str, Any]) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_what_the_family_says_of_it(tmp_path: Path, whole: Any) -> None:
    config = json.loads(json.dumps(whole.config.to_dict(), default=str))
    model = QwenOmniSettings(family="qwen3_omni", source=str(folder(tmp_path / "model", config)))
    (place,) = FAMILY.folders(model, thinks=True).values()
    assert isinstance(place, GivenFolder)
    facts = FAMILY.facts(model, {"model": place.path}, thinks=True)
    assert facts.voices == ("ethan", "aiden", "chelsie") and facts.sees and facts.hears
    assert (facts.step_samples, facts.step_bytes, facts.extra_bytes) == (1920, 32, 30)
    assert facts.rows is not None and (facts.rows.width, facts.rows.begin) == (2048, "prompt")
    assert TalkerIds.of(config, 10).codec_eos == 2150
    chosen = model.model_copy(update={"voices": ("aiden",)})
    assert FAMILY.facts(chosen, {"model": place.path}, thinks=True).talker["speakers"] == [2303]


def test_folders_that_are_none(tmp_path: Path) -> None:
    def facts(config: dict[str, Any], **more: Any) -> None:
        where = folder(tmp_path / str(len(list(tmp_path.iterdir()))), config)
        model = QwenOmniSettings(family="qwen3_omni", source=str(where), **more)
        FAMILY.facts(model, {"model": where}, thinks=True)

    with pytest.raises(FamilyError, match="of type 'llama', not 'qwen3_omni_moe'"):
        facts({"model_type": "llama"})
    with pytest.raises(FamilyError, match="without a voice"):
        facts({**CONFIG, "enable_audio_output": False})
    with pytest.raises(FamilyError, match="no voice bob; there are ethan, aiden, chelsie"):
        facts(CONFIG, voices=("bob",))
    with pytest.raises(FamilyError, match="name a folder"):
        FAMILY.folders(QwenOmniSettings(), thinks=True)
    with pytest.raises(FamilyError, match=r"has no config\.json"):
        FAMILY.folders(QwenOmniSettings(source=str(tmp_path)), thinks=True)
    with pytest.raises(FamilyError, match="brain elsewhere"):
        FAMILY.folders(QwenOmniSettings(source="a/b"), thinks=False)
    (hub,) = FAMILY.folders(QwenOmniSettings(source="Qwen/Qwen3-Omni-30B-A3B-Instruct"), thinks=True).values()
    assert isinstance(hub, MadeFolder) and hub.need_bytes > 70e9 and "Qwen3-Omni" in hub.path


def test_checkpoints(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    def index(**places: str) -> None:
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))

    with pytest.raises(CheckpointError, match="no weights"):
        Checkpoint(tmp_path)
    save_file({"thinker.a": torch.ones(2, 3)}, str(tmp_path / "one.safetensors"))
    save_file(
        {"talker.b": torch.arange(8.0).view(4, 2), "code2wav.c": torch.ones(1)}, str(tmp_path / "two.safetensors")
    )
    index(**{"thinker.a": "one.safetensors", "talker.b": "two.safetensors", "code2wav.c": "two.safetensors"})
    checkpoint = Checkpoint(tmp_path)
    assert [name for name, _ in checkpoint.read(["talker."], label="Talker")] == ["talker.b"]
    assert checkpoint.bytes_of(["talker.", "thinker."]) == 32 + 24
    assert checkpoint.rows("talker.b", [3, 0]).tolist() == [[6.0, 7.0], [0.0, 1.0]]
    with pytest.raises(CheckpointError, match="has no Ears: none of its tensors begins with ears"):
        list(checkpoint.read(["ears."], label="Ears"))
    index(**{"thinker.a": "one.safetensors", "talker.b": "three.safetensors"})
    with pytest.raises(CheckpointError, match=r"1 of 2 weight files are missing: three\.safetensors"):
        Checkpoint(tmp_path)
    index(**{"thinker.a": "one.safetensors"})
    whole = (tmp_path / "one.safetensors").read_bytes()
    (tmp_path / "one.safetensors").write_bytes(whole[:-4])
    with pytest.raises(CheckpointError, match="Download it again"):
        Checkpoint(tmp_path)
    (tmp_path / "one.safetensors").write_bytes(b"<html>")
    with pytest.raises(CheckpointError, match="no safetensors file"):
        Checkpoint(tmp_path)
