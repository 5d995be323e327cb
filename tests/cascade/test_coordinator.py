"""The coordinator over stages without models: any order of messages, cancels, failures and deaths ends well.

For every response exactly one end, nothing after it; in the end all slots are free and nothing is kept.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cascade.doubles import STEP_SAMPLES, ThinkerDouble, codes_of
from tests.cascade.world import MODEL, Caller, World, simulated, transcribed
from voicechat.contract.calls import CallParser, ToolCall
from voicechat.contract.errors import InvalidRequest, NotReady, Overloaded, StageFailed
from voicechat.contract.events import FinishReason, Heard, TextDelta
from voicechat.contract.messages import (
    Call,
    Called,
    Codes,
    Decode,
    Failed,
    Generate,
    Piece,
    Released,
    Sound,
    Speak,
    Text,
    ToolSpec,
    Written,
)
from voicechat.contract.requests import AudioPart, ImagePart, Message, ResponseRequest, TextPart, Tool


def request_of(rng: random.Random) -> tuple[tuple[TextPart | AudioPart, ...], dict[str, Any]]:
    parts: list[TextPart | AudioPart] = [TextPart(rng.choice(["Hello", "Hello", "Hello", "refuse me"]))]
    for _ in range(rng.choice([0, 0, 0, 1, 2])):
        parts.insert(rng.randint(0, 1), AudioPart(np.zeros(rng.choice([100, 1000, 1000, 2000]), np.float32)))
    return tuple(parts), {
        "audio": rng.random() < 0.8,
        "voice": rng.choice([None, None, "ben", "nobody"]),
        "latency_first": rng.random() < 0.5,
    }


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["calm", "cancels", "deaths"]))
def test_any_order_of_events_ends_well(seed: int, mood: str) -> None:
    async def body(world: World) -> None:
        rng = world.rng
        for _ in range(rng.randint(1, 60)):
            await world.step(rng.randint(0, 25))
            choice = rng.random()
            if choice < 0.4:
                parts, fields = request_of(rng)
                world.ask(*parts, **fields)
            elif choice < 0.5:
                world.speak(rng.choice(["Hello there.", "Hello there.", " "]), voice=rng.choice([None, "nobody"]))
            elif choice < 0.8 and mood != "calm" and world.callers:
                caller, _ = rng.choice(world.callers)
                caller.response.cancel()
            elif choice < 0.9 and mood == "deaths":
                stage = rng.choice(list(world.stages.values()))
                thinker = world.stages["thinker"]
                assert isinstance(thinker, ThinkerDouble)
                if rng.random() < 0.3:
                    thinker.break_off()
                elif stage.up:
                    stage.die()
            elif choice < 0.95:
                await asyncio.sleep(rng.choice([0.01, 1.0]))

    simulated(body, seed, slots=random.Random(seed).randint(1, 3), timeout=random.Random(seed).choice([0.05, 5.0]))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_what_was_made_is_what_arrives(seed: int) -> None:
    """Text and sound of several replies at once, none lost, doubled, out of order or in another's hands."""
    made: dict[int, list[int]] = {}
    written: dict[int, list[str]] = {}

    async def body(world: World) -> None:
        talker, thinker = world.stages["talker"], world.stages["thinker"]
        for stage, kind, store in ((talker, Codes, made), (thinker, Piece, written)):
            deliver = stage._on_message

            def spy(message: Any, deliver: Any = deliver, kind: type = kind, store: Any = store) -> None:
                if isinstance(message, kind):
                    new = codes_of(message.steps) if isinstance(message, Codes) else message.pieces
                    store.setdefault(message.id, []).extend(new)
                deliver(message)

            stage._on_message = spy
        callers = []
        for _ in range(6):
            callers.append(world.ask(latency_first=world.rng.random() < 0.5))
            await world.step(world.rng.randint(0, 40))
        await world.all_ended()
        for caller in callers:
            number = caller.response.number
            assert caller.error is None
            assert caller.text == "".join(written.get(number, []))
            codes = made.get(number, [])
            assert np.array_equal(caller.sound, np.repeat(np.array(codes, np.int16), STEP_SAMPLES))
            assert caller.finished is not None
            usage = caller.finished.usage
            assert usage.completion_tokens == len(written.get(number, []))
            assert usage.speech_tokens == len(codes)
            assert usage.audio_out_seconds == pytest.approx(0.04 * len(codes))
            assert caller.finished.reason in (FinishReason.STOP, FinishReason.LENGTH)
            assert (usage.prompt_tokens, usage.cached_tokens) == (7, 3)
            if codes:
                assert caller.finished.times.handoff_us == 12.5

    simulated(body, seed, slots=3)


@pytest.mark.parametrize("seed", range(10))
def test_the_state_goes_on_from_chunk_to_chunk(seed: int) -> None:
    """Each chunk begins with the state in which its reply's last one ended, whatever is decoded between them."""

    async def body(world: World) -> None:
        ended: dict[int, list[bytes]] = {}
        voicebox = world.stages["voicebox"]
        deliver = voicebox._on_message

        def spy(message: Any) -> None:
            if isinstance(message, Sound):
                ended.setdefault(message.id, []).append(message.state)
            deliver(message)

        voicebox._on_message = spy
        voicebox.log.clear()  # of what the server says to itself before it is ready
        for _ in range(8):
            world.ask()
        await world.all_ended()
        begun: dict[int, list[bytes]] = {}
        for message in voicebox.log:
            assert isinstance(message, Decode)
            begun.setdefault(message.id, []).append(message.state)
        assert begun == {number: [b"", *states[:-1]] for number, states in ended.items()}
        assert sum(len(states) > 2 for states in ended.values()) > 1
        assert all(states[0] != states[-1] for states in ended.values() if len(states) > 1), "the double's moves"

    simulated(body, seed, slots=3)


def test_a_question_of_text_and_sounds() -> None:
    async def body(world: World) -> None:
        caller = world.ask(
            AudioPart(np.zeros(100, np.float32)), TextPart("and"), AudioPart(np.zeros(200, np.float32)), audio=False
        )
        await world.all_ended()
        assert caller.events[0] == Heard(("100", "200"))
        (asked,) = (
            m for m in world.stages["thinker"].log if isinstance(m, Generate) and m.id == caller.response.number
        )
        assert asked.turns[-1].text == "100\nand\n200"
        assert not asked.rows
        assert caller.finished is not None
        assert caller.finished.usage.audio_in_seconds == pytest.approx(300 / 16_000)
        assert caller.finished.times.ears is not None

    simulated(body)


def test_a_model_with_ears_and_eyes_is_given_sounds_and_images_themselves() -> None:
    """Each is where it stood in the message; nothing is transcribed."""
    sound, image = np.arange(100, dtype=np.float32), bytes(range(256)) * 15

    async def body(world: World) -> None:
        thinker = world.stages["thinker"]
        caller = world.ask(TextPart("see"), ImagePart(image), TextPart("and"), AudioPart(sound), audio=False)
        await world.all_ended()
        assert caller.error is None
        assert not [event for event in caller.events if isinstance(event, Heard)]
        (asked,) = (m for m in thinker.log if isinstance(m, Generate) and m.id == caller.response.number)
        turn = asked.turns[-1]
        assert (turn.text, [medium.at for medium in turn.media]) == ("see\nand", [3, 7])
        assert thinker.used == [image, sound.tobytes()]
        assert caller.finished is not None and caller.finished.usage.audio_in_seconds == pytest.approx(100 / 16_000)
        large = world.ask(ImagePart(bytes(4001)))
        await world.all_ended()
        assert isinstance(large.error, InvalidRequest) and "too large" in str(large.error)

    simulated(body, model=dataclasses.replace(MODEL, sees=True, hears=True))


@pytest.mark.parametrize("seed", range(10))
def test_what_was_attached_and_is_not_wanted_any_more_is_taken_back(seed: int) -> None:
    async def body(world: World) -> None:
        callers = [world.ask(ImagePart(b"i"), AudioPart(np.ones(9, np.float32))) for _ in range(3)]
        await world.step(world.rng.randint(0, 30))
        for caller in callers:
            caller.response.cancel()
        await world.all_ended()
        await world.rest()
        thinker = world.stages["thinker"]
        await world.run_until(lambda: not thinker.inbox)
        assert not thinker.media

    simulated(body, seed, model=dataclasses.replace(MODEL, sees=True, hears=True))


def test_a_model_without_eyes_is_given_no_image() -> None:
    async def body(world: World) -> None:
        caller = world.ask(ImagePart(b"image"))
        await world.all_ended()
        assert isinstance(caller.error, InvalidRequest) and "can't see images" in str(caller.error)

    simulated(body)


def test_many_sounds_of_one_caller_leave_room_for_others() -> None:
    """More than there are bays and places to wait: the caller does not stand in its own way."""

    async def body(world: World) -> None:
        caller = world.ask(*(AudioPart(np.zeros(100 + index, np.float32)) for index in range(20)), audio=False)
        assert await transcribed(world, 7) == "7"
        await world.all_ended()
        assert caller.events[0] == Heard(tuple(str(100 + index) for index in range(20)))

    simulated(body, waiting=3)


def test_text_alone_needs_no_slot() -> None:
    async def body(world: World) -> None:
        blockers = [world.ask() for _ in range(2)]
        await world.step(3)
        assert world.cascade.leases.free == 0
        caller = world.ask(audio=False)
        await world.run_until(lambda: caller.finished is not None)
        assert caller.sound.size == 0
        for blocker in blockers:
            blocker.response.cancel()

    simulated(body)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"voice": "nobody"}, "voice"),
        ({"messages": ()}, "messages"),
        ({"messages": (Message("user", (AudioPart(np.zeros(0, np.float32)),)),)}, "messages"),
        ({"messages": (Message("user", (AudioPart(np.zeros(1001, np.float32)),)),)}, "messages"),
        ({"messages": (Message("user", (AudioPart(np.zeros((2, 5), np.float32)),)),)}, "messages"),
        ({"messages": (Message.text("user", "refuse me"),)}, "messages"),
    ],
)
def test_bad_requests_name_what_is_wrong(fields: dict[str, Any], param: str) -> None:
    async def body(world: World) -> None:
        request = ResponseRequest(**{"messages": (Message.text("user", "Hello"),), **fields})
        caller = Caller(world.cascade.respond(request))
        world.callers.append((caller, asyncio.create_task(caller.read())))
        await world.all_ended()
        assert isinstance(caller.error, InvalidRequest)
        assert caller.error.param == param
        assert not caller.text

    simulated(body)


def test_an_unknown_voice_does_not_matter_to_text() -> None:
    async def body(world: World) -> None:
        caller = world.ask(audio=False, voice="nobody")
        await world.all_ended()
        assert caller.error is None

    simulated(body)


def test_text_goes_to_the_talker_as_it_comes() -> None:
    async def body(world: World) -> None:
        caller = world.ask()
        await world.all_ended()
        texts = [m for m in world.stages["talker"].log if isinstance(m, Text) and m.id == caller.response.number]
        assert [m.final for m in texts] == [False] * (len(texts) - 1) + [True]
        assert "".join(piece for m in texts for piece in m.pieces) == caller.text

    simulated(body)


def test_a_brain_elsewhere() -> None:
    """It is not asked for anything to warm up; the Talker is told that there are no hidden states; calls are text that
    is not spoken; what goes wrong there is told as what it is."""

    async def body(world: World) -> None:
        thinker, talker = world.stages["thinker"], world.stages["talker"]
        assert not thinker.log
        caller = world.ask(tools=(Tool("clock", "The time", {}),), tool_choice="required", must_call="clock")
        number = caller.response.number
        await world.run_until(lambda: bool(thinker.log) and any(getattr(m, "id", 0) == number for m in talker.log))
        (generate,) = thinker.log
        assert isinstance(generate, Generate)
        assert (generate.tools, generate.tool_choice) == ((ToolSpec("clock", "The time", {}),), "required")
        assert generate.must_call == "clock"
        (speak,) = (m for m in talker.log if isinstance(m, Speak) and m.id == number)
        assert not speak.rows
        calls = (Call("a", "clock", "{}"), Call("b", "clock", '{"in": "Rome"}'))
        thinker._on_message(Called(number, calls))
        await world.all_ended()
        parser = CallParser(["clock"])
        found = [*parser.push("".join(e.text for e in caller.events if isinstance(e, TextDelta))), *parser.finish()]
        assert [part for part in found if isinstance(part, ToolCall)] == [ToolCall(c.name, c.arguments) for c in calls]
        spoken = "".join(piece for m in talker.log if isinstance(m, Text) and m.id == number for piece in m.pieces)
        assert "clock" not in spoken
        for failed, kind in (
            (Failed(0, "busy", overloaded=True, retry_after=7.0), Overloaded),
            (Failed(0, "gone", unreachable=True), NotReady),
            (Failed(0, "bad", invalid=True), InvalidRequest),
            (Failed(0, "ill"), StageFailed),
        ):
            caller = world.ask()
            await asyncio.sleep(0.01)
            thinker._on_message(msgspec.structs.replace(failed, id=caller.response.number))
            await world.all_ended()
            assert type(caller.error) is kind
            assert str(caller.error) == failed.message

    simulated(body, seed=2, hidden_states=False)


def test_a_call_in_the_text_is_not_spoken() -> None:
    """Of a model that writes its calls: the face gets all of the text, the Talker what is around the call."""

    async def body(world: World) -> None:
        thinker, talker = world.stages["thinker"], world.stages["talker"]
        caller = world.ask(tools=(Tool("clock"),))
        await world.run_until(lambda: caller.response.number in talker.work)
        written = ("I look. <tool", '_call>{"name": "clock"', ', "arguments": {}}', "</tool_call>", " Noon. <tool")
        number = caller.response.number
        thinker.work.pop(number, None)
        thinker.touched.clear()
        thinker.inbox.clear()
        thinker._on_message(Piece(number, written, 0))
        thinker._on_message(Written(number, "stop", 1, 0, 5))
        thinker._on_message(Released(number, 0))
        await world.all_ended()
        assert caller.text == "".join(written)
        told = [message for message in talker.log if isinstance(message, Text) and message.id == number]
        assert "".join(piece for message in told for piece in message.pieces) == "I look. Noon. <tool"
        assert len(told[0].pieces) == len(written), "one piece for each row of hidden state"

    simulated(body, seed=4)
