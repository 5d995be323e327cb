"""Was the rest of a reply heard, after its player had been stopped? Pure.

Over WebSocket the client stops its player as soon as the server hears speech. If that was nothing, the server may go on
with the reply, as a new response. That it is the rest is not believed but held against what was received: nothing was
committed in between, its sound begins at the very sample where the player stood, as far as the first response had been
sent already, and in the end as much sound was heard as was made.
"""

from __future__ import annotations

import numpy as np

from voicechat.bench.realtime_player import RATE
from voicechat.bench.realtime_trace import Pcm, Record

STEP_S = 0.04
"""Seconds of one speech token."""

_LOST_S = 3 * STEP_S


def replies_of(record: Record, reply: str | None) -> list[str]:
    """``reply`` and the responses that went on with it, one after the other."""
    chain = [] if reply is None else [reply]
    while chain and (following := _following(record, chain[-1])) is not None:
        chain.append(following)
    return chain


def heard_in_full(record: Record, chain: list[str]) -> bool:
    """True if of all the sound that was made for the responses of ``chain`` nothing is missing."""
    made_s = sum(_tokens(record, response) for response in chain) * STEP_S
    heard = sum(len(piece.pcm) for piece in record.pieces if piece.reply in chain and piece.played is not None)
    return made_s > 0 and heard / RATE >= made_s - _LOST_S


def gap_s(record: Record, chain: list[str]) -> float:
    """Seconds of the longest silence between one response of ``chain`` and the next, in the player."""
    gaps = [0.0]
    for one, other in zip(chain, chain[1:], strict=False):
        ends = [
            piece.played + len(piece.pcm) / RATE
            for piece in record.pieces
            if piece.reply == one and piece.played is not None
        ]
        begins = [piece.played for piece in record.pieces if piece.reply == other and piece.played is not None]
        if ends and begins:
            gaps.append(min(begins) - max(ends))
    return max(gaps)


def _following(record: Record, stopped: str) -> str | None:
    """The response that goes on with one that was stopped."""
    stop = record.stop_of(stopped)
    if stop is None:
        return None
    created = next(((at, event) for at, event in record.all("response.created", stop)), None)
    if created is None or any(at <= created[0] for at, _ in record.all("input_audio_buffer.committed", stop)):
        return None
    response = str(created[1]["response"]["id"])
    sent = _sound(record, stopped)
    played_ms = record.stopped_ms.get(stopped)  # unless the player had run dry, and was not stopped
    missed = sent[len(sent) if played_ms is None else played_ms * RATE // 1000 :]
    rest = _sound(record, response)
    length = min(len(missed), len(rest))
    return response if np.array_equal(missed[:length], rest[:length]) else None


def _sound(record: Record, response: str) -> Pcm:
    return np.concatenate([np.zeros(0, np.int16), *record.sounds.get(response, [])])


def _tokens(record: Record, response: str) -> int:
    """Speech tokens that were made, as far as the server says so."""
    for _, event in record.all("response.done"):
        if event["response"]["id"] == response:
            usage = event["response"].get("usage") or {}
            return int(usage.get("output_token_details", {}).get("audio_tokens", 0))
    return 0
