"""The two ways in which the benchmark's users ask: over REST and over WebRTC."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Protocol

import aiohttp

from voicechat.bench.chat_client import PCM_RATE, ChatClient, ClientError, audio_part, text_part
from voicechat.bench.measures import Continuity, first_audible, last_voiced, play, real_time_factor
from voicechat.bench.rtc_caller import Caller
from voicechat.bench.rtc_peer import RATE
from voicechat.bench.turn import Question, Turn
from voicechat.media.resample import resample, to_float, to_pcm
from voicechat.media.wav import encode_wav

STEP_S = 0.04
"""Seconds of one speech token."""

SOUND_RATE = 24_000
"""Rate in Hz of the spoken questions."""


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


class CallAsker:
    """Each question is asked in a call of its own, unless ``one_call``; the setting up of a call is not timed."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        base: str,
        *,
        headers: dict[str, str],
        max_tokens: int | None,
        timeout_s: float,
        one_call: bool,
    ) -> None:
        self._http = http
        self._base = base
        self._headers = headers
        self._max_tokens = max_tokens
        self._timeout_s = timeout_s
        self._one_call = one_call
        self._caller: Caller | None = None

    async def ask(self, question: Question) -> Turn:
        """Say the question in real time and listen to the answer to its end."""
        turn = Turn(question.text)
        if question.sound is None:
            raise ValueError("a question over WebRTC needs a sound")
        sound = resample(question.sound, question.rate, RATE)
        mark = last_voiced(sound, RATE)
        if mark is None:
            raise ValueError(f"the sound of {question.text!r} is silence")
        try:
            async with self._call() as caller:
                call = await caller.ask(sound, mark, self._timeout_s)
        except ClientError as error:
            turn.error = str(error)
            return turn
        turn.answer, turn.heard, turn.audio_s = call.text, call.heard, call.speech_tokens * STEP_S
        if call.arrived is None or call.playable is None:
            turn.error = "the answer's sound was not received"
            return turn
        turn.note(voice_to_voice_s=call.arrived - call.voiced_until, voice_to_ear_s=call.playable - call.voiced_until)
        turn.stages = {
            f"{name.removesuffix('_ms')}": float(value) / 1000
            for name, value in call.metadata.items()
            if name.endswith("_ms")
        }
        turn.note(response_latency_s=turn.stages.get("first_sound"))
        if call.started is not None and call.stopped is not None:
            # It took this much longer to play than it is long. Nothing tells a client of single underruns.
            stall = max(0.0, call.stopped - call.started - turn.audio_s)
            turn.continuity = Continuity(worst_s=stall, total_s=stall, underruns=int(stall > STEP_S))
        return turn

    @contextlib.asynccontextmanager
    async def _call(self) -> AsyncIterator[Caller]:
        """The call to ask in. One that has failed is not used again."""
        caller, self._caller = self._caller, None
        if caller is None:
            caller = await Caller(
                self._http, self._base, headers=self._headers, max_tokens=self._max_tokens
            ).__aenter__()
        try:
            yield caller
        except BaseException:
            await caller.close()
            raise
        if self._one_call:
            self._caller = caller
        else:
            await caller.close()

    async def close(self) -> None:
        """Hang up."""
        if self._caller is not None:
            await self._caller.close()
            self._caller = None
