"""How the benchmarks' users ask: over REST, and aloud over a realtime session, be it of WebSocket or of WebRTC."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from voicechat.bench.chat_client import PCM_RATE, ChatClient, ClientError, audio_part, text_part
from voicechat.bench.measures import Continuity, first_audible, last_voiced, play, real_time_factor
from voicechat.bench.realtime_trace import Line, LineError, Piece, Record
from voicechat.bench.turn import Question, Turn, stages_of
from voicechat.media.resample import resample, to_float, to_pcm
from voicechat.media.wav import encode_wav

STEP_S = 0.04
"""Seconds of one speech token."""

SOUND_RATE = 24_000
"""Rate in Hz of the spoken questions."""

_LATE_S = 1.0
"""The last frames of an answer may be so long on their way through the jitter buffer."""


class Asker(Protocol):
    """Asks on behalf of one user. A turn that fails is returned with its ``error``."""

    async def ask(self, question: Question) -> Turn:
        """One turn."""

    async def close(self) -> None:
        """Let go of everything."""


class RestAsker:
    """Each question is one request of its own, without earlier ones before it."""

    def __init__(self, client: ChatClient, *, latency_first: bool, max_tokens: int | None, timeout_s: float) -> None:
        self._client = client
        self._latency_first = latency_first
        self._max_tokens = max_tokens
        self._timeout_s = timeout_s

    async def ask(self, question: Question) -> Turn:
        """Send the question, typed or aloud, and take the streamed answer in."""
        turn = Turn(question.text)
        part = text_part(question.text)
        if question.sound is not None:
            part = audio_part(encode_wav(to_pcm(question.sound), question.rate))
        try:
            reply = await self._client.ask(
                [part], latency_first=self._latency_first, max_tokens=self._max_tokens, timeout_s=self._timeout_s
            )
        except ClientError as error:
            turn.error = str(error)
            return turn
        turn.answer, turn.audio_s = reply.text, reply.audio_s
        turn.heard = " ".join(reply.heard) if question.sound is not None else None
        if not reply.chunks:
            turn.error = f"the answer has no sound: {reply.text!r}"
            return turn
        lead = first_audible(to_float(reply.pcm))
        turn.note(
            ttfa_s=reply.ttfa_s,
            first_text_s=reply.first_text_s,
            rtf=real_time_factor(reply.chunks[-1][0], reply.audio_s),
            whole_reply_s=reply.done_s,
            leading_silence_s=None if lead is None else lead / PCM_RATE,
            announcement_us=reply.times.get("handoff_us"),
        )
        turn.continuity = play(reply.chunks)
        turn.stages = {
            name: value
            for name, value in reply.times.items()
            if value is not None and name not in ("handoff_us", "rows")
        }
        return turn

    async def close(self) -> None:
        """Nothing to let go of."""


@dataclass(slots=True)
class _Said:
    """One question on a line: when its last voiced sample was sent, and what came from there on."""

    voiced_until: float = 0.0
    heard: str | None = None
    created: dict[str, float] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    plays: dict[str, list[float]] = field(default_factory=dict)
    """Of each response that the server plays: when it began, and when it had ended."""
    response: dict[str, Any] | None = None
    """The answer, once it is done."""

    def take(self, at: float, event: dict[str, Any], *, asked: bool) -> None:
        """Take an event in; ``asked``: the question has been said to its end. Raises :class:`LineError`."""
        match event["type"]:
            case "error":
                raise LineError(event["error"]["message"])
            case "conversation.item.input_audio_transcription.failed":
                raise LineError(f"the question could not be transcribed: {event['error']['message']}")
            case "conversation.item.input_audio_transcription.completed":
                self.heard = event["transcript"]
                if asked and not self.heard:
                    raise LineError("the question was not understood")
            case "response.created":
                self.created[event["response"]["id"]] = at
            case "response.output_audio_transcript.delta":
                self.texts[event["response_id"]] = self.texts.get(event["response_id"], "") + event["delta"]
            case "output_audio_buffer.started" | "output_audio_buffer.stopped" | "output_audio_buffer.cleared":
                self.plays.setdefault(event["response_id"], []).append(at)
            case "response.done" if event["response"]["status"] != "cancelled":
                response = event["response"]
                if response["status"] not in ("completed", "incomplete"):
                    details = response.get("status_details") or {}
                    reason = (details.get("error") or {}).get("message") or details.get("reason") or response["status"]
                    raise LineError(f"the answer broke off: {reason}")
                if asked:
                    self.response = response


class LineAsker:
    """Says each question in real time in a session of its own, unless ``one_call``; setting it up is not timed.

    ``open_line`` makes a session with nothing said yet; it may raise :class:`LineError`.
    """

    def __init__(self, open_line: Callable[[], Awaitable[Line]], *, timeout_s: float, one_call: bool = False) -> None:
        self._open = open_line
        self._timeout_s = timeout_s
        self._one_call = one_call
        self._line: Line | None = None

    async def ask(self, question: Question) -> Turn:
        """Say the question, then be as quiet as a room is until the answer has been heard to its end."""
        turn = Turn(question.text)
        if question.sound is None:
            raise ValueError("a question over a realtime session needs a sound")
        try:
            async with self._session() as line, asyncio.timeout(self._timeout_s):
                await _ask(line, question, turn)
        except TimeoutError:
            turn.error = f"no whole answer within {self._timeout_s:g} s"
        except LineError as error:
            turn.error = str(error)
        return turn

    @contextlib.asynccontextmanager
    async def _session(self) -> AsyncIterator[Line]:
        """The session to ask in. One that has failed is not used again."""
        line, self._line = self._line, None
        if line is None:
            line = await self._open()
        try:
            yield line
            if self._one_call:
                self._line = line
        finally:
            if self._line is not line:
                await line.close()

    async def close(self) -> None:
        """Hang up."""
        if self._line is not None:
            await self._line.close()
            self._line = None


async def _ask(line: Line, question: Question, turn: Turn) -> None:
    """Say a question and fill its turn in. Raises :class:`LineError`."""
    assert question.sound is not None
    record = line.record
    sound = resample(question.sound, question.rate, line.microphone.rate)
    mark = last_voiced(sound, line.microphone.rate)
    if mark is None:
        raise LineError(f"the sound of {question.text!r} is silence")
    events, pieces = len(record.events), len(record.pieces)
    last = line.microphone.say(sound).start + mark
    said = _Said()

    def over() -> bool:
        return said.response is not None and not (line.busy() and _tokens(said.response))

    while not over():
        if record.lost is not None:
            raise LineError(record.lost)
        await line.news.wait(1.0)
        sent = line.microphone.sent_at(last)
        for at, event in record.events[events:]:
            said.take(at, event, asked=sent is not None and at >= sent)
        events = len(record.events)
        said.voiced_until = sent or 0.0
    until = time.perf_counter() + _LATE_S
    while (first := _audible(record.pieces[pieces:], said)) is None and time.perf_counter() < until:
        await line.news.wait(_LATE_S)
    _fill(turn, said, record, first)


def _audible(pieces: Sequence[Piece], said: _Said) -> Piece | None:
    """The first piece of the answer that is no silence."""
    assert said.response is not None
    mine = (piece for piece in pieces if piece.reply in (None, said.response["id"]))
    return next((piece for piece in mine if piece.audible and piece.received >= said.voiced_until), None)


def _tokens(response: dict[str, Any]) -> int:
    return int((response.get("usage") or {}).get("output_token_details", {}).get("audio_tokens", 0))


def _fill(turn: Turn, said: _Said, record: Record, first: Piece | None) -> None:
    """What there is to say of an answer that is over."""
    assert said.response is not None
    answer = said.response["id"]
    chunks = record.chunks.get(answer, [])  # where the sound comes ahead of its time
    turn.answer, turn.heard = said.texts.get(answer, ""), said.heard
    turn.audio_s = sum(seconds for _, seconds in chunks) or _tokens(said.response) * STEP_S
    if not turn.audio_s:
        turn.error = f"the answer has no sound: {turn.answer!r}"
        return
    if first is None or first.played is None:
        turn.error = "the answer's sound was not received"
        return
    turn.stages = stages_of(said.response)
    turn.note(
        voice_to_voice_s=first.received - said.voiced_until,
        voice_to_ear_s=first.played - said.voiced_until,
        response_latency_s=turn.stages.get("first_sound"),
    )
    if chunks:
        created = said.created.get(answer, chunks[0][0])
        rtf = real_time_factor(chunks[-1][0] - created, turn.audio_s)
        turn.note(ttfa_s=chunks[0][0] - created, rtf=rtf)
        turn.continuity = play(chunks)
    elif len(plays := said.plays.get(answer, [])) == 2:
        # It took this much longer to play than it is long. Nothing tells a client of single underruns.
        stall = max(0.0, plays[1] - plays[0] - turn.audio_s)
        turn.continuity = Continuity(worst_s=stall, total_s=stall, underruns=int(stall > STEP_S))
