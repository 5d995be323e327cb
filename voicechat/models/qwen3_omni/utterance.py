"""A reply of Qwen3-Omni's Talker in its host: a text row for each position of its sequence, and steps of 16 codes.

The sequence is that of the published model. First what the user said: each position of the user's turns. Then the
assistant's three role tokens; four positions of padding, on which lie "no thinking" (three codes) and the voice; the
text's begin on a padding code; the first token of the text on the codes' begin. Then, one a frame, the further tokens
of the text, the text's end, and padding until the Talker ends the reply. A text to be read out begins with the
assistant's role.
"""

from __future__ import annotations

import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from voicechat.contract.family import Said, TalkerRequest
from voicechat.models.qwen_common.note import Note, rope_positions
from voicechat.models.qwen_common.utterance import SENSED, TEXT, TOKEN, OmniUtterance

_ROLE = 3
"""Tokens with which the assistant's turn begins."""
_STEPS_A_SECOND = 12.5


@dataclass(frozen=True, slots=True)
class TalkerIds:
    """Codes and tokens with a meaning of their own, and the model's limits."""

    role: tuple[int, ...]
    """Tokens with which the assistant's turn begins, but the line's end."""
    pad: int
    bos: int
    eos: int
    codec_bos: int
    codec_eos: int
    codec_pad: int
    nothink: int
    think_bos: int
    think_eos: int
    groups: int
    codebook: int
    max_steps: int

    @staticmethod
    def of(config: Mapping[str, Any], max_steps: int) -> TalkerIds:
        """From the model's ``config.json``."""
        talker = config["talker_config"]
        return TalkerIds(
            role=(config["im_start_token_id"], config["assistant_token_id"]),
            pad=config["tts_pad_token_id"],
            bos=config["tts_bos_token_id"],
            eos=config["tts_eos_token_id"],
            codec_bos=talker["codec_bos_id"],
            codec_eos=talker["codec_eos_token_id"],
            codec_pad=talker["codec_pad_id"],
            nothink=talker["codec_nothink_id"],
            think_bos=talker["codec_think_bos_id"],
            think_eos=talker["codec_think_eos_id"],
            groups=talker["num_code_groups"],
            codebook=talker["code_predictor_config"]["vocab_size"],
            max_steps=max_steps,
        )


class Qwen3Utterance(OmniUtterance):
    """See :class:`voicechat.contract.family.Utterance`. ``encode``: a text to the Thinker's tokens."""

    def __init__(
        self,
        ids: TalkerIds,
        speaker: int,
        encode: Callable[[str], Sequence[int]],
        *,
        max_rows: int,
        likeliest: bool,
    ) -> None:
        super().__init__(encode, text_end=ids.eos, steps_a_second=_STEPS_A_SECOND, max_rows=max_rows)
        self._ids = ids
        self._speaker = speaker
        self._likeliest = likeliest
        self._prompt = 0
        self._delta = 0

    def _beginning(self) -> list[tuple[int, ...]]:
        ids, note = self._ids, self._note or Note(0, ())
        sensed: set[int] = set()
        for begin, end in note.sounds:
            sensed |= set(range(begin, end))
        for image in note.images:
            sensed |= set(range(image.start, image.start + image.rows * image.columns))
        heads = [(SENSED if at in sensed else TEXT, at, -1) for begin, end in note.users for at in range(begin, end)]
        if self._max_rows:
            heads += [(TEXT, note.length - _ROLE + token, -1) for token in range(_ROLE)]
        else:
            heads += [(TOKEN, token, -1) for token in (*ids.role, *self._encode("\n"))]
        codes = (ids.nothink, ids.think_bos, ids.think_eos, self._speaker)
        heads += [(TOKEN, ids.pad, code) for code in codes]
        heads += [(TOKEN, ids.bos, ids.codec_pad), (*self._token(0), ids.codec_bos)]
        tail = len(heads) - sum(end - begin for begin, end in note.users)
        places, self._delta = rope_positions(note.users, note.images, tail)
        self._prompt, self._read = len(heads), 1
        return [(*head, *place) for head, place in zip(heads, places, strict=True)]

    def request(self) -> TalkerRequest:
        """The only request of a reply."""
        facts = {"prompt": self._prompt, "delta": self._delta, "draw": 0 if self._likeliest else 1}
        return TalkerRequest([self._ids.codec_pad] * self._prompt, facts, self._ids.max_steps)

    def take(self, tokens: Sequence[int], extra: bytes) -> Said:
        """Frames of 16-bit codes: the token, then the further ones."""
        size = 2 * (self._ids.groups - 1)
        made = bytearray()
        for index, token in enumerate(tokens):
            if token < self._ids.codebook:
                made += array.array("H", (token,)).tobytes() + extra[index * size : (index + 1) * size]
                self._steps += 1
        return self._said(bytes(made))
