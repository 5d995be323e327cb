"""Qwen3-Omni as a family. No torch, no vLLM here: the server imports this module."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from voicechat.contract.family import (
    Decoder,
    DecoderPlace,
    Facts,
    FamilyError,
    Folder,
    RowLayout,
    TalkerModel,
    ThinkerModel,
)
from voicechat.models.qwen_common.config import CheckpointError, read_config
from voicechat.models.qwen_common.settings import SYSTEM_PROMPT, QwenOmniSettings, offered_voices, source_folder
from voicechat.models.qwen_common.utterance import COLUMNS

MODEL_TYPE = "qwen3_omni_moe"
_VOICE = "ethan"
"""What the published model speaks with if it is not told."""


class Qwen3OmniFamily:
    """See :class:`voicechat.contract.family.Family`."""

    settings = QwenOmniSettings

    def folders(self, model: QwenOmniSettings, *, thinks: bool) -> Mapping[str, Folder]:
        """``model``: the published files."""
        if not thinks:
            raise FamilyError("Qwen3-Omni's Talker reads its own Thinker: it can't speak for a brain elsewhere")
        return {"model": source_folder(model)}

    def facts(self, model: QwenOmniSettings, folders: Mapping[str, Path], *, thinks: bool) -> Facts:
        """See the interface."""
        folder = folders["model"]
        try:
            config = read_config(folder, MODEL_TYPE)
        except CheckpointError as error:
            raise FamilyError(str(error)) from None
        talker, code2wav = config.get("talker_config"), config.get("code2wav_config")
        if not talker or not code2wav or not config.get("enable_audio_output", True):
            raise FamilyError(f"{folder} is a model without a voice: take the one named Instruct")
        text = config["thinker_config"]["text_config"]
        speakers = {name.lower(): number for name, number in talker["speaker_id"].items()}
        voices = offered_voices(model, speakers, _VOICE)
        given = {"folder": str(folder), "dtype": model.dtype, "random": model.random_weights}
        groups = talker["num_code_groups"]
        samples = 1
        for rate in (*code2wav["upsample_rates"], *code2wav["upsampling_ratios"]):
            samples *= rate
        return Facts(
            voices=voices,
            sees=True,
            hears=True,
            most_images=model.images,
            most_sounds=model.sounds,
            context_tokens=text["max_position_embeddings"],
            system_prompt=model.system_prompt or SYSTEM_PROMPT,
            rows=RowLayout(text["hidden_size"], "prompt"),
            step_samples=samples,
            step_bytes=2 * groups,
            text_columns=COLUMNS,
            extra_bytes=2 * (groups - 1),
            sampling={"temperature": 0.9, "top_k": 50, "repetition_penalty": 1.05},
            thinker={
                **given,
                "quantization": model.quantization,
                "images": model.images,
                "sounds": model.sounds,
            },
            talker={
                **given,
                "speakers": [speakers[name] for name in voices],
                "likeliest": model.further_codes == "likeliest",
                "max_steps": model.max_steps,
            },
            voicebox=given,
        )

    def thinker(self, given: Mapping[str, Any]) -> ThinkerModel:
        """See the interface."""
        from voicechat.models.qwen3_omni.engines import Qwen3Thinker

        return Qwen3Thinker(given)

    def talker(self, given: Mapping[str, Any]) -> TalkerModel:
        """See the interface."""
        from voicechat.models.qwen3_omni.engines import Qwen3Talker

        return Qwen3Talker(given)

    def voicebox(self, given: Mapping[str, Any], place: DecoderPlace) -> Decoder:
        """See the interface."""
        from voicechat.models.qwen3_omni.decoder import load_decoder

        return load_decoder(given, place)


FAMILY = Qwen3OmniFamily()
