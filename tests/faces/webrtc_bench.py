"""A session alone: frames and events in, events and sound out, on a clock that the test moves."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np

from tests.cascade_double import DoubleCascade
from tests.protocol import check_server_event
from tests.speech import silence
from voicechat.contract.requests import TextPart
from voicechat.contract.sound import FRAME_SAMPLES
from voicechat.faces.webrtc_session import VoiceSession
from voicechat.media.playout import Playout
from voicechat.realtime.session import SessionLimits
from voicechat.realtime.settings import SessionConfig


async def close(session: VoiceSession, events: list[dict]) -> None:
    """The test is over: the session goes within 5 s, and OpenAI's types know all events that it has sent."""
    session.on_closed("test over")
    await asyncio.wait_for(session.wait_closed(), 5)
    for event in events:
        check_server_event(event)


class Bench:
    """A session with its ends in hand. Time runs ``speed`` times as fast for sound as on the wall."""

    def __init__(self, cascade: DoubleCascade, **limits: Any) -> None:
        self.cascade = cascade
        self.playout = Playout()
        self.events: list[dict] = []
        self.sound: list[np.ndarray] = []
        self.session = VoiceSession(
            "sess_test",
            cascade,
            SessionConfig("Be brief.", "anna"),
            SessionLimits(server_plays=True, **limits),
            self.playout,
            lambda text: self.events.append(json.loads(text)),
            self.hang_up,
        )
        self.session.on_open()

    def hang_up(self, reason: str) -> None:
        self.session.on_closed(reason)

    async def run(self, sound: np.ndarray, step: float = 0.004) -> None:
        """Let the microphone hear ``sound`` while the loudspeaker plays."""
        for i in range(0, len(sound) - FRAME_SAMPLES + 1, FRAME_SAMPLES):
            self.session.on_audio(sound[i : i + FRAME_SAMPLES])
            frame = self.playout.next_frame()
            self.sound.append(frame.pcm)
            self.session.on_played(frame)
            await asyncio.sleep(step)

    async def until(self, kind: str, count: int = 1, limit: int = 2000) -> dict:
        """Quiet until the ``count``-th event of ``kind`` has come."""
        for _ in range(limit):
            if len(self.all(kind)) >= count:
                return self.all(kind)[count - 1]
            await self.run(silence(0.02), step=0.002)
        raise AssertionError(f"no {kind} in {self.kinds()}")

    def all(self, kind: str) -> list[dict]:
        return [event for event in self.events if event["type"] == kind]

    def kinds(self) -> list[str]:
        return [event["type"] for event in self.events]

    def tell(self, kind: str, **fields: Any) -> None:
        self.session.on_message(json.dumps({"type": kind, "event_id": "event_client", **fields}))

    def asked(self, index: int = -1) -> list[tuple[str, str]]:
        """Roles and texts of a request."""
        return [
            (m.role, " ".join(p.text for p in m.parts if isinstance(p, TextPart)))
            for m in self.cascade.requests[index].messages
        ]
