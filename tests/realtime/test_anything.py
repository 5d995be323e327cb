"""Anything in any order: the invariants hold."""

from __future__ import annotations

import base64
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.realtime.bench import Bench
from voicechat.contract.errors import StageFailed
from voicechat.contract.events import FinishReason
from voicechat.realtime.settings import SessionConfig, TurnDetection

SECOND = base64.b64encode(bytes(48_000)).decode()
TOOL = {"type": "function", "name": "look", "parameters": {}}
DETECTIONS = [
    None,
    {"type": "server_vad"},
    {"type": "server_vad", "create_response": False},
    {"type": "server_vad", "interrupt_response": False, "idle_timeout_ms": 2000},
    {"type": "semantic_vad", "eagerness": "high"},
]
KINDS = (None, "server_vad", "semantic_vad", "semantic_vad")
WORDS = st.lists(st.sampled_from(["one ", "two. ", "<tool_call>", '{"name": "look"}', "</tool_call>", "{", " "]))


class Anything(RuleBasedStateMachine):
    """A client, a speaker, ears and a cascade that do whatever they like, late and twice."""

    @initialize(server=st.booleans(), kind=st.sampled_from(KINDS), tools=st.booleans(), judged=st.booleans())
    def begin(self, server: bool, kind: Any, tools: bool, judged: bool) -> None:
        config = SessionConfig("Be brief.", "anna", detection=TurnDetection(kind) if kind else None)
        self.bench = Bench(config, server_plays=server, judged=judged, max_seconds=120, max_items=12)
        self.called_off: list[int] = []
        self.played: dict[str, int] = {}
        if tools:
            self.bench.tell("session.update", session={"tools": [TOOL]})

    def items(self) -> list[str]:
        return [item.id for item in self.bench.session.conversation.items] or ["none"]

    @rule(voiced=st.booleans(), seconds=st.sampled_from([0.02, 0.1, 0.3, 0.7]))
    def hear(self, voiced: bool, seconds: float) -> None:
        self.bench.hear(seconds, voiced)

    @rule(frames=st.integers(1, 40))
    def starve(self, frames: int) -> None:
        self.bench.take(self.bench.session.on_starved(frames))

    @rule(text=st.sampled_from(["hello", "", "  ", "and then", "yeah", "And then what?", "And then who?"]))
    def understand(self, text: str) -> None:
        self.bench.understand(text)

    @rule(probability=st.sampled_from([None, 0.0, 0.4, 1.0]))
    def judge(self, probability: float | None) -> None:
        self.called_off += self.bench.judgements
        self.bench.judge(probability)

    @precondition(lambda self: self.called_off)
    @rule(probability=st.sampled_from([None, 0.0, 1.0]), data=st.data())
    def judge_late(self, probability: float | None, data: st.DataObject) -> None:
        """A judgement comes twice, or of a pause that is long over: nothing follows from it."""
        job = data.draw(st.sampled_from(self.called_off))
        assert self.bench.session.on_judged(job, probability) == []

    @precondition(lambda self: self.bench.jobs)
    @rule()
    def one_is_understood(self) -> None:
        job = max(self.bench.jobs)
        del self.bench.jobs[job]
        self.bench.take(self.bench.session.on_text(job, "hello there"))

    @precondition(lambda self: self.bench.jobs)
    @rule()
    def ears_fail(self) -> None:
        job = max(self.bench.jobs)
        del self.bench.jobs[job]
        self.bench.take(self.bench.session.on_text_failed(job, TimeoutError()))

    @rule(words=WORDS, back=st.integers(0, 2))
    def cascade_speaks(self, words: list[str], back: int) -> None:
        if self.bench.started:
            generation = self.bench.started[-1 - min(back, len(self.bench.started) - 1)].generation
            self.bench.say(*words, generation=generation)

    @rule(reason=st.sampled_from(FinishReason), back=st.integers(0, 2))
    def cascade_finishes(self, reason: FinishReason, back: int) -> None:
        if self.bench.started:
            generation = self.bench.started[-1 - min(back, len(self.bench.started) - 1)].generation
            self.bench.finish(reason, generation=generation)

    @precondition(lambda self: self.bench.running)
    @rule()
    def cascade_fails(self) -> None:
        self.bench.fail(StageFailed("talker", "died"))

    @rule(seconds=st.sampled_from([0.02, 0.5, 3.0]))
    def play(self, seconds: float) -> None:
        if self.bench.session.limits.server_plays:
            self.bench.play(seconds)
        else:
            self.bench.pass_time(seconds)

    @rule(detection=st.sampled_from(DETECTIONS))
    def update(self, detection: object) -> None:
        self.bench.tell("session.update", session={"audio": {"input": {"turn_detection": detection}}})

    @rule(spoken=st.booleans(), data=st.data())
    def create_item(self, spoken: bool, data: st.DataObject) -> None:
        part = {"type": "input_audio", "audio": SECOND} if spoken else {"type": "input_text", "text": "typed"}
        previous = data.draw(st.sampled_from([None, "root", "nowhere", *self.items()]))
        item = {"type": "message", "role": "user", "content": [part]}
        self.bench.tell("conversation.item.create", item=item, previous_item_id=previous)

    def create_item_of(self, text: str) -> None:
        content = [{"type": "input_text", "text": text}]
        self.bench.tell("conversation.item.create", item={"type": "message", "role": "user", "content": content})

    @rule(data=st.data(), kind=st.sampled_from(["delete", "retrieve"]))
    def touch_item(self, data: st.DataObject, kind: str) -> None:
        self.bench.tell(f"conversation.item.{kind}", item_id=data.draw(st.sampled_from(self.items())))

    @rule(words=st.integers(1, 6), heard=st.sampled_from([0.1, 0.7]), finish=st.booleans())
    def converse(self, words: int, heard: float, finish: bool) -> None:
        """A typed question and (some of) its answer, so that there is sound to be cut off."""
        self.create_item_of("typed")
        self.bench.tell("response.create")
        self.bench.understand("spoken")
        if self.bench.running:
            self.bench.say(*["word "] * words)
            self.play(heard)
            if finish and self.bench.running:
                self.bench.finish()

    @rule(
        words=st.integers(1, 8), more=st.integers(0, 3), share=st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]),
        text=st.sampled_from([None, "", "yeah", "stop"]), finish=st.booleans(), voice=st.sampled_from([0.3, 0.5]),
    )  # fmt: skip
    def murmur(self, words: int, more: int, share: float, text: str | None, finish: bool, voice: float) -> None:
        """Something is said in a reply, and the client stops it."""
        bench = self.bench
        self.converse(words, 0.1, finish)
        bench.hear(voice, True)
        item = next((item for item in reversed(bench.session.conversation.items) if item.role == "assistant"), None)
        if item is not None and item.parts:
            end = int(item.parts[0].samples // 24 * share)
            bench.tell("conversation.item.truncate", item_id=item.id, content_index=0, audio_end_ms=end)
        if bench.running:
            bench.say(*["more "] * more)
        bench.hear(0.24, False)
        if text is not None:
            bench.understand(text)
            bench.hear(0.04, False)

    @rule(data=st.data(), end=st.integers(-1, 3000), index=st.sampled_from([0, 0, 0, 1]))
    def truncate(self, data: st.DataObject, end: int, index: int) -> None:
        spoken = [item.id for item in self.bench.session.conversation.items if item.role == "assistant"]
        item_id = data.draw(st.sampled_from(spoken or self.items()))
        item = self.bench.session.conversation.get(item_id)
        made = item.parts[0].samples // 24 if item is not None and item.parts else 0
        before = len(self.bench.all("conversation.item.truncated"))
        self.bench.tell("conversation.item.truncate", item_id=item_id, content_index=index, audio_end_ms=end)
        truncated = self.bench.all("conversation.item.truncated")[before:]
        if truncated and truncated[-1]["audio_end_ms"] == end:
            assert 0 <= end <= made

    @rule(
        response=st.sampled_from([
            None,
            {"conversation": "none"},
            {"output_modalities": ["text"]},
            {"input": []},
            {"input": [{"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": SECOND}]}]},
            {"tool_choice": "none"},
        ])
    )  # fmt: skip
    def respond(self, response: object) -> None:
        self.bench.tell("response.create", response=response)

    @rule(kind=st.sampled_from([
        "response.cancel", "output_audio_buffer.clear", "input_audio_buffer.commit", "input_audio_buffer.clear", "huh",
    ]))  # fmt: skip
    def simple(self, kind: str) -> None:
        self.bench.tell(kind)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "bench"):
            self.bench.check()
            for event in self.bench.all("conversation.item.truncated"):
                assert event["audio_end_ms"] * 24 <= self.made(event["item_id"])
            assert len(self.bench.judgements) <= 1, "one pause is judged at a time"
            assert self.bench.session.limits.judged or not self.bench.judgements
            self.captions()

    def captions(self) -> None:
        """What was told of an item's text is its beginning, or the whole transcript stands alone; it comes last."""
        told: dict[str, str] = {}
        completed: set[str] = set()
        for event in self.bench.events:
            if event["type"] == "conversation.item.input_audio_transcription.delta":
                assert event["item_id"] not in completed and event["delta"]
                told[event["item_id"]] = told.get(event["item_id"], "") + event["delta"]
            elif event["type"] == "conversation.item.input_audio_transcription.completed":
                completed.add(event["item_id"])
                pieces = told.get(event["item_id"], "")
                assert pieces == event["transcript"] or not event["transcript"].startswith(pieces)

    def made(self, item_id: str) -> int:
        """Samples that were ever made of an item's sound."""
        return sum(
            len(output.pcm)
            for output in self.bench.outputs
            if type(output).__name__ == "PlayAudio" and output.place.item_id == item_id  # type: ignore[union-attr]
        )

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        self.bench.take(self.bench.session.close())
        self.bench.check()
        created, done = self.bench.all("response.created"), self.bench.all("response.done")
        assert [e["response"]["id"] for e in created] == [e["response"]["id"] for e in done]
        assert not self.bench.jobs and not self.bench.judgements
        assert all(
            response.generation in self.bench.cancelled or response.generation not in self.bench.running
            for response in self.bench.started
        )


Anything.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestAnything = Anything.TestCase
