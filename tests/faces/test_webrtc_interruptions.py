"""People speak, cough and murmur while the server plays: the session alone, on a clock that the test moves."""

import numpy as np
import pytest

from tests.cascade_double import DoubleCascade
from tests.speech import silence, voice


async def test_barge_in_stops_the_reply_at_once(make_bench):
    bench = make_bench(DoubleCascade(transcripts=["tell me a story", "stop"], answer="word " * 40))
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.6)]))
    await bench.until("output_audio_buffer.started")
    await bench.run(silence(1.0))
    await bench.run(voice(0.4))
    assert not np.any(bench.sound[-5:]), "silent at once"
    await bench.run(np.concatenate([voice(0.6), silence(0.4)]))
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


async def test_a_listeners_word_does_not_stop_the_reply(make_bench):
    bench = make_bench(DoubleCascade(transcripts=["tell me a story", "Mm-hm."], answer="word " * 12))
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.6)]))
    await bench.until("output_audio_buffer.started")
    await bench.run(np.concatenate([silence(0.5), voice(0.45), silence(0.6)]))
    await bench.until("output_audio_buffer.stopped")
    assert len(bench.all("input_audio_buffer.speech_started")) == 2, "it was heard"
    assert len(bench.cascade.heard) <= 3 and len(bench.cascade.requests) == 1
    assert bench.all("response.done")[0]["response"]["status"] == "completed"
    sound = np.concatenate(bench.sound)
    assert np.count_nonzero(sound) == pytest.approx(12 * 0.3 * 24_000, rel=0.02), "nothing of it is lost"


async def test_a_cough_does_not_stop_the_reply(make_bench):
    bench = make_bench(DoubleCascade(answer="word " * 10))
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.6)]))
    await bench.until("output_audio_buffer.started")
    await bench.run(np.concatenate([silence(1.7), voice(0.12), silence(0.8)]))  # by then it is known: no echo
    await bench.until("output_audio_buffer.stopped")
    assert bench.all("response.done")[0]["response"]["status"] == "completed"
    assert len(bench.all("input_audio_buffer.speech_started")) == 1
    sound = np.concatenate(bench.sound)
    played = np.flatnonzero(sound)
    assert played[-1] - played[0] > 10 * 0.3 * 24_000 + 4800, "it waited for a moment"
    assert np.count_nonzero(sound) == pytest.approx(10 * 0.3 * 24_000, rel=0.02), "and lost nothing"


async def test_a_noise_before_the_reply_sounds_only_delays_it(make_bench):
    bench = make_bench(DoubleCascade(first_delay=1.0))
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.6)]))
    await bench.until("response.created")
    await bench.run(np.concatenate([voice(0.08), silence(0.7)]))
    await bench.until("output_audio_buffer.stopped")
    assert [d["response"]["status"] for d in bench.all("response.done")] == ["cancelled", "completed"]
    assert len(bench.cascade.requests) == 2
    assert bench.asked(0) == bench.asked(1)


async def test_speaking_on_before_the_reply_is_one_more_turn(make_bench):
    bench = make_bench(DoubleCascade(transcripts=["first", "second"], first_delay=0.5))
    await bench.run(np.concatenate([silence(0.5), voice(0.6), silence(0.6)]))
    await bench.until("response.created")
    await bench.run(np.concatenate([voice(0.6), silence(0.6)]))
    await bench.until("output_audio_buffer.stopped")
    assert bench.asked() == [("system", "Be brief."), ("user", "first"), ("user", "second")]
    assert len(bench.all("output_audio_buffer.started")) == 1
