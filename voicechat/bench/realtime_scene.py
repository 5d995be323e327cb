"""One entry of the set, played to one session: what is said when, and what is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from voicechat.bench.realtime_trace import Line, LineError, Record, Said, now
from voicechat.bench.script import SOUND_RATE, Expect, Floats, Recording
from voicechat.media.resample import resample

PROMPTS = (
    "Tell me a long story about a lighthouse.",
    "Describe in detail how bread is made.",
    "Tell me everything about the four seasons.",
)
"""Asked for a reply that is long enough to be interrupted; the next one if it was not."""

MISSED_S = 1.5
"""A reply that goes on for so long after somebody began to interrupt was not interrupted."""

_NOISE_FIRST_S = 3.5
"""A noisy room is noisy before somebody speaks in it, also where the microphone was open in a quiet one before."""

_ANSWER_S = 8.0
_WHOLE_ANSWER_S = 60.0
_ANSWERS = 3
_NOTHING_S = 3.0
_AFTERWARDS_S = 2.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """What happened. ``first_s`` and ``last_s``: when the first and the last voiced sample were sent, ``spans_s`` all
    voiced parts; ``reply`` is the response under which it was said, ``closed_s`` when the watching ended."""

    recording: Recording
    transport: str
    record: Record
    first_s: float
    last_s: float
    spans_s: tuple[tuple[float, float], ...]
    reply: str | None
    closed_s: float


async def act(line: Line, recording: Recording, prompt: Recording | None) -> Trace:
    """Play ``recording`` over a fresh session, in a reply to ``prompt`` if there is one. Raises :class:`LineError`."""
    entry = recording.entry
    if recording.background is not None:
        line.microphone.surround(_fit(line, recording.background))
        await asyncio.sleep(_NOISE_FIRST_S)
    reply = await _begin_reply(line, prompt, entry.after_s) if prompt is not None else None
    said = line.microphone.say(_fit(line, recording.sound))
    if not await _until(line, lambda: line.microphone.sent_at(said.start + said.samples - 1) is not None, 60.0):
        raise LineError("the microphone stood still")
    spans = tuple((_sent(line, said, first), _sent(line, said, last)) for first, last in recording.spans)
    first_s, last_s = spans[0][0], spans[-1][1]
    match entry.expect:
        case Expect.ONE_TURN:
            await _answered(line, last_s)
        case Expect.NO_TURN:
            await _until(line, lambda: bool(line.record.all("response.created")), _NOTHING_S)
        case Expect.NO_INTERRUPTION:
            await _undisturbed(line, reply, last_s)
        case Expect.INTERRUPTION:
            await _interrupted(line, reply, first_s, last_s)
    return Trace(recording, line.transport, line.record, first_s, last_s, spans, reply, now())


async def _begin_reply(line: Line, prompt: Recording, after_s: float) -> str:
    """Ask for a reply and listen to it for ``after_s``; the response's id."""
    line.microphone.say(_fit(line, prompt.sound))

    def heard() -> bool:
        begun = next((p.played for p in line.record.pieces if p.audible and p.played is not None), None)
        return begun is not None and now() >= begun + after_s

    if not await _until(line, heard, 30.0):
        raise LineError("there was no reply to be interrupted")
    return str(line.record.all("response.created")[-1][1]["response"]["id"])


async def _answered(line: Line, last_s: float) -> None:
    """Wait for the end of the answer. One that was cancelled is none: another is waited for."""

    def ended() -> list[str]:
        done = line.record.all("response.done", last_s)
        return [event["response"]["status"] for _, event in done] if not line.busy() else []

    if not await _until(line, lambda: line.record.first("response.created", last_s) is not None, _left(last_s)):
        await _until(line, lambda: not line.busy(), _WHOLE_ANSWER_S)
        return
    for _ in range(_ANSWERS):
        await _until(line, lambda: bool(ended()), _WHOLE_ANSWER_S)
        if ended()[-1:] != ["cancelled"] or not await _until(line, line.busy, _NOTHING_S):
            return


async def _undisturbed(line: Line, reply: str | None, last_s: float) -> None:
    """Wait until what was heard must have been judged: over WebRTC until the reply has been played, and over WebSocket
    the rest of it, if the player was stopped and the server goes on with it."""
    begun = now()
    if line.transport == "webrtc":
        await _until(line, lambda: not line.busy(), _WHOLE_ANSWER_S)
    left = _NOTHING_S - (now() - begun)
    if line.record.stop_of(reply) is None:
        await _until(line, lambda: line.record.stop_of(reply) is not None, max(left, _AFTERWARDS_S))
    stop = line.record.stop_of(reply)
    if stop is not None and line.transport == "ws":
        await _until(line, lambda: line.record.first("response.created", stop) is not None, _NOTHING_S)
        judged_s = last_s + _AFTERWARDS_S  # also what was said after a reply had gone on
        await _until(line, lambda: now() >= judged_s and not line.busy() and _played_out(line), _WHOLE_ANSWER_S)


async def _interrupted(line: Line, reply: str | None, first_s: float, last_s: float) -> None:
    """Wait for the stop, then for the first sound of the answer to what was said."""
    limit = first_s + MISSED_S + 0.5 - now()
    await _until(line, lambda: line.record.stop_of(reply) is not None, limit)
    stop = line.record.stop_of(reply)
    if stop is None:
        return

    def answered() -> bool:
        created = line.record.first("response.created", max(stop, last_s))
        if created is None:
            return False
        return any(p.audible and p.received > created for p in line.record.pieces[-50:])

    if not await _until(line, answered, _left(last_s)) and line.busy():
        await _until(line, answered, _WHOLE_ANSWER_S)


def _played_out(line: Line) -> bool:
    """True if nothing is left to be played."""
    last = next((piece.played for piece in reversed(line.record.pieces) if piece.played is not None), None)
    return last is None or last < now()


def _left(last_s: float) -> float:
    return last_s + _ANSWER_S - now()


async def _until(line: Line, test: Callable[[], bool], seconds: float) -> bool:
    """Wait until ``test`` holds; False if it does not in time. Raises :class:`LineError` if the line breaks."""
    deadline = now() + seconds
    while not test():
        if line.record.lost is not None:
            raise LineError(line.record.lost)
        left = deadline - now()
        if left <= 0:
            return False
        await line.news.wait(min(left, _POLL_S))
    return True


def _fit(line: Line, sound: Floats) -> Floats:
    """At the microphone's rate."""
    return resample(sound, SOUND_RATE, line.microphone.rate)


def _sent(line: Line, said: Said, sample: int) -> float:
    at = line.microphone.sent_at(said.start + sample * line.microphone.rate // SOUND_RATE)
    assert at is not None, "all of it was sent"
    return at
