"""Verdicts on timelines made by hand. Times are seconds; the user's sound is voiced from 10 to 12."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from voicechat.bench.realtime_judge import Fault, Verdict, judge, words_found
from voicechat.bench.realtime_player import Place, Player
from voicechat.bench.realtime_report import as_text, transport_report
from voicechat.bench.realtime_scene import Trace
from voicechat.bench.realtime_trace import Event, Piece, Record
from voicechat.bench.script import Effect, Entry, Expect, Kind, Recording, Speech

FIRST_S, LAST_S = 10.0, 12.0
OLD, NEW = "resp_old", "resp_new"


def trace(
    expect: Expect,
    record: Record,
    *,
    transport: str = "ws",
    first_s: float = FIRST_S,
    last_s: float = LAST_S,
    words: str = "",
) -> Trace:
    kind = {
        Expect.ONE_TURN: Kind.QUESTION,
        Expect.NO_TURN: Kind.NOISE,
        Expect.NO_INTERRUPTION: Kind.BACKCHANNEL,
        Expect.INTERRUPTION: Kind.INTERRUPTION,
    }[expect]
    source = Effect("cough") if expect is Expect.NO_TURN else Speech("words")
    recording = Recording(Entry("x", kind, expect, source, words), np.zeros(1, np.float32), ((0, 0),), "someone")
    reply = OLD if kind.in_reply else None
    return Trace(recording, transport, record, first_s, last_s, ((first_s, last_s),), reply, 30.0)


def event(at: float, kind: str, **fields: Any) -> tuple[float, Event]:
    return at, {"type": kind, **fields}


def committed(at: float) -> tuple[float, Event]:
    return event(at, "input_audio_buffer.committed", item_id="item_u")


def heard(at: float, text: str) -> tuple[float, Event]:
    return event(at, "conversation.item.input_audio_transcription.completed", transcript=text)


def created(at: float, name: str = NEW) -> tuple[float, Event]:
    return event(at, "response.created", response={"id": name, "status": "in_progress"})


def done(at: float, name: str = NEW, status: str = "completed", **more: Any) -> tuple[float, Event]:
    return event(at, "response.done", response={"id": name, "status": status, **more})


def sound(
    start: float,
    end: float,
    *,
    reply: str | None = NEW,
    late: float = 0.0,
    played_until: float = 1e9,
    level: int = 3000,
) -> list[Piece]:
    """Pieces of 20 ms, received from ``start`` on and played ``late`` seconds after that."""
    pieces = []
    for index in range(round((end - start) / 0.02)):
        received = start + index * 0.02
        played = received + late
        pieces.append(Piece(received, played if played < played_until else None, np.full(480, level, np.int16), reply))
    return pieces


def answered(at: float = 12.4, first: float = 12.7) -> Record:
    return Record(
        events=[committed(at), heard(at, "why is the sky blue"), created(at), done(first + 1.0)],
        pieces=[*sound(first - 0.1, first, level=20), *sound(first, first + 1)],
        chunks={NEW: [(first - 0.1, 0.5), (first + 0.7, 0.5)]},
    )


def test_a_good_turn() -> None:
    record = answered()
    metadata = {"endpointing_ms": "400", "talker_first_code_ms": "120", "mood": "good"}
    record.events[-1] = done(13.7, metadata=metadata)
    verdict = judge(trace(Expect.ONE_TURN, record, words="Why, um, is the sky blue?"))
    assert verdict.faults == []
    assert verdict.error is None
    assert verdict.figures == pytest.approx(
        {"voice_to_voice_s": 0.7, "voice_to_ear_s": 0.7, "turn_decided_s": 0.4, "decided_to_voice_s": 0.3}
    )
    assert verdict.stages == {"endpointing": 0.4, "talker_first_code": 0.12}
    assert verdict.words_found == 1.0
    assert verdict.continuity is not None
    assert verdict.continuity.worst_s == pytest.approx(0.3)


def test_the_ear_hears_later_than_the_network() -> None:
    record = Record(events=[committed(12.4), created(12.4), done(13)], pieces=sound(12.6, 13, reply=None, late=0.08))
    verdict = judge(trace(Expect.ONE_TURN, record, transport="webrtc"))
    assert verdict.figures["voice_to_voice_s"] == pytest.approx(0.6)
    assert verdict.figures["voice_to_ear_s"] == pytest.approx(0.68)


def test_a_cut_off_has_no_latency() -> None:
    record = Record(
        events=[committed(11.2), created(11.2, "resp_1"), done(11.6, "resp_1", "cancelled"),
                committed(12.4), created(12.4), done(13)],
        pieces=[*sound(11.4, 11.6, reply="resp_1"), *sound(12.7, 13)],
    )  # fmt: skip
    verdict = judge(trace(Expect.ONE_TURN, record))
    assert verdict.faults == [Fault.CUT_OFF]
    assert verdict.figures == {}


def test_what_was_committed_before_it_began_is_no_cut_off() -> None:
    record = answered()
    record.events.insert(0, committed(9.0))
    assert judge(trace(Expect.ONE_TURN, record)).faults == []


def test_missed_and_doubled_turns() -> None:
    assert judge(trace(Expect.ONE_TURN, Record())).faults == [Fault.MISSED_TURN]
    twice = answered()
    twice.events += [committed(15.0), created(15.0, "resp_2")]
    assert judge(trace(Expect.ONE_TURN, twice)).faults == [Fault.FALSE_TURN]


def test_an_answer_that_is_stopped_although_nobody_speaks() -> None:
    record = answered()
    record.events[-1] = done(12.9, NEW, "cancelled")
    verdict = judge(trace(Expect.ONE_TURN, record))
    assert verdict.faults == [Fault.FALSE_INTERRUPT]
    assert verdict.figures == {}
    record.events += [created(14.0, "resp_2"), done(15.0, "resp_2")]
    assert judge(trace(Expect.ONE_TURN, record)).faults == [Fault.FALSE_INTERRUPT]


def test_turns_that_fail_are_told() -> None:
    details = {"error": {"message": "The talker stage died."}}
    record = Record(events=[committed(12.4), created(12.4), done(12.6, NEW, "failed", status_details=details)])
    assert judge(trace(Expect.ONE_TURN, record)).error == "the reply failed: The talker stage died."
    silent = Record(events=[committed(12.4), created(12.4), done(13)], pieces=sound(12.6, 13, level=0))
    assert judge(trace(Expect.ONE_TURN, silent)).error == "the answer's sound was not received"


def test_noise() -> None:
    assert judge(trace(Expect.NO_TURN, Record())).faults == []
    cleared = Record(
        events=[event(10.1, "input_audio_buffer.speech_started"), event(12.5, "input_audio_buffer.cleared")]
    )
    verdict = judge(trace(Expect.NO_TURN, cleared))
    assert verdict.faults == []
    assert verdict.starts == 1
    assert judge(trace(Expect.NO_TURN, Record(events=[created(12.5)]))).faults == [Fault.FALSE_TURN]


def under_way(*events: tuple[float, Event], until: float = 20.0, **pieces: Any) -> Record:
    """A reply that sounds from 8 on."""
    begun = [created(7.5, OLD), event(8.0, "output_audio_buffer.started", response_id=OLD)]
    return Record(events=[*begun, *events], pieces=sound(8.0, until, reply=OLD, **pieces))


def test_a_reply_that_goes_on() -> None:
    record = under_way(done(9.0, OLD))
    assert judge(trace(Expect.NO_INTERRUPTION, record)).faults == []
    stopped = under_way(done(10.4, OLD, "cancelled"), played_until=10.4)
    stopped.stops.append((10.4, OLD))
    assert judge(trace(Expect.NO_INTERRUPTION, stopped)).faults == [Fault.FALSE_INTERRUPT]
    followed = under_way(done(9.0, OLD), created(20.5))
    assert judge(trace(Expect.NO_INTERRUPTION, followed)).faults == [Fault.FALSE_TURN]


def test_a_player_that_was_stopped_counts_although_the_reply_was_complete() -> None:
    record = under_way(done(9.0, OLD), played_until=10.3)
    record.stops.append((10.3, OLD))
    assert judge(trace(Expect.NO_INTERRUPTION, record)).faults == [Fault.FALSE_INTERRUPT]


def gone_on_with(*, skip: int = 0, missing: int = 0, after: tuple[Any, ...] = ()) -> Record:
    """A reply of 4 s that was heard for 2.3 s, and was sent for 3 s; the rest begins 0.6 s after it was stopped.
    ``skip`` of its samples are left out, ``missing`` are not heard at the end."""
    player = Player()
    whole = np.arange(96_000, dtype=np.int16) + 3000
    player.push(8.0, Place(OLD, "item_1", 0), whole[:72_000])
    stopped = player.stop(10.3)
    assert stopped is not None
    player.push(10.9, Place(NEW, "item_2", 0), whole[stopped.played_ms * 24 + skip : 96_000 - missing])
    usage = {"output_token_details": {"audio_tokens": 100}}
    events = [
        created(7.5, OLD), event(10.3, "input_audio_buffer.speech_started"), done(10.3, OLD, "cancelled"), *after,
        created(10.9), done(11.0, usage=usage),
    ]  # fmt: skip
    record = Record(events, player.pieces, [(10.3, OLD)], player.chunks, player.sounds)
    record.stopped_ms[OLD] = stopped.played_ms
    return record


def test_a_rest_that_is_heard_is_no_interruption() -> None:
    verdict = judge(trace(Expect.NO_INTERRUPTION, gone_on_with(), last_s=10.4))
    assert verdict.faults == []
    assert verdict.dip_s == pytest.approx(0.6, abs=0.001), "the gap that the listener hears"


def test_an_answer_that_a_noise_stopped_and_that_went_on() -> None:
    record = gone_on_with()
    record.events.insert(0, committed(7.4))
    assert judge(trace(Expect.ONE_TURN, record, first_s=6.0, last_s=7.0)).faults == []
    record = gone_on_with(missing=9600)
    record.events.insert(0, committed(7.4))
    assert judge(trace(Expect.ONE_TURN, record, first_s=6.0, last_s=7.0)).faults == [Fault.FALSE_INTERRUPT]


@pytest.mark.parametrize(
    "wrong",
    [{"skip": 4800}, {"missing": 9600}, {"after": (committed(10.8),)}],
    ids=["not from where it stopped", "not to its end", "an answer to what was heard"],
)
def test_a_rest_that_is_none(wrong: dict[str, Any]) -> None:
    verdict = judge(trace(Expect.NO_INTERRUPTION, gone_on_with(**wrong), last_s=10.4))
    assert verdict.faults == [Fault.FALSE_INTERRUPT] and verdict.dip_s is None


def test_a_rest_belongs_to_the_reply_that_is_interrupted() -> None:
    record = gone_on_with()
    player_stop = 11.2
    for piece in record.pieces:
        if piece.played is not None and piece.played >= player_stop:
            piece.played = None
    record.stops.append((player_stop, NEW))
    record.stopped_ms[NEW] = 300
    record.events += [committed(12.5), created(12.6, "resp_answer")]
    record.pieces += sound(12.9, 13.4, reply="resp_answer")
    verdict = judge(trace(Expect.INTERRUPTION, record))
    assert verdict.faults == []
    assert verdict.figures["barge_in_stop_s"] == pytest.approx(1.18, abs=0.03)
    assert verdict.figures["voice_to_voice_s"] == pytest.approx(0.9, abs=0.03)
    unstopped = judge(trace(Expect.INTERRUPTION, gone_on_with()))
    assert unstopped.faults == [Fault.MISSED_INTERRUPT]


def test_a_reply_that_was_over_too_soon_does_not_count() -> None:
    verdict = judge(trace(Expect.NO_INTERRUPTION, under_way(done(9.0, OLD), until=10.2)))
    assert verdict.void == "the reply was over too soon"
    assert verdict.faults == []
    assert judge(trace(Expect.INTERRUPTION, under_way(done(9.0, OLD), until=11.0))).void is not None
    ended = under_way(done(9.0, OLD), event(10.3, "output_audio_buffer.stopped", response_id=OLD), until=10.3)
    assert judge(trace(Expect.NO_INTERRUPTION, ended, transport="webrtc")).void is not None


@pytest.mark.parametrize(("gap", "held", "dip"), [(0.0, 0.0, 0.0), (0.6, 0.6, 0.6), (0.6, 0.0, 0.0), (0.0, 0.6, 0.0)])
def test_a_dip_is_silence_by_which_a_reply_lasts_longer(gap: float, held: float, dip: float) -> None:
    """A pause of the speaker's (``gap``) makes it no longer, an underrun elsewhere (``held`` alone) is no dip."""
    stopped = 18.0 + held
    usage = {"output_token_details": {"audio_tokens": 250}}
    record = under_way(
        done(9.0, OLD, usage=usage), event(stopped, "output_audio_buffer.stopped", response_id=OLD), until=stopped
    )
    if gap:
        record.pieces[:] = [piece for piece in record.pieces if not 10.2 < piece.received < 10.2 + gap - 0.03]
    verdict = judge(trace(Expect.NO_INTERRUPTION, record, transport="webrtc"))
    assert verdict.faults == []
    assert verdict.dip_s == pytest.approx(dip, abs=0.05)


def interrupted(stop: float, *, then: float = 12.9) -> Record:
    record = under_way(
        event(stop, "input_audio_buffer.speech_started"), done(stop, OLD, "cancelled"), committed(12.5), created(12.5),
        until=stop + 1, played_until=stop,
    )  # fmt: skip
    record.stops.append((stop, OLD))
    record.pieces += sound(then, then + 0.5)
    return record


def test_an_interruption_over_websocket() -> None:
    verdict = judge(trace(Expect.INTERRUPTION, interrupted(10.25)))
    assert verdict.faults == []
    assert verdict.figures["stop_decided_s"] == pytest.approx(0.25)
    assert verdict.figures["barge_in_stop_s"] == pytest.approx(0.24, abs=0.02), "the last piece that was played"
    assert verdict.figures["voice_to_voice_s"] == pytest.approx(0.9)


def test_an_interruption_over_webrtc() -> None:
    cleared = event(10.3, "output_audio_buffer.cleared", response_id=OLD)
    record = Record(
        events=[created(7.5, OLD), cleared, done(10.3, OLD, "cancelled"), committed(12.5), created(12.5),
                event(12.9, "output_audio_buffer.started", response_id=NEW)],
        pieces=[*sound(8.0, 10.2, reply=None), *sound(10.2, 12.88, reply=None, level=0),
                *sound(12.88, 13.4, reply=None)],
        stops=[(10.3, OLD)],
    )  # fmt: skip
    verdict = judge(trace(Expect.INTERRUPTION, record, transport="webrtc"))
    assert verdict.faults == []
    assert verdict.figures["barge_in_stop_s"] == pytest.approx(0.18, abs=0.001)
    assert verdict.figures["voice_to_voice_s"] == pytest.approx(0.88, abs=0.001)


def test_missed_interrupts() -> None:
    assert judge(trace(Expect.INTERRUPTION, under_way())).faults == [Fault.MISSED_INTERRUPT]
    assert judge(trace(Expect.INTERRUPTION, interrupted(11.6))).faults == [Fault.MISSED_INTERRUPT]
    early = judge(trace(Expect.INTERRUPTION, interrupted(9.5)))
    assert early.faults == [Fault.FALSE_INTERRUPT], "nobody had spoken"


def test_an_interruption_may_be_cut_off_or_go_unanswered() -> None:
    record = interrupted(10.25)
    record.events = [(at if e["type"] != "input_audio_buffer.committed" else 11.0, e) for at, e in record.events]
    assert judge(trace(Expect.INTERRUPTION, record)).faults == [Fault.CUT_OFF]
    record = interrupted(10.25)
    record.events = [(at, e) for at, e in record.events if e.get("response", {}).get("id") != NEW]
    assert judge(trace(Expect.INTERRUPTION, record)).faults == [Fault.MISSED_TURN]


@pytest.mark.parametrize(
    ("expected", "said", "share"),
    [
        ("What is two plus two?", "what is two plus two", 1.0),
        ("Um, how do I boil an egg?", "How do I boil an egg?", 1.0),
        ("one two three four", "one four three", 0.5),
        ("Don't stop.", "Dont stop", 1.0),
        ("words", "", 0.0),
        ("Um.", "", 1.0),
    ],
)
def test_words_found(expected: str, said: str, share: float) -> None:
    assert words_found(expected, said) == share


def verdict(name: str, expect: Expect, *faults: Fault, **fields: Any) -> Verdict:
    return Verdict(name, "kind", expect, "heart", "ws", faults=list(faults), **fields)


def test_shares_are_of_the_turns_at_which_a_fault_can_happen() -> None:
    verdicts = [
        verdict("a", Expect.ONE_TURN, Fault.CUT_OFF),
        verdict("b", Expect.ONE_TURN, figures={"voice_to_voice_s": 0.5}),
        verdict("c", Expect.INTERRUPTION, figures={"voice_to_voice_s": 0.7}, words_found=0.5),
        verdict("d", Expect.NO_INTERRUPTION, Fault.FALSE_INTERRUPT),
        verdict("e", Expect.NO_INTERRUPTION, dip_s=0.5),
        verdict("f", Expect.NO_TURN, violations=["x: wrong"], server_errors=["no"]),
        verdict("g", Expect.NO_INTERRUPTION, void="over"),
        verdict("h", Expect.ONE_TURN, error="lost"),
    ]
    part = transport_report(verdicts, events=10, checked=True)
    assert part["behaviour"]["cut-off"] == {"count": 1, "of": 3, "share": pytest.approx(1 / 3)}
    assert part["behaviour"]["false interrupt"] == {"count": 1, "of": 2, "share": 0.5}
    assert part["behaviour"]["missed interrupt"] == {"count": 0, "of": 1, "share": 0.0}
    assert part["behaviour"]["false turn"]["of"] == 3
    assert part["figures"]["voice_to_voice_s"]["count"] == 2
    assert part["dips"] == {"count": 1, "of": 1, "p50": 0.5, "most": 0.5}
    assert part["conformance"] == {"checked": True, "events": 10, "violations": {"x: wrong": 1}}
    assert part["server_errors"] == {"no": 1}
    assert part["kinds"]["kind"]["turns"] == 8
    assert (part["kinds"]["kind"]["void"], part["kinds"]["kind"]["failed"], part["kinds"]["kind"]["good"]) == (1, 1, 4)
    report = {
        "model": "double",
        "settings": {
            "turns": 8, "set": "tuning", "simulated": True,
            "script": 130, "detection": "semantic_vad", "eagerness": "auto", "voices": ["heart"],
            "missing": ["piper-tts (pip)"],
        },
        "machine": {"cpu": "a", "cores": 2, "load_before": 0.1},
        "transports": {"ws": part},
        "turns": [verdict.to_dict() for verdict in verdicts],
    }  # fmt: skip
    text = as_text(report)
    for line in ("1 of 3 (33.3%)", "10 events, 1 violations", "1 x x: wrong", "more voices with: piper-tts", "lost"):
        assert line in text
