"""A session with its ends in hand: no event loop, no time but the test's, a cascade that does what it is told."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import Any

import numpy as np

from tests.protocol import check_server_event
from voicechat.contract.cascade import ModelInfo
from voicechat.contract.errors import CascadeError
from voicechat.contract.events import AudioDelta, Finished, FinishReason, StageTimes, TextDelta, Usage
from voicechat.contract.requests import CallPart, ResultPart, TextPart
from voicechat.contract.sound import FRAME_SAMPLES, PCM_RATE
from voicechat.realtime.client_events import parse_event
from voicechat.realtime.outbox import (
    BeginAudio,
    CancelJudge,
    CancelResponse,
    CancelTranscribe,
    ClearAudio,
    Close,
    EndAudio,
    HoldAudio,
    JudgeTurn,
    Output,
    PlayAudio,
    ReleaseAudio,
    Send,
    SendWithAudio,
    StartResponse,
    Transcribe,
)
from voicechat.realtime.session import Session, SessionLimits
from voicechat.realtime.settings import SessionConfig
from voicechat.realtime.turn_state import TurnState

MODEL = ModelInfo("double", ("anna", "ben"), "anna", sees=False, context_tokens=2048, created=0)
QUIET = np.zeros(FRAME_SAMPLES, np.float32)
LOUD = np.full(FRAME_SAMPLES, 0.1, np.float32)
WORD = 7200
"""Samples of a spoken word: 0.3 s."""


def message(text: str, **more: object) -> dict[str, object]:
    """A typed item of the user's."""
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}], **more}


class Bench:
    """Sees all that a session puts out, and checks what must hold whatever happens."""

    def __init__(self, config: SessionConfig | None = None, *, model: ModelInfo = MODEL, **limits: Any) -> None:
        counter = itertools.count(1)
        self.session = Session(
            "sess_1",
            model,
            config or SessionConfig("Be brief.", "anna"),
            SessionLimits(**limits),
            lambda prefix: f"{prefix}_{next(counter)}",
        )
        self.now = 0.0
        self.events: list[dict[str, Any]] = []
        self.outputs: list[Output] = []
        self.running: dict[int, StartResponse] = {}
        self.started: list[StartResponse] = []
        self.cancelled: list[int] = []
        self.jobs: dict[int, Transcribe] = {}
        self.judgements: dict[int, JudgeTurn] = {}
        self.played = self.pushed = 0
        self.ended = self.playing = self.sounding = False
        self.closed: Close | None = None
        self.clocked: dict[str, int] = {}
        self.finished = 0
        self.current = ""
        self.truncating = self.held = False
        self.take(self.session.open())

    def take(self, outputs: Iterable[Output]) -> None:
        """Perform what a session wants, as a shell would."""
        for output in outputs:
            self.outputs.append(output)
            match output:
                case Send(event) | SendWithAudio(event, _):
                    sent = json.dumps(event, ensure_ascii=False, allow_nan=False).encode()
                    check_server_event(json.loads(sent))
                    self.events.append(event)
                    if event["type"] == "conversation.item.truncated" and not self.truncating:
                        assert event["audio_end_ms"] * 24 <= self.clocked.get(event["item_id"], 0), "was never heard"
                case StartResponse(generation, _):
                    self.running[generation] = output
                    self.started.append(output)
                case CancelResponse(generation):
                    self.cancelled.append(generation)
                    self.running.pop(generation, None)
                case Transcribe(job, _):
                    self.jobs[job] = output
                case CancelTranscribe(job):
                    self.jobs.pop(job, None)
                case JudgeTurn(job, _):
                    self.judgements[job] = output
                case CancelJudge(job):
                    self.judgements.pop(job, None)
                case BeginAudio(place):
                    self.current = place.item_id
                    self.played = self.pushed = 0
                    self.playing, self.ended, self.sounding, self.held = True, False, False, False
                case PlayAudio(_, pcm):
                    assert self.playing and not self.ended
                    self.pushed += len(pcm)
                case HoldAudio():
                    assert self.playing and not self.held
                    self.held = True
                case ReleaseAudio():
                    assert self.held
                    self.held = False
                case EndAudio():
                    self.ended = True
                case ClearAudio():
                    self.playing = self.held = False
                case Close():
                    self.closed = output

    # -- what a test does ---------------------------------------------------------------------------------------------

    def tell(self, kind: str, **fields: Any) -> None:
        self.truncating = kind == "conversation.item.truncate"
        self.raw(json.dumps({"type": kind, "event_id": "mine", **fields}))
        self.truncating = False

    def raw(self, text: str) -> None:
        self.take(self.session.on_event(parse_event(text)))

    def hear(self, seconds: float, voiced: bool) -> None:
        for _ in range(round(seconds * 50)):
            self.pass_time(0.02)
            self.take(self.session.on_frame(LOUD if voiced else QUIET, voiced))

    def turn(self, text: str | None = "hello", voice: float = 0.6) -> None:
        """A spoken turn; ``text`` is what the ears make of it."""
        self.hear(voice, True)
        self.hear(0.6, False)
        if text is not None:
            self.understand(text)

    def understand(self, text: str) -> None:
        """All jobs of the ears end."""
        for job in list(self.jobs):
            del self.jobs[job]
            self.take(self.session.on_text(job, text))

    def judge(self, probability: float | None) -> None:
        """The detector has judged every turn that it was given."""
        for job in list(self.judgements):
            del self.judgements[job]
            self.take(self.session.on_judged(job, probability))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.session.tick(self.now))

    def say(self, *words: str, generation: int | None = None) -> None:
        """The cascade makes words and their sound."""
        generation = max(self.running) if generation is None else generation
        for word in words:
            self.take(self.session.on_cascade(generation, TextDelta(word)))
            self.take(self.session.on_cascade(generation, AudioDelta(np.full(WORD, 1000, np.int16))))

    def finish(self, reason: FinishReason = FinishReason.STOP, generation: int | None = None) -> None:
        generation = max(self.running) if generation is None else generation
        self.running.pop(generation, None)
        self.finished += 1
        self.take(self.session.on_cascade(generation, Finished(reason, Usage(7, 2, 3, 4), StageTimes(done=1.0))))

    def fail(self, error: CascadeError) -> None:
        generation = max(self.running)
        del self.running[generation]
        self.take(self.session.on_cascade_failed(generation, error))

    def play(self, seconds: float) -> None:
        """The server's playout clock runs, where the server plays."""
        for _ in range(round(seconds * 50)):
            self.pass_time(0.02)
            if not self.playing or self.held:
                self.take(self.session.on_played(self.played))
                continue
            started = not self.sounding and self.pushed > 0
            self.sounding |= started
            self.played = min(self.pushed, self.played + PCM_RATE // 50)
            self.clocked[self.current] = self.played
            drained = self.ended and self.played == self.pushed
            self.playing = not drained
            self.take(self.session.on_played(self.played, started=started, drained=drained))

    # -- what a test sees ---------------------------------------------------------------------------------------------

    def all(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]

    def kinds(self, since: int = 0) -> list[str]:
        return [event["type"] for event in self.events[since:]]

    def error(self) -> dict[str, Any]:
        assert self.events[-1]["type"] == "error", self.events[-1]
        return self.events[-1]["error"]

    def done(self) -> dict[str, Any]:
        return self.all("response.done")[-1]["response"]

    def asked(self, index: int = -1) -> list[tuple[str, str]]:
        """Roles and texts of what the cascade was asked; of a call its name, of a result its output."""
        told = []
        for asked in self.started[index].request.messages:
            (part,) = asked.parts
            match part:
                case CallPart():
                    told.append((asked.role, part.name))
                case ResultPart():
                    told.append((asked.role, part.output))
                case TextPart():
                    told.append((asked.role, part.text))
        return told

    def check(self) -> None:
        """What must hold at any time."""
        ids = [event["event_id"] for event in self.events]
        assert len(ids) == len(set(ids))
        open_responses: set[str] = set()
        finished: set[str] = set()
        for output in self.outputs:
            if isinstance(output, PlayAudio):
                assert output.place.response_id in open_responses, "sound after the response was done"
            if not isinstance(output, Send):
                continue
            event = output.event
            if event["type"] == "response.created":
                assert not open_responses, "two live responses"
                open_responses.add(event["response"]["id"])
            elif event["type"] == "response.done":
                open_responses.remove(event["response"]["id"])
                finished.add(event["response"]["id"])
            elif event["type"].startswith("response."):
                assert event["response_id"] in open_responses, event
        if self.session.limits.server_plays:
            assert self.playing == self.session.playback.busy, "what plays is what the session believes to play"
            may_speak = self.session.turn.open or self.session.turn.state is TurnState.SUSPECTED
            assert may_speak or not self.held, "held only while somebody may be interrupting"
        self._check_turn()
        self._check_generations()
        self._check_parts()
        self._check_items()

    def _check_turn(self) -> None:
        """The one who says whose turn it is, and those who hear, speak and wait, agree."""
        session, state = self.session, self.session.turn.state
        if state is TurnState.CLOSED:
            return
        assert session.turn.open == session.input.open
        waits = session.playback.held or session.replies.suspended
        if session.turn.undecided:
            assert waits, "a reply waits"
        elif state not in (TurnState.SUSPECTED, TurnState.ACKNOWLEDGED):
            assert not waits
        if state is TurnState.IDLE:
            assert session.replies.idle and session.owed is None and not session.asr.pending

    def _check_generations(self) -> None:
        """What runs in the cascade is wanted by somebody, and is paid for once."""
        replies = self.session.replies
        held = replies._remainder
        wanted = {owner.generation for owner in (replies.live, replies._speculation, held) if owner is not None}
        assert set(self.running) <= wanted, "nobody waits for it, but it goes on"
        if held is not None:
            assert replies.live is None and replies._speculation is None and not self.session.limits.server_plays
            assert self.session.turn.open, "nobody speaks any more: it should have been decided"
        paid = [event for event in self.all("response.done") if (event["response"]["usage"] or {}).get("total_tokens")]
        assert len(paid) <= self.finished

    def _check_parts(self) -> None:
        """Every item and part is opened once, closed once, and nothing comes before or after."""
        state: dict[tuple[str, int], str] = {}
        items: dict[str, str] = {}
        for event in self.events:
            kind = event["type"]
            if kind == "response.output_item.added":
                assert event["item"]["id"] not in items
                items[event["item"]["id"]] = "open"
            elif kind == "response.output_item.done":
                assert items[event["item"]["id"]] == "open"
                items[event["item"]["id"]] = "closed"
            elif kind.startswith("response.") and "content_index" in event:
                key = (event["item_id"], event["content_index"])
                assert items[event["item_id"]] == "open"
                if kind == "response.content_part.added":
                    assert key not in state
                    state[key] = "open"
                elif kind == "response.content_part.done":
                    assert state[key] == "open"
                    state[key] = "closed"
                else:
                    assert state[key] == "open", event
            elif kind == "response.done":
                assert "open" not in items.values()
                assert "open" not in state.values()

    def _check_items(self) -> None:
        """The client can follow the conversation from the events alone, and comes to the same order."""
        order: list[str] = []
        for event in self.events:
            if event["type"] == "conversation.item.added":
                item_id, previous = event["item"]["id"], event["previous_item_id"]
                assert item_id not in order
                order.insert(order.index(previous) + 1 if previous else 0, item_id)
            elif event["type"] == "conversation.item.deleted":
                order.remove(event["item_id"])
            elif event["type"] == "conversation.item.truncated":
                assert event["audio_end_ms"] >= 0
        assert order == [item.id for item in self.session.conversation.items]


def manual(**limits: Any) -> Bench:
    """A session without detected turns."""
    return Bench(SessionConfig("Be brief.", "anna", detection=None), **limits)
