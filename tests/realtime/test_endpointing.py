"""When a pause is the end of the turn, by the words and by the sound."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.realtime.bench import Bench
from voicechat.realtime.policy import EndpointingPolicy, TurnPolicy

POLICY = EndpointingPolicy()
EAGERNESS = ("low", "medium", "auto", "high")


def test_limits_are_those_of_the_protocol():
    assert [POLICY.patience(name).limit_ms for name in EAGERNESS] == [8000, 4000, 4000, 2000]


WHOLE = "What time is it in Tokyo right now?"


def with_risk(risk: float) -> TurnPolicy:
    """A policy that takes so much risk of cutting off."""
    auto = dataclasses.replace(EndpointingPolicy().auto, risk=risk)
    return TurnPolicy(endpointing=EndpointingPolicy(auto=auto))


def listening(eagerness: str = "auto", **limits: Any) -> Bench:
    bench = Bench(**limits)
    detection = {"type": "semantic_vad", "eagerness": eagerness}
    bench.tell("session.update", session={"audio": {"input": {"turn_detection": detection}}})
    return bench


def until_committed(bench: Bench) -> float:
    seconds = 0.0
    while "input_audio_buffer.committed" not in bench.kinds():
        bench.hear(0.02, False)
        seconds += 0.02
    return seconds


def silence_until_committed(bench: Bench, text: str | None, sound: float | None = None) -> float:
    """Seconds of silence after which a turn ends that is understood after 0.22 s, and judged as soon as can be."""
    bench.hear(0.6, True)
    bench.hear(0.22, False)
    if text is not None:
        bench.understand(text)
        bench.say("Hi")
    seconds = 0.22
    while sound is not None and not bench.judgements:
        bench.hear(0.02, False)
        seconds += 0.02
    if sound is not None:
        bench.judge(sound)
    return round(seconds + until_committed(bench), 2)


@pytest.mark.parametrize("eagerness", EAGERNESS)
def test_who_seems_more_complete_waits_no_longer(eagerness):
    patience = POLICY.patience(eagerness)

    def seconds(text: str | None, probability: float | None) -> float:
        return silence_until_committed(listening(eagerness, judged=True), text, probability)

    whole, part, none = "What time is it in Tokyo now?", "What time is it in", None
    assert seconds(whole, 0.97) <= seconds(whole, 0.02) <= patience.complete_ms / 1000 + 0.02
    assert seconds(part, 0.97) <= seconds(part, 0.02) <= patience.limit_ms / 1000
    for probability in (0.97, 0.02):
        assert patience.least_ms / 1000 <= seconds(whole, probability) < seconds(part, probability)
    assert seconds(none, 0.97) >= patience.awaiting_ms / 1000, "the words are waited for"


@pytest.mark.parametrize("eagerness", EAGERNESS)
def test_of_what_nothing_is_known_the_eagerness_decides(eagerness):
    unknown = POLICY.patience(eagerness).unknown_ms / 1000
    assert silence_until_committed(listening(eagerness, judged=True), None) == unknown, "the ASR and the judge are late"
    assert silence_until_committed(listening(eagerness), None) == unknown


def test_patience_follows_the_eagerness():
    for text in ("What time is it in Tokyo now?", "What time is it in"):
        low, auto, high = (
            silence_until_committed(listening(name, judged=True), text, 0.5) for name in ("low", "auto", "high")
        )
        assert low > auto > high


def test_server_vad_does_not_care():
    assert silence_until_committed(Bench(), "What time is it?") == 0.5
    bench = Bench(judged=True)
    assert silence_until_committed(bench, "What time is it?") == 0.5 and not bench.judgements


def test_a_long_silence_is_judged_again():
    bench = listening(judged=True, policy=with_risk(1e-6))
    bench.hear(0.6, True)
    bench.hear(0.3, False)
    bench.understand("I would like")
    bench.judge(0.1)
    for silence in POLICY.again_ms[:2]:
        bench.hear(silence / 1000 - 0.04 - bench.session.input.silence_ms / 1000, False)
        assert not bench.judgements
        bench.hear(0.06, False)
        (again,) = bench.judgements.values()
        assert len(again.sound.samples) == (600 + silence) * 16
        bench.judge(0.2)
    assert "input_audio_buffer.committed" not in bench.kinds()
    bench.hear(2.5, False)
    assert "input_audio_buffer.committed" in bench.kinds() and not bench.judgements


def test_what_seems_complete_after_a_second_ends_sooner():
    bench = listening(judged=True)
    bench.hear(0.6, True)
    bench.hear(0.3, False)
    bench.understand("I would like")
    bench.judge(0.4)
    bench.hear(0.75, False)
    bench.judge(1.0)
    assert until_committed(bench) < 1.2


def test_going_on_makes_the_judgement_void():
    bench = listening()
    bench.hear(0.6, True)
    bench.hear(0.3, False)
    bench.understand("Tell me more.")
    bench.hear(0.4, True)
    bench.hear(0.5, False)
    assert "input_audio_buffer.committed" not in bench.kinds()
    bench.hear(0.9, False)
    assert "input_audio_buffer.committed" in bench.kinds()


def test_the_sound_is_judged_before_the_pause_with_silence_made_up():
    bench = listening(judged=True)
    bench.hear(0.6, True)
    bench.hear(0.08, False)
    assert not bench.judgements
    bench.hear(0.02, False)
    (first,) = bench.judgements.values()
    assert len(first.sound.samples) == (600 + POLICY.made_up_ms) * 16
    assert not first.sound.samples[-(POLICY.made_up_ms - 100) * 16 :].any()
    bench.judge(0.99)
    bench.hear(0.16, False)
    bench.understand(WHOLE)
    bench.say("Hi")
    bench.hear(0.24, False)
    assert "input_audio_buffer.committed" in bench.kinds(), "what was known before the pause counts in it"


def test_a_silence_that_becomes_no_pause_is_judged_for_nothing():
    bench = listening(judged=True, policy=with_risk(0.05))
    bench.hear(0.6, True)
    bench.hear(0.12, False)
    (first,) = bench.judgements
    bench.hear(0.02, True)
    assert not bench.judgements, "called off"
    bench.take(bench.session.on_judged(first, 0.99))
    bench.hear(0.12, False)
    bench.judge(0.01)
    bench.hear(0.14, False)
    bench.understand(WHOLE)
    bench.say("Hi")
    bench.hear(0.2, False)
    assert "input_audio_buffer.committed" not in bench.kinds(), "only the new silence counts"


def test_a_judgement_that_comes_late_does_nothing():
    bench = listening(judged=True)
    bench.hear(0.6, True)
    bench.hear(0.3, False)
    (first,) = bench.judgements
    bench.hear(0.2, True)
    assert not bench.judgements, "called off"
    bench.take(bench.session.on_judged(first, 1.0))
    bench.hear(0.3, False)
    (second,) = bench.judgements
    bench.take(bench.session.on_judged(first, 1.0))
    bench.understand(WHOLE)
    bench.say("Hi")
    bench.hear(0.2, False)
    assert "input_audio_buffer.committed" not in bench.kinds(), "the sound was not judged yet"
    bench.take(bench.session.on_judged(second, 1.0))
    bench.hear(0.02, False)
    assert "input_audio_buffer.committed" in bench.kinds()
    bench.take(bench.session.on_judged(second, 0.0))
    bench.check()


def test_without_a_judge_the_words_decide():
    bench = listening(judged=True)
    bench.hear(0.6, True)
    bench.hear(0.26, False)
    bench.understand(WHOLE)
    bench.say("Hi")
    bench.judge(None)
    patience = POLICY.patience("auto")
    assert patience.least_ms <= round(1000 * (0.26 + until_committed(bench))) <= patience.complete_ms
    bench.hear(0.6, True)
    bench.hear(0.3, False)
    assert not bench.judgements, "it is not asked again"


def test_the_ears_begin_at_a_short_silence_and_their_text_is_used():
    bench = listening(judged=True)
    bench.hear(0.6, True)
    bench.hear(0.1, False)
    (probe,) = bench.jobs
    bench.hear(0.12, False)
    assert list(bench.jobs) == [probe], "it has become the guess"
    bench.understand(WHOLE)
    assert len(bench.started) == 1, "begun ahead"
    bench.hear(0.04, False)
    bench.judge(0.99)
    bench.say("Hi")
    bench.hear(0.26, False)
    assert not bench.jobs and bench.asked()[-1] == ("user", WHOLE)
    assert [e["transcript"] for e in bench.all("conversation.item.input_audio_transcription.completed")] == [WHOLE]
    bench.check()


def test_it_listens_on_while_the_reply_could_not_be_heard_anyway():
    bench = listening(judged=True)
    bench.hear(0.6, True)
    bench.hear(0.26, False)
    bench.understand(WHOLE)
    bench.judge(0.99)
    bench.hear(0.3, False)
    assert "input_audio_buffer.committed" not in bench.kinds(), "complete, but nothing of the reply is there"
    bench.say("It's ")
    bench.hear(0.02, False)
    assert "input_audio_buffer.committed" in bench.kinds()
    bench.hear(0.4, True)
    bench.hear(0.26, False)
    bench.understand(WHOLE)
    bench.judge(0.99)
    assert 0.26 + until_committed(bench) < 0.9, "but not for long"
    bench.check()
