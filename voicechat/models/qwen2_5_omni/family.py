"""Qwen2.5-Omni as a family. No torch, no vLLM here: the server imports this module."""

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
from voicechat.models.qwen2_5_omni.shapes import SoundShape
from voicechat.models.qwen2_5_omni.speakers import speaker_tokens
from voicechat.models.qwen_common.config import CheckpointError, read_config
from voicechat.models.qwen_common.settings import SYSTEM_PROMPT, QwenOmniSettings, offered_voices, source_folder
from voicechat.models.qwen_common.utterance import COLUMNS

MODEL_TYPE = "qwen2_5_omni"
_VOICE = "chelsie"
"""What the published model speaks with if it is not told."""


class Qwen25OmniFamily:
    """See :class:`voicechat.contract.family.Family`."""

    settings = QwenOmniSettings

    def folders(self, model: QwenOmniSettings, *, thinks: bool) -> Mapping[str, Folder]:
        """``model``: the published files."""
        if not thinks:
            raise FamilyError("Qwen2.5-Omni's Talker reads its own Thinker: it can't speak for a brain elsewhere")
        return {"model": source_folder(model)}

    def facts(self, model: QwenOmniSettings, folders: Mapping[str, Path], *, thinks: bool) -> Facts:
        """See the interface. The VoiceBox looks one of its blocks ahead."""
        folder = folders["model"]
        try:
            config = read_config(folder, MODEL_TYPE)
            if not config.get("talker_config") or not config.get("enable_audio_output", True):
                raise FamilyError(f"{folder} is a model without a voice")
            speakers = speaker_tokens(folder)
        except CheckpointError as error:
            raise FamilyError(str(error)) from None
        text, sound = config["thinker_config"]["text_config"], SoundShape.of(config["token2wav_config"])
        voices = offered_voices(model, speakers, _VOICE)
        given = {"folder": str(folder), "dtype": model.dtype, "random": model.random_weights}
        return Facts(
            voices=voices,
            sees=True,
            hears=True,
            most_images=model.images,
            most_sounds=model.sounds,
            context_tokens=text["max_position_embeddings"],
            system_prompt=model.system_prompt or SYSTEM_PROMPT,
            rows=RowLayout(text["hidden_size"], "prompt"),
            step_samples=sound.step_samples,
            step_bytes=2,
            look_ahead=sound.block,
            text_columns=COLUMNS,
            sampling={"temperature": 0.9, "top_k": 40, "top_p": 0.8, "repetition_penalty": 1.05},
            thinker={
                **given,
                "quantization": model.quantization,
                "images": model.images,
                "sounds": model.sounds,
            },
            talker={**given, "speakers": [speakers[name] for name in voices], "max_steps": model.max_steps},
            voicebox={**given, "voices": list(voices)},
        )

    def thinker(self, given: Mapping[str, Any]) -> ThinkerModel:
        """See the interface."""
        from voicechat.models.qwen2_5_omni.engines import Qwen25Thinker

        return Qwen25Thinker(given)

    def talker(self, given: Mapping[str, Any]) -> TalkerModel:
        """See the interface."""
        from voicechat.models.qwen2_5_omni.engines import Qwen25Talker

        return Qwen25Talker(given)

    def voicebox(self, given: Mapping[str, Any], place: DecoderPlace) -> Decoder:
        """See the interface."""
        from voicechat.models.qwen2_5_omni.decoder import load_decoder

        return load_decoder(given, place)


FAMILY = Qwen25OmniFamily()
