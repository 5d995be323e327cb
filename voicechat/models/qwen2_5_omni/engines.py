"""Qwen2.5-Omni's Thinker and Talker, as their stages ask for them; vLLM and the nets are not imported before."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from voicechat.contract.family import Conditioning, TalkerInside
from voicechat.models.qwen2_5_omni.utterance import Qwen25Utterance, TalkerIds
from voicechat.models.qwen_common.config import read_config
from voicechat.models.qwen_common.engines import OmniThinker, Words, talker_engine
from voicechat.models.qwen_common.prompt import OmniPrompter, PromptIds
from voicechat.models.qwen_common.utterance import OmniPace

THINKER, TALKER = "VoicechatQwen25OmniThinker", "VoicechatQwen25OmniTalker"
_HERE = "voicechat.models.qwen2_5_omni"
MODEL_TYPE = "qwen2_5_omni"
_TURN = "<|im_start|>"


class Qwen25Thinker(OmniThinker):
    """See :class:`voicechat.contract.family.ThinkerModel`."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__(given, THINKER, f"{_HERE}.thinker:Qwen25OmniThinker")

    def prompter(self, tokenizer: Any, system_prompt: str) -> OmniPrompter:
        """See the interface."""
        inner = read_config(self.folder, MODEL_TYPE)["thinker_config"]
        turn = tokenizer.convert_tokens_to_ids(_TURN)
        ids = PromptIds(turn, inner["user_token_id"], inner["audio_token_index"], inner["image_token_index"])
        return self.prompter_of(tokenizer, system_prompt, ids, sound_length)

    def rows(self, model: Any, hidden: Any) -> Any:
        """See the interface."""
        return model.rows(hidden)


class Qwen25Talker:
    """See :class:`voicechat.contract.family.TalkerModel`."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._speakers = given["speakers"]
        self._ids = TalkerIds.of(read_config(Path(given["folder"]), MODEL_TYPE), given["max_steps"])
        override = functools.partial(talker_config, source=given["folder"])
        self.engine = talker_engine(given, TALKER, f"{_HERE}.talker:Qwen25OmniTalker", override)
        self.stop_ids = (self._ids.codec_eos, self._ids.codec_pad)
        self._words = Words(given["folder"])

    def load(self) -> None:
        """The tokenizer, for texts that are to be read out."""
        self._words.load()

    def utterance(self, voice: int, *, max_rows: int, max_text_rows: int) -> Qwen25Utterance:
        """See the interface."""
        return Qwen25Utterance(self._ids, self._speakers[voice], self._words.encode, max_rows=max_rows)

    def pace(self, facts: Mapping[str, int]) -> OmniPace:
        """See the interface."""
        return OmniPace()

    def conditioning(self, inside: TalkerInside) -> Conditioning:
        """See the interface."""
        from voicechat.models.qwen2_5_omni.conditioning import Qwen25Conditioning

        return Qwen25Conditioning(inside)


def sound_length(frames: int) -> int:
    """Positions that so many frames of sound (100 a second) take: 25 a second."""
    return ((frames - 1) // 2 - 1) // 2 + 1


def talker_config(config: Any, source: str) -> Any:
    """What vLLM is told of the Talker: the configuration of a dense model, out of the whole model's."""
    from transformers import Qwen3Config  # of its fields the layers read these, and it takes any size of a head

    if not hasattr(config, "talker_config"):  # vLLM first tries it on an empty one
        return config
    talker = config.talker_config
    rope = dict(talker.rope_parameters)
    made = Qwen3Config(
        vocab_size=talker.vocab_size,
        hidden_size=talker.hidden_size,
        intermediate_size=talker.intermediate_size,
        num_hidden_layers=talker.num_hidden_layers,
        num_attention_heads=talker.num_attention_heads,
        num_key_value_heads=talker.num_key_value_heads,
        head_dim=talker.head_dim,
        hidden_act=talker.hidden_act,
        max_position_embeddings=talker.max_position_embeddings,
        rms_norm_eps=talker.rms_norm_eps,
        rope_parameters={"rope_theta": rope["rope_theta"], "rope_type": "default"},
        tie_word_embeddings=False,
    )
    made.architectures = [TALKER]
    made.qkv_bias = True
    made.voicechat = {
        "source": source,
        "rope_parameters": rope,
        "embedding_size": talker.embedding_size,
        "thinker_vocabulary": config.thinker_config.text_config.vocab_size,
        "codebook": config.token2wav_config.dit_config.num_embeds + 1,
        "codec_bos": talker.tts_codec_start_token_id,
        "ends": [talker.tts_codec_end_token_id, talker.tts_codec_pad_token_id],
        "tts_pad": talker.tts_text_pad_token_id,
    }
    return made
