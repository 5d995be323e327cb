"""A reply of Qwen2.5-Omni's Talker in its host: a text row for each position of its sequence, and steps of one code.

The sequence is that of the published model: each position of the Thinker's prompt; the voice's begin of text on a
padding code; the first token of the text on the codes' begin. Then, one a step, the further tokens of the text, the
text's end, and padding until the Talker ends the reply. A text to be read out has no prompt before it.
"""

from __future__ import annotations

import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from voicechat.contract.family import Said, TalkerRequest
from voicechat.models.qwen2_5_omni.shapes import SoundShape
from voicechat.models.qwen_common.note import Note, rope_positions
from voicechat.models.qwen_common.utterance import TEXT, TOKEN, OmniUtterance

_STEPS_A_SECOND = 50


@dataclass(frozen=True, slots=True)
class TalkerIds:
    """Codes and tokens with a meaning of their own, and the model's limits."""

    pad: int
    text_end: int
    codec_bos: int
    codec_eos: int
    codec_pad: int
    codec_mask: int
    codebook: int
    """Ids below it can be made sound of."""
    max_steps: int

    @staticmethod
    def of(config: Mapping[str, Any], max_steps: int) -> TalkerIds:
        """From the model's ``config.json``."""
        talker = config["talker_config"]
        return TalkerIds(
            pad=talker["tts_text_pad_token_id"],
            text_end=talker["tts_text_end_token_id"],
            codec_bos=talker["tts_codec_start_token_id"],
            codec_eos=talker["tts_codec_end_token_id"],
            codec_pad=talker["tts_codec_pad_token_id"],
            codec_mask=talker["tts_codec_mask_token_id"],
            codebook=SoundShape.of(config["token2wav_config"]).codes,
            max_steps=max_steps,
        )


class Qwen25Utterance(OmniUtterance):
    """See :class:`voicechat.contract.family.Utterance`. ``speaker``: the token that begins the text in its voice."""

    def __init__(self, ids: TalkerIds, speaker: int, encode: Callable[[str], Sequence[int]], *, max_rows: int) -> None:
        super().__init__(encode, text_end=ids.text_end, steps_a_second=_STEPS_A_SECOND, max_rows=max_rows)
        self._ids = ids
        self._speaker = speaker
        self._prompt = 0
        self._delta = 0

    def _beginning(self) -> list[tuple[int, ...]]:
        ids, note = self._ids, self._note or Note(0, ())
        heads = [(TEXT, at, -1) for at in range(note.length)]
        heads += [(TOKEN, self._speaker, ids.codec_pad), (*self._token(0), ids.codec_bos)]
        places, self._delta = rope_positions(((0, note.length),), note.images, 2)
        self._prompt, self._read = len(heads), 1
        return [(*head, *place) for head, place in zip(heads, places, strict=True)]

    def request(self) -> TalkerRequest:
        """The only request of a reply. Its ids are the published model's, for the repetition penalty looks at them."""
        ids = self._ids
        begun = [ids.codec_mask] * (self._prompt - 2) + [ids.codec_pad, ids.codec_bos]
        return TalkerRequest(begun, {"prompt": self._prompt, "delta": self._delta}, ids.max_steps)

    def take(self, tokens: Sequence[int], extra: bytes) -> Said:
        """Codes of 16 bits; those that end a reply are none."""
        ends = (self._ids.codec_eos, self._ids.codec_pad)
        codes = [token for token in tokens if token < self._ids.codebook and token not in ends]
        self._steps += len(codes)
        return self._said(array.array("H", codes).tobytes())
