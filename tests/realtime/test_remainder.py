"""Where the client plays: a reply that was stopped for nothing is gone on with, from the sample where it stopped."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.realtime.bench import WORD
from tests.realtime.talk import Talk, all_was_heard
from voicechat.contract.errors import StageFailed
from voicechat.contract.events import AudioDelta, TextDelta
from voicechat.realtime.remainder import MAX_SAMPLES


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("text", ["Mm-hm.", "", "Yeah, okay."])
def test_a_listeners_word_does_not_end_the_reply(finished, text):
    talk = Talk()
    talk.ask(finish=finished)
    talk.murmur(900, text)
    assert len(talk.all("input_audio_buffer.committed")) == 1 and len(talk.started) == 1 and not talk.cancelled
    kinds = talk.kinds()
    since = len(kinds) - kinds[::-1].index("input_audio_buffer.speech_stopped") - 1
    begun = [kind for kind in kinds[since:] if not kind.endswith(".delta")]
    assert begun[:7] == [
        "input_audio_buffer.speech_stopped", "input_audio_buffer.cleared", "response.created", "rate_limits.updated",
        "response.output_item.added", "conversation.item.created", "conversation.item.added",
    ]  # fmt: skip
    if not finished:
        talk.speak(5)
        talk.finish()
    first, second = (event["response"] for event in talk.all("response.done"))
    assert first["status"] == ("completed" if finished else "cancelled") and second["status"] == "completed"
    assert sum((response["usage"] or {}).get("total_tokens", 0) for response in (first, second)) == 14, "counted once"
    all_was_heard(talk)


def test_what_was_made_meanwhile_is_not_lost():
    talk = Talk()
    talk.ask(words=4, ahead=3)
    talk.hear(0.3, True)
    talk.speak(3, ahead=3)
    talk.stop(700)
    talk.speak(3)
    talk.finish()
    talk.hear(0.24, False)
    talk.understand("Uh-huh.")
    talk.hear(0.04, False)
    assert talk.done()["status"] == "completed" and not talk.cancelled
    all_was_heard(talk)


def test_again_and_again():
    talk = Talk()
    talk.ask()
    talk.murmur(900)
    talk.murmur(500)
    talk.speak(3)
    talk.finish()
    talk.murmur(200)
    assert len(talk.all("response.done")) == 4
    all_was_heard(talk)


@settings(max_examples=60, deadline=None)
@given(
    before=st.integers(4, 12), ahead=st.integers(0, 8), meanwhile=st.integers(0, 4), after=st.integers(0, 4),
    ended=st.sampled_from(["before", "meanwhile", "after"]), share=st.floats(0.01, 1),
    text=st.sampled_from(["", "Yes."]),
)  # fmt: skip
def test_nothing_is_lost_and_nothing_heard_twice(before, ahead, meanwhile, after, ended, share, text):
    talk = Talk()
    talk.ask(before, finish=False, ahead=ahead)
    made = talk.samples

    def end_at(when: str) -> None:
        if ended == when:
            talk.text_to(talk.samples // WORD, max(talk.running))
            talk.finish()

    end_at("before")
    talk.hear(0.3, True)
    talk.stop(max(1, int(share * made / 24)))
    if ended != "before":
        talk.speak(meanwhile, ahead)
    end_at("meanwhile")
    left = talk.samples - max(1, int(share * made / 24)) * 24
    talk.hear(0.24, False)
    talk.understand(text)
    talk.hear(0.26, False)
    if ended == "after":
        talk.speak(after, ahead)
        end_at("after")
        all_was_heard(talk)
    elif left >= 9600:
        all_was_heard(talk)
    talk.check()


def test_an_interruption_ends_the_reply_in_the_cascade_too():
    talk = Talk()
    talk.ask()
    talk.hear(0.3, True)
    talk.stop(900)
    assert not talk.cancelled, "it may be nothing"
    talk.hear(0.24, False)
    talk.understand("Stop.")
    assert talk.cancelled == [1]
    talk.hear(0.4, False)
    assert len(talk.all("response.created")) == 2 and talk.asked()[-1] == ("user", "Stop.")
    assert [text for role, text in talk.asked() if role == "assistant"] == [" w0 w1 w2"]
    talk.check()


def test_long_speech_is_an_interruption_whatever_the_words():
    talk = Talk()
    talk.ask()
    talk.hear(0.3, True)
    talk.stop(900)
    talk.hear(0.14, True)
    assert talk.jobs, "asked already, in the middle of it"
    talk.understand("Yeah yeah")
    assert not talk.cancelled
    talk.hear(1.2, True)
    assert not talk.cancelled, "nothing else was understood of it"
    talk.hear(1.0, True)
    assert talk.cancelled == [1]
    talk.check()


def test_words_in_the_middle_of_it_decide_too():
    talk = Talk()
    talk.ask()
    talk.hear(0.3, True)
    talk.stop(900)
    talk.hear(0.14, True)
    talk.understand("Okay, but how")
    assert talk.cancelled == [1]
    talk.check()


def test_a_client_that_does_not_stop_is_left_alone():
    talk = Talk()
    talk.ask()
    talk.murmur(None, after=0.22)
    assert talk.cancelled == [1] and len(talk.all("response.created")) == 1
    talk.check()
    talk = Talk()
    talk.ask()
    talk.hear(0.5, True)
    assert talk.cancelled == [1], "it would have told by now"
    talk.check()


def test_a_client_that_has_played_all_has_nothing_to_stop():
    """The cascade is slower than the player."""
    talk = Talk()
    talk.ask(words=3, ahead=1)
    talk.pass_time(2.0)
    talk.murmur(None)
    talk.speak(2)
    talk.finish()
    assert talk.done()["status"] == "completed" and len(talk.started) == 1
    all_was_heard(talk)


def test_a_client_that_tells_late_is_too_late():
    talk = Talk()
    talk.ask()
    talk.murmur(None)
    talk.hear(0.6, False)
    talk.stop(900)
    assert talk.asked()[-1] == ("user", "Mm-hm."), "it is a turn like any other"
    talk.check()


def test_a_client_that_cancels_means_it():
    talk = Talk()
    talk.ask()
    talk.hear(0.3, True)
    talk.tell("response.cancel")
    assert talk.error()["code"] == "response_cancel_not_active" and talk.cancelled == [1]
    talk.stop(900)
    talk.hear(0.24, False)
    talk.understand("Mm-hm.")
    talk.hear(0.5, False)
    assert talk.asked()[-1] == ("user", "Mm-hm.")
    talk.check()


def test_a_reply_that_the_client_had_cancelled_before():
    talk = Talk()
    talk.ask()
    talk.tell("response.cancel")
    talk.murmur(900)
    talk.hear(0.5, False)
    assert talk.asked()[-1] == ("user", "Mm-hm.")
    talk.check()


def test_without_interruptions_nothing_is_stopped():
    talk = Talk()
    talk.tell("session.update", session={"audio": {"input": {"turn_detection": {"interrupt_response": False}}}})
    talk.ask()
    talk.hear(0.3, True)
    assert talk.session.replies.live is not None and not talk.session.replies.suspended
    talk.check()


def test_who_goes_on_to_speak_interrupts():
    talk = Talk()
    talk.ask()
    talk.hear(0.3, True)
    talk.stop(900)
    talk.hear(0.24, False)
    talk.understand("Okay.")
    talk.hear(0.06, False)
    assert not talk.cancelled and len(talk.all("response.created")) == 1, "more may follow"
    talk.hear(0.3, True)
    talk.understand("Okay, but why")
    assert talk.cancelled == [1]
    talk.hear(0.6, False)
    talk.understand("Okay, but why?")
    assert talk.asked()[-1] == ("user", "Okay, but why?")
    talk.check()


def test_a_click_is_too_short_for_the_ears():
    talk = Talk()
    talk.tell("session.update", session={"audio": {"input": {"turn_detection": {"type": "semantic_vad"}}}})
    talk.turn(None)
    talk.understand("Tell me a story.")
    talk.hear(1.0, False)
    talk.speak(10)
    talk.pass_time(0.3)
    detector = talk.session.input._segmenter
    assert detector is not None
    detector.settings = type(detector.settings)(strict_onset_ms=100, strict_window_ms=160, silence_ms=4000)
    talk.hear(0.1, True)
    talk.stop(900)
    talk.hear(0.26, False)
    assert len(talk.all("response.created")) == 2 and talk.kinds().count("input_audio_buffer.cleared") == 1
    talk.speak(1)
    talk.finish()
    all_was_heard(talk)


def test_the_end_of_a_reply_is_not_worth_it():
    """What is said at the very end of a reply is an answer to it."""
    talk = Talk()
    talk.ask(finish=True)
    talk.murmur(2800, "Yes.")
    talk.hear(0.4, False)
    assert talk.asked()[-1] == ("user", "Yes.")
    talk.check()


def test_replies_that_are_not_of_the_conversation():
    talk = Talk()
    talk.turn()
    talk.finish()
    talk.tell("response.create", response={"conversation": "none"})
    talk.speak(10)
    talk.hear(0.3, True)
    assert len(talk.cancelled) == 1
    talk.check()


def test_a_reply_that_has_called_a_function():
    talk = Talk()
    tool = {"type": "function", "name": "look", "parameters": {}}
    talk.tell("session.update", session={"tools": [tool]})
    talk.turn()
    talk.take(talk.session.on_cascade(1, TextDelta("Let me see what there is to be found in that book")))
    talk.take(talk.session.on_cascade(1, AudioDelta(np.ones(WORD, np.int16))))
    talk.take(talk.session.on_cascade(1, TextDelta('<tool_call>{"name": "look", "arguments": {}}</tool_call>')))
    talk.hear(0.3, True)
    assert talk.cancelled == [1] and talk.all("response.function_call_arguments.done")
    talk.check()


def test_an_item_that_is_deleted_is_not_gone_on_with():
    talk = Talk()
    talk.ask()
    talk.hear(0.3, True)
    talk.stop(900)
    talk.tell("conversation.item.delete", item_id=talk.spoken_items()[0])
    talk.hear(0.24, False)
    talk.understand("")
    talk.hear(0.04, False)
    assert talk.cancelled == [1] and len(talk.all("response.created")) == 1
    talk.check()


def test_another_response_takes_its_place():
    talk = Talk()
    talk.ask()
    talk.hear(0.3, True)
    talk.stop(900)
    talk.tell("response.create")
    assert talk.cancelled == [1] and len(talk.started) == 2
    talk.hear(0.24, False)
    talk.understand("")
    talk.hear(0.04, False)
    assert len(talk.all("response.created")) == 2
    talk.check()


def test_a_failure_meanwhile_is_told_in_its_place():
    talk = Talk()
    talk.ask()
    talk.hear(0.3, True)
    talk.stop(900)
    talk.fail(StageFailed("talker", "died"))
    talk.hear(0.24, False)
    talk.understand("")
    talk.hear(0.04, False)
    assert [event["response"]["status"] for event in talk.all("response.done")] == ["cancelled", "failed"]
    talk.check()


def test_what_is_kept_is_bounded():
    talk = Talk()
    talk.ask()
    talk.hear(0.3, True)
    talk.stop(900)
    talk.take(talk.session.on_cascade(1, AudioDelta(np.ones(MAX_SAMPLES, np.int16))))
    assert not talk.cancelled
    talk.take(talk.session.on_cascade(1, AudioDelta(np.ones(1, np.int16))))
    assert talk.cancelled == [1]
    talk.check()


@pytest.mark.parametrize("how", ["close", "expire"])
def test_the_session_may_end_meanwhile(how):
    talk = Talk(max_seconds=60)
    talk.ask()
    talk.hear(0.3, True)
    talk.stop(900)
    if how == "close":
        talk.take(talk.session.close())
    else:
        talk.pass_time(100)
        assert talk.closed is not None
    assert talk.cancelled == [1] and not talk.running
    talk.check()


def test_the_voice_and_tempo_stay():
    talk = Talk()
    talk.tell("session.update", session={"audio": {"output": {"speed": 1.5}}})
    talk.ask()
    talk.murmur(600)
    talk.speak(1)
    talk.finish()
    second = talk.session.conversation.get(talk.spoken_items()[1])
    assert {started.request.speed for started in talk.started} == {1.5}
    assert second.parts[0].samples == talk.samples - 600 * 24
    talk.check()
