"""Qwen3-Omni's Thinker and Talker, as their stages ask for them; nothing of vLLM or of the nets is imported before."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from voicechat.contract.family import Conditioning, TalkerInside
from voicechat.models.qwen3_omni.utterance import Qwen3Utterance, TalkerIds
from voicechat.models.qwen_common.config import read_config
from voicechat.models.qwen_common.engines import OmniThinker, Words, talker_engine
from voicechat.models.qwen_common.prompt import OmniPrompter, PromptIds
from voicechat.models.qwen_common.utterance import OmniPace

THINKER, TALKER = "VoicechatQwen3OmniThinker", "VoicechatQwen3OmniTalker"
_HERE = "voicechat.models.qwen3_omni"
MODEL_TYPE = "qwen3_omni_moe"


class Qwen3Thinker(OmniThinker):
    """See :class:`voicechat.contract.family.ThinkerModel`."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__(given, THINKER, f"{_HERE}.thinker:Qwen3OmniThinker")

    def prompter(self, tokenizer: Any, system_prompt: str) -> OmniPrompter:
        """See the interface."""
        config = read_config(self.folder, MODEL_TYPE)
        inner = config["thinker_config"]
        ids = PromptIds(
            config["im_start_token_id"], config["user_token_id"], inner["audio_token_id"], inner["image_token_id"]
        )
        return self.prompter_of(tokenizer, system_prompt, ids, sound_length)

    def rows(self, model: Any, hidden: Any) -> Any:
        """See the interface: kept by the model itself."""
        return model.rows(len(hidden))


class Qwen3Talker:
    """See :class:`voicechat.contract.family.TalkerModel`."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._folder, self._speakers, self._likeliest = given["folder"], given["speakers"], given["likeliest"]
        config = read_config(Path(self._folder), MODEL_TYPE)
        self._ids = TalkerIds.of(config, given["max_steps"])
        override = functools.partial(talker_config, source=self._folder)
        self.engine = talker_engine(given, TALKER, f"{_HERE}.talker:Qwen3OmniTalker", override)
        self._words = Words(self._folder)
        self.stop_ids = (self._ids.codec_eos,)

    def load(self) -> None:
        """The tokenizer, for texts that are to be read out."""
        self._words.load()

    def utterance(self, voice: int, *, max_rows: int, max_text_rows: int) -> Qwen3Utterance:
        """See the interface."""
        return Qwen3Utterance(
            self._ids,
            self._speakers[voice],
            self._words.encode,
            max_rows=max_rows,
            likeliest=self._likeliest,
        )

    def pace(self, facts: Mapping[str, int]) -> OmniPace:
        """See the interface."""
        return OmniPace()

    def conditioning(self, inside: TalkerInside) -> Conditioning:
        """See the interface."""
        from voicechat.models.qwen3_omni.conditioning import Qwen3Conditioning

        return Qwen3Conditioning(inside)


def sound_length(frames: int) -> int:
    """Positions that so many frames of sound (100 a second) take: 13 a second, and what is left of it in halves."""
    seconds, left = divmod(frames, 100)
    for _ in range(3):
        left = -(-left // 2)
    return 13 * seconds + left


def talker_config(config: Any, source: str) -> Any:
    """What vLLM is told of the Talker: the configuration of a mixture of experts, out of the whole model's."""
    from transformers import Qwen3MoeConfig

    if not hasattr(config, "talker_config"):  # vLLM first tries it on an empty one
        return config
    talker, text = config.talker_config, config.talker_config.text_config
    rope = dict(text.rope_parameters)
    plain = {"rope_theta": rope["rope_theta"], "rope_type": "default"}
    made = Qwen3MoeConfig(**{**text.to_dict(), "rope_parameters": plain, "model_type": "qwen3_moe"})
    made.architectures = [TALKER]
    made.shared_expert_intermediate_size = text.shared_expert_intermediate_size
    made.voicechat = {
        "source": source,
        "rope_parameters": rope,
        "thinker_hidden_size": talker.thinker_hidden_size,
        "thinker_vocabulary": config.thinker_config.text_config.vocab_size,
        "intermediate_size": text.intermediate_size,
        "codec_eos": talker.codec_eos_token_id,
        "tts_pad": config.tts_pad_token_id,
        "code_predictor": {**talker.code_predictor_config.to_dict(), "num_code_groups": talker.num_code_groups},
    }
    return made
