"""The session alone: frames and events in, events and sound out, on a clock that the test moves."""

import asyncio
import json

import numpy as np
import pytest
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from tests.cascade_double import DoubleCascade
from tests.speech import silence, voice
from voicechat.cascade.api import Overloaded, StageFailed, TextPart
from voicechat.faces.webrtc_session import VoiceSession
from voicechat.media.playout import Playout
from voicechat.media.vad import FRAME_SAMPLES
from voicechat.realtime.session import SessionLimits
from voicechat.realtime.settings import SessionConfig

SERVER_EVENT = TypeAdapter(RealtimeServerEvent)


class Bench:
    """A session with its ends in hand. Time runs ``speed`` times as fast for sound as on the wall."""

    def __init__(self, cascade: DoubleCascade, **limits) -> None:
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

    def tell(self, kind: str, **fields) -> None:
        self.session.on_message(json.dumps({"type": kind, "event_id": "event_client", **fields}))

    def asked(self, index: int = -1) -> list[tuple[str, str]]:
        """Roles and texts of a request."""
        return [
            (m.role, " ".join(p.text for p in m.parts if isinstance(p, TextPart)))
            for m in self.cascade.requests[index].messages
        ]


@pytest.fixture
async def make():
    benches = []

    def factory(cascade: DoubleCascade | None = None, **limits) -> Bench:
        benches.append(Bench(cascade or DoubleCascade(), **limits))
        return benches[-1]

    yield factory
    for bench in benches:
        bench.session.on_closed("test over")
        await asyncio.wait_for(bench.session.wait_closed(), 5)
        for event in bench.events:
            SERVER_EVENT.validate_python(event)
        assert all(response.cancelled.is_set() or response.ended for response in bench.cascade.responses)


async def test_a_turn_and_its_reply(make):
    bench = make()
    await bench.run(np.concatenate([silence(0.5), voice(1.0), silence(0.3)]))
    assert len(bench.cascade.heard) == 1, "the ears begin at the pause, before the turn is over"
    assert not bench.all("input_audio_buffer.speech_stopped")
    await bench.until("output_audio_buffer.stopped")
    assert len(bench.cascade.heard) == 1, "and are not asked again"
    kinds = bench.kinds()
    assert kinds.index("response.content_part.added") < kinds.index("output_audio_buffer.started")
    kinds.remove("output_audio_buffer.started")  # comes when the sound does, between the deltas
    assert kinds == [
        "session.created",
        "conversation.created",
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.created",
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.input_audio_transcription.delta",
        "conversation.item.input_audio_transcription.completed",
        "response.created",
        "rate_limits.updated",
        "response.output_item.added",
        "conversation.item.created",
        "conversation.item.added",
        "response.content_part.added",
        *["response.output_audio_transcript.delta"] * 4,
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
        "output_audio_buffer.stopped",
    ]
    assert bench.all("conversation.item.input_audio_transcription.completed")[0]["transcript"] == "hello there"
    text = "".join(event["delta"] for event in bench.all("response.output_audio_transcript.delta"))
    assert text == bench.all("response.output_audio_transcript.done")[0]["transcript"] == "You said: hello there."
    assert bench.asked() == [("system", "Be brief."), ("user", "hello there")]
    done = bench.all("response.done")[0]["response"]
    assert done["status"] == "completed"
    assert done["metadata"]["endpointing_ms"] == "500"
    assert {"ears_ms", "first_text_ms", "first_audio_ms", "first_sound_ms"} <= done["metadata"].keys()
    assert done["usage"]["output_token_details"] == {"text_tokens": 4, "audio_tokens": 30}
    sound = np.concatenate(bench.sound)
    assert np.count_nonzero(sound) == pytest.approx(4 * 0.3 * 24_000, rel=0.01)


async def test_items_name_each_other(make):
    bench = make()
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.6)]))
    await bench.until("output_audio_buffer.stopped")
    user, reply = bench.all("conversation.item.added")
    assert user["item"]["id"] == bench.all("input_audio_buffer.speech_started")[0]["item_id"]
    assert user["previous_item_id"] is None
    assert reply["previous_item_id"] == user["item"]["id"]


async def test_conversation_is_remembered(make):
    bench = make(DoubleCascade(transcripts=["one", "two"]))
    for number in (1, 2):
        await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.6)]))
        await bench.until("output_audio_buffer.stopped", number)
    assert bench.asked() == [
        ("system", "Be brief."),
        ("user", "one"),
        ("assistant", "You said: one."),
        ("user", "two"),
    ]


async def test_reply_is_begun_ahead_and_kept_back(make):
    bench = make()
    await bench.run(np.concatenate([silence(0.5), voice(1.0), silence(0.48)]))
    assert len(bench.cascade.requests) == 1, "the reply is being made before the turn is over"
    assert not bench.all("response.created"), "and nobody is told"
    await bench.until("output_audio_buffer.stopped")
    assert len(bench.cascade.requests) == 1
    assert bench.all("response.done")[0]["response"]["status"] == "completed"


async def test_reply_that_was_begun_in_vain_is_stopped(make):
    bench = make(DoubleCascade(transcripts=["half", "the whole"]))
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.44), voice(0.6), silence(0.7)]))
    await bench.until("output_audio_buffer.stopped")
    assert [bench.asked(i)[-1][1] for i in range(2)] == ["half", "the whole"]
    assert bench.cascade.responses[0].cancelled.is_set()
    assert len(bench.all("response.created")) == len(bench.all("input_audio_buffer.committed")) == 1


async def test_reply_begun_ahead_is_stopped_with_the_session(make):
    bench = make()
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.44)]))
    bench.session.on_closed("gone")
    assert bench.cascade.responses[0].cancelled.is_set()


async def test_nothing_is_begun_ahead_if_that_is_turned_off(make):
    bench = make(eager=False)
    await bench.run(np.concatenate([silence(0.5), voice(1.0), silence(0.48)]))
    assert not bench.cascade.requests
    await bench.until("output_audio_buffer.stopped")


async def test_going_on_after_a_pause_voids_the_guess(make):
    bench = make(DoubleCascade(transcripts=["all of it"], ears_delay=0.3))
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.3), voice(0.6), silence(0.6)]))
    await bench.until("response.created")
    assert bench.cascade.transcribe_cancelled == 1
    assert len(bench.cascade.heard) == 2
    assert len(bench.cascade.heard[1]) > len(bench.cascade.heard[0]) + 16_000 * 0.6
    assert bench.asked()[-1] == ("user", "all of it")


async def test_barge_in_stops_the_reply_at_once(make):
    bench = make(DoubleCascade(transcripts=["tell me a story", "stop"], answer="word " * 40))
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.6)]))
    await bench.until("output_audio_buffer.started")
    await bench.run(silence(1.0))
    await bench.run(voice(0.4))
    assert not np.any(bench.sound[-5:]), "silent at once"
    await bench.run(voice(0.6))
    started = bench.kinds().index("input_audio_buffer.speech_started", 4)
    assert "output_audio_buffer.cleared" in bench.kinds()[started:]
    done = bench.all("response.done")[0]["response"]
    assert (done["status"], done["status_details"]["reason"]) == ("cancelled", "turn_detected")
    assert bench.cascade.responses[0].cancelled.is_set()
    played = bench.all("conversation.item.truncated")[0]["audio_end_ms"]
    assert 1000 < played < 1500
    before = len(bench.events)
    await bench.until("output_audio_buffer.started", 2)
    assert not [e for e in bench.events[before:] if e.get("response_id") == done["id"]], "no late word of it"
    roles = bench.asked()
    assert [role for role, _ in roles] == ["system", "user", "assistant", "user"]
    assert len(roles[2][1].split()) == pytest.approx(played / 300, abs=1.5), "only what was heard is remembered"


async def test_a_listeners_word_does_not_stop_the_reply(make):
    bench = make(DoubleCascade(transcripts=["tell me a story", "Mm-hm."], answer="word " * 12))
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.6)]))
    await bench.until("output_audio_buffer.started")
    await bench.run(np.concatenate([silence(0.5), voice(0.45), silence(0.6)]))
    await bench.until("output_audio_buffer.stopped")
    assert len(bench.all("input_audio_buffer.speech_started")) == 2, "it was heard"
    assert len(bench.cascade.heard) <= 3 and len(bench.cascade.requests) == 1
    assert bench.all("response.done")[0]["response"]["status"] == "completed"
    sound = np.concatenate(bench.sound)
    assert np.count_nonzero(sound) == pytest.approx(12 * 0.3 * 24_000, rel=0.02), "nothing of it is lost"


async def test_a_cough_does_not_stop_the_reply(make):
    bench = make(DoubleCascade(answer="word " * 10))
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.6)]))
    await bench.until("output_audio_buffer.started")
    await bench.run(np.concatenate([silence(0.4), voice(0.12), silence(0.8)]))
    await bench.until("output_audio_buffer.stopped")
    assert bench.all("response.done")[0]["response"]["status"] == "completed"
    assert len(bench.all("input_audio_buffer.speech_started")) == 1
    sound = np.concatenate(bench.sound)
    played = np.flatnonzero(sound)
    assert played[-1] - played[0] > 10 * 0.3 * 24_000 + 4800, "it waited for a moment"
    assert np.count_nonzero(sound) == pytest.approx(10 * 0.3 * 24_000, rel=0.02), "and lost nothing"


async def test_a_noise_before_the_reply_sounds_only_delays_it(make):
    bench = make(DoubleCascade(first_delay=1.0))
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.6)]))
    await bench.until("response.created")
    await bench.run(np.concatenate([voice(0.08), silence(0.7)]))
    await bench.until("output_audio_buffer.stopped")
    assert [d["response"]["status"] for d in bench.all("response.done")] == ["cancelled", "completed"]
    assert len(bench.cascade.requests) == 2
    assert bench.asked(0) == bench.asked(1)


async def test_speaking_on_before_the_reply_is_one_more_turn(make):
    bench = make(DoubleCascade(transcripts=["first", "second"], first_delay=0.5))
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.6)]))
    await bench.until("response.created")
    await bench.run(np.concatenate([voice(0.6), silence(0.6)]))
    await bench.until("output_audio_buffer.stopped")
    assert bench.asked() == [("system", "Be brief."), ("user", "first"), ("user", "second")]
    assert len(bench.all("output_audio_buffer.started")) == 1


async def test_nothing_understood_is_no_turn(make):
    bench = make(DoubleCascade(transcripts=["  "]))
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(1.0)]))
    event = await bench.until("conversation.item.input_audio_transcription.completed")
    assert event["transcript"] == ""
    await bench.run(silence(0.5))
    assert not bench.cascade.requests


async def test_failing_ears_are_told(make):
    bench = make(DoubleCascade(fail_transcribe=StageFailed("ears", "the ears are down")))
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.7)]))
    event = await bench.until("conversation.item.input_audio_transcription.failed")
    assert (event["error"]["code"], event["error"]["message"]) == ("stage_failed", "the ears are down")
    assert not bench.cascade.requests


@pytest.mark.parametrize(
    ("after", "error", "code"),
    [(0, Overloaded("full"), "overloaded"), (2, StageFailed("talker", "died"), "stage_failed")],
)
async def test_failing_reply_is_told_once_and_the_session_lives(make, after, error, code):
    bench = make(DoubleCascade(fail_respond=error, fail_after=after))
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.7)]))
    done = (await bench.until("response.done"))["response"]
    assert done["status"] == "failed"
    assert done["status_details"]["error"]["code"] == code
    await bench.run(silence(1.0))
    assert len(bench.all("response.done")) == 1
    bench.cascade.fail_respond = None
    await bench.run(np.concatenate([voice(0.6), silence(0.7)]))
    await bench.until("output_audio_buffer.stopped", 2 if after else 1)
    assert bench.all("response.done")[1]["response"]["status"] == "completed"


async def test_client_cancels(make):
    bench = make(DoubleCascade(answer="word " * 20, word_delay=0.1))
    bench.tell("response.cancel")
    assert bench.events[-1]["error"]["code"] == "response_cancel_not_active"
    assert bench.events[-1]["error"]["event_id"] == "event_client"
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.7)]))
    await bench.until("output_audio_buffer.started")
    bench.tell("response.cancel")
    done = bench.all("response.done")[0]["response"]
    assert (done["status"], done["status_details"]["reason"]) == ("cancelled", "client_cancelled")
    bench.tell("output_audio_buffer.clear")
    assert bench.all("output_audio_buffer.cleared")
    await bench.run(silence(0.2))
    assert not np.any(bench.sound[-5:])


async def test_typed_message(make):
    bench = make()
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "typed"}]}
    bench.tell("conversation.item.create", item=item)
    bench.tell("response.create")
    await bench.until("output_audio_buffer.started")
    assert bench.asked() == [("system", "Be brief."), ("user", "typed")]
    bench.tell("conversation.item.create", item=item)
    await bench.until("response.done")
    bench.tell("response.create")
    assert bench.all("output_audio_buffer.cleared"), "a new reply silences the old one"
    await bench.until("output_audio_buffer.stopped")


async def test_second_response_at_once_is_refused(make):
    bench = make(DoubleCascade(first_delay=0.5))
    bench.tell("response.create")
    bench.tell("response.create")
    assert bench.events[-1]["error"]["code"] == "conversation_already_has_active_response"


async def test_session_update(make):
    bench = make()
    detection = {"type": "server_vad", "silence_duration_ms": 300, "threshold": 0.7, "interrupt_response": False}
    bench.tell(
        "session.update",
        session={
            "type": "realtime",
            "instructions": "Speak like a pirate.",
            "audio": {"input": {"turn_detection": detection}, "output": {"voice": "ben"}},
            "tracing": "auto",
        },
    )
    session = bench.all("session.updated")[0]["session"]
    assert session["instructions"] == "Speak like a pirate."
    assert session["audio"]["output"]["voice"] == "ben"
    assert session["audio"]["input"]["turn_detection"]["silence_duration_ms"] == 300
    assert session["audio"]["input"]["turn_detection"]["prefix_padding_ms"] == 300, "the rest stays"
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.7)]))
    await bench.until("output_audio_buffer.stopped")
    assert bench.asked()[0] == ("system", "Speak like a pirate.")
    assert bench.cascade.requests[0].voice == "ben"
    assert bench.all("response.done")[0]["response"]["metadata"]["endpointing_ms"] == "300"
    bench.tell("session.update", session={"type": "realtime", "audio": {"output": {"voice": "anna"}}})
    assert bench.events[-1]["error"]["code"] == "cannot_update_voice"


async def test_semantic_vad_and_no_automatic_reply(make):
    bench = make()
    detection = {"type": "semantic_vad", "eagerness": "high", "create_response": False}
    bench.tell("session.update", session={"type": "realtime", "audio": {"input": {"turn_detection": detection}}})
    assert bench.all("session.updated")[0]["session"]["audio"]["input"]["turn_detection"]["eagerness"] == "high"
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.7)]))
    await bench.until("conversation.item.input_audio_transcription.completed")
    await bench.run(silence(0.3))
    assert not bench.cascade.requests
    bench.tell("response.create")
    await bench.until("output_audio_buffer.stopped")


@pytest.mark.parametrize(
    ("session", "param", "code"),
    [
        ({"voice": "nobody"}, "session.voice", "invalid_value"),
        ({"audio": {"output": {"voice": "nobody"}}}, "session.audio.output.voice", "invalid_value"),
        ({"audio": {"output": {"speed": 1.5}}}, "session.audio.output.speed", "unsupported_value"),
        (
            {"audio": {"input": {"turn_detection": {"threshold": 2}}}},
            "session.audio.input.turn_detection.threshold",
            "decimal_above_max_value",
        ),
        (
            {"audio": {"input": {"turn_detection": {"loudness": 2}}}},
            "session.audio.input.turn_detection.loudness",
            "unknown_parameter",
        ),
        ({"audio": {"speaker": {}}}, "session.audio.speaker", "unknown_parameter"),
        ({"instructions": 5}, "session.instructions", "invalid_type"),
        ({"instructions": "x" * 70_000}, "session.instructions", "string_above_max_length"),
        ({"tools": [{"type": "function"}]}, "session.tools[0].name", "missing_required_parameter"),
        ({"type": "transcription"}, "session.type", "invalid_value"),
        ({"colour": "red"}, "session.colour", "unknown_parameter"),
        ({"max_output_tokens": 0}, "session.max_output_tokens", "integer_below_min_value"),
        ({"output_modalities": ["text", "audio"]}, "session.output_modalities", "invalid_value"),
        ([], "session", "invalid_type"),
    ],
)
async def test_wrong_update_names_the_field_and_changes_nothing(make, session, param, code):
    bench = make()
    bench.tell("session.update", session=session)
    assert (bench.events[-1]["error"]["param"], bench.events[-1]["error"]["code"]) == (param, code)
    assert bench.session.config.voice == "anna"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "invalid_json"),
        ("[]", "invalid_event"),
        ("{}", "invalid_event"),
        ('{"type": 3}', "invalid_event"),
        ('{"type": "input_audio_buffer.append", "audio": ""}', "unsupported_event"),
        ('{"type": "conversation.item.create"}', "missing_required_parameter"),
        (
            '{"type": "conversation.item.create", "item": {"type": "message", "role": "user"}}',
            "missing_required_parameter",
        ),
        ('{"type": "response.create", "response": {"colour": 1}}', "unknown_parameter"),
    ],
)
async def test_wrong_event_is_answered(make, text, code):
    bench = make()
    bench.session.on_message(text)
    assert bench.events[-1]["type"] == "error"
    assert bench.events[-1]["error"]["code"] == code


async def test_microphone_that_stops_ends_the_turn(make):
    bench = make()
    await bench.run(np.concatenate([silence(0.5), voice(0.6)]))
    bench.session.on_starved(30)
    assert bench.all("input_audio_buffer.committed")


async def test_close_in_the_middle_stops_everything(make):
    bench = make(DoubleCascade(answer="word " * 40, word_delay=0.2))
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.7)]))
    await bench.until("output_audio_buffer.started")
    bench.session.on_closed("gone")
    await asyncio.wait_for(bench.session.wait_closed(), 2)
    assert bench.cascade.responses[0].cancelled.is_set()
    assert not bench.playout.active


async def test_history_is_bounded(make):
    bench = make()
    for number in range(100):
        item = {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": f"{number} " + "x" * 300}],
        }
        bench.tell("conversation.item.create", item=item)
    bench.tell("response.create")
    asked = bench.asked()
    assert sum(len(text) for _, text in asked) < bench.cascade.model.context_tokens * 3
    assert asked[-1][1].startswith("99 ")
    assert asked[0] == ("system", "Be brief.")
