"""People speak, pause, and cough into replies: the session with the real detectors, on the microphone's clock."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest

from tests.cascade_double import DoubleCascade
from tests.faces.webrtc_bench import close
from tests.speech import silence
from voicechat.assemble import AssembledPaths
from voicechat.contract.sound import EARS_RATE, FRAME_SAMPLES
from voicechat.faces.realtime_shell import detecting
from voicechat.faces.webrtc_session import VoiceSession
from voicechat.media.detectors import Detectors
from voicechat.media.playout import Playout
from voicechat.media.resample import resample
from voicechat.realtime.policy import EndpointingPolicy
from voicechat.realtime.session import SessionLimits
from voicechat.realtime.settings import SessionConfig, TurnDetection

FRAME_S = 0.02


class Call:
    """A call whose microphone and loudspeaker run frame by frame, as fast as the test."""

    def __init__(self, cascade: DoubleCascade, detectors: Detectors, kind: str) -> None:
        self.cascade = cascade
        self.playout = Playout()
        self.events: list[dict] = []
        self.sound: list[np.ndarray] = []
        self.frames = 0
        self.session = VoiceSession(
            "sess_test",
            cascade,
            SessionConfig("Be brief.", "anna", detection=TurnDetection(kind)),
            detecting(SessionLimits(server_plays=True), detectors),
            self.playout,
            lambda text: self.events.append(json.loads(text)),
            self.hang_up,
            clock=lambda: self.frames * FRAME_S,
            detectors=detectors,
        )
        self.session.on_open()

    def hang_up(self, reason: str) -> None:
        self.session.on_closed(reason)

    async def hear(self, sound: np.ndarray, step: float = 0.004) -> None:
        """The microphone's clock stands still while the ears or the detectors work, so that no machine is too slow."""
        shell = self.session._shell
        for i in range(0, len(sound) - FRAME_SAMPLES + 1, FRAME_SAMPLES):
            self.frames += 1
            self.session.on_audio(sound[i : i + FRAME_SAMPLES])
            frame = self.playout.next_frame()
            self.sound.append(frame.pcm)
            self.session.on_played(frame)
            await asyncio.sleep(step)
            while working := [*shell._judgements.values(), *shell._jobs.values()]:
                await asyncio.wait(working)

    async def until(self, kind: str, count: int = 1) -> None:
        for _ in range(3000):
            if len(self.all(kind)) >= count:
                return
            await self.hear(silence(FRAME_S), step=0.002)
        raise AssertionError(f"no {kind} in {[event['type'] for event in self.events]}")

    def detect(self, **detection: object) -> None:
        """Change fields of the turn detection."""
        session = {"type": "realtime", "audio": {"input": {"turn_detection": detection}}}
        self.session.on_message(json.dumps({"type": "session.update", "session": session}))

    def all(self, kind: str) -> list[dict]:
        return [event for event in self.events if event["type"] == kind]

    def loud(self) -> np.ndarray:
        """Which of the frames that were played hold sound."""
        return np.array([bool(np.any(frame)) for frame in self.sound])

    async def reply(self, question: np.ndarray) -> None:
        """Ask, and listen to the reply for a second."""
        await self.hear(np.concatenate([silence(0.5), question]))
        await self.until("output_audio_buffer.started")
        await self.hear(silence(1.0))


@pytest.fixture(scope="module")
def say() -> Callable[[str], np.ndarray]:
    hibari = pytest.importorskip("hibari")
    voice = hibari.Hibari()

    def say(text: str) -> np.ndarray:
        """Spoken ``text`` at 16 kHz from its first to its last voiced sample."""
        sound = resample(np.asarray(voice(text, seed=1), np.float32), hibari.SAMPLE_RATE, EARS_RATE)
        loud = np.flatnonzero(np.abs(sound) > 0.01)
        return sound[loud[0] : loud[-1] + 1]

    return say


@pytest.fixture
async def call(models: AssembledPaths) -> AsyncIterator[Callable[..., Call]]:
    detectors = Detectors.load(models.detectors)
    calls: list[Call] = []

    def make(*heard: str, answer: str = "word " * 30, kind: str = "semantic_vad") -> Call:
        cascade = DoubleCascade(transcripts=list(heard), answer=answer, ears_delay=0.01, word_delay=0.001)
        calls.append(Call(cascade, detectors, kind))
        return calls[-1]

    yield make
    for one in calls:
        await close(one.session, one.events)
    detectors.close()


INTERRUPTIONS = ["Stop, please.", "No, that's not what I meant.", "Wait, I have a question.", "Hold on a second."]


@pytest.mark.parametrize("text", INTERRUPTIONS)
async def test_speech_silences_the_reply_within_250_ms(call, say, text):
    one = call("Tell me a story.", text)
    await one.reply(say("Tell me a story."))
    begun = len(one.sound)
    assert one.loud()[-25:].all(), "the reply is heard"
    await one.hear(say(text))
    await one.until("conversation.item.truncated")
    quiet = begun + int(np.argmin(one.loud()[begun:]))
    assert (quiet - begun) * FRAME_S <= 0.25
    assert not one.loud()[quiet : len(one.sound)].any(), "and it stays silent"
    (truncated,) = one.all("conversation.item.truncated")
    heard = one.loud()[:quiet].sum() * 20
    assert truncated["audio_end_ms"] == pytest.approx(heard, abs=40), "what was heard is remembered, no more"
    assert one.all("output_audio_buffer.cleared")


def cough() -> np.ndarray:
    rng = np.random.default_rng(3)
    t = np.arange(4000) / EARS_RATE
    spectrum, hertz = np.fft.rfft(rng.standard_normal(4000)), np.fft.rfftfreq(4000, 1 / EARS_RATE)
    burst = np.fft.irfft(spectrum / (1 + ((hertz - 600) / 400) ** 2)) * np.exp(-t / 0.07)
    burst = (0.6 * burst / np.abs(burst).max()).astype(np.float32)
    return np.concatenate([burst, silence(0.15), burst])


async def all_is_heard(one: Call, words: int) -> None:
    await one.until("output_audio_buffer.stopped")
    assert one.all("response.done")[0]["response"]["status"] == "completed"
    assert not one.all("output_audio_buffer.cleared") and len(one.cascade.requests) == 1
    sound = np.concatenate(one.sound)
    assert np.count_nonzero(sound) == pytest.approx(words * 0.3 * 24_000, rel=0.02), "from the very sample"


async def test_a_cough_does_not_end_the_reply(call, say):
    one = call("Tell me a story.", "", answer="word " * 12)
    await one.reply(say("Tell me a story."))
    await one.hear(np.concatenate([cough(), silence(1.0)]))
    await all_is_heard(one, 12)
    assert len(one.all("input_audio_buffer.speech_started")) == 1, "it was not even taken for speech"


@pytest.mark.parametrize("text", ["Yeah.", "Okay.", "Right, I see."])
async def test_a_word_of_a_listener_does_not_end_the_reply(call, say, text):
    one = call("Tell me a story.", text, answer="word " * 14)
    await one.reply(say("Tell me a story."))
    begun = len(one.sound)
    await one.hear(np.concatenate([say(text), silence(1.0)]))
    assert not one.loud()[begun : begun + 40].all(), "it paused to listen"
    await all_is_heard(one, 14)


async def test_typing_while_the_reply_plays(call, say):
    rng = np.random.default_rng(4)
    sound = silence(2)
    for at in range(1600, 30_000, 2400):
        sound[at : at + 480] += (rng.standard_normal(480) * np.exp(-np.arange(480) / 96) * 0.2).astype(np.float32)
    one = call("Tell me a story.", answer="word " * 14)
    await one.reply(say("Tell me a story."))
    await one.hear(sound)
    await all_is_heard(one, 14)


async def test_a_turn_with_a_hesitation_is_one_turn(call, say):
    whole = say("My sister and I are planning a trip to Portugal in the spring.")
    middle = int(0.42 * len(whole))
    cut = middle + int(np.argmin([np.abs(whole[i : i + 800]).sum() for i in range(middle, middle + 8000, 80)])) * 80
    one = call("My sister and I are")
    await one.hear(np.concatenate([silence(0.5), whole[:cut], silence(0.8)]))
    assert not one.all("input_audio_buffer.committed")
    one.cascade.transcripts = ["My sister and I are planning a trip to Portugal in the spring."]
    await one.hear(np.concatenate([whole[cut:], silence(1.0)]))
    assert len(one.all("input_audio_buffer.committed")) == 1 and len(one.all("response.created")) == 1


async def test_server_vad_waits_for_its_silence(call, say):
    one = call("What is the time?", kind="server_vad")
    await one.hear(np.concatenate([silence(0.5), say("What is the time?"), silence(1.0)]))
    (stopped,) = one.all("input_audio_buffer.speech_stopped")
    spoken = 500 + len(say("What is the time?")) / 16
    assert stopped["audio_end_ms"] == pytest.approx(spoken, abs=100)
    assert one.all("input_audio_buffer.speech_started")[0]["audio_start_ms"] == pytest.approx(200, abs=100), (
        "the prefix"
    )


async def test_speech_that_may_not_interrupt(call, say):
    one = call("Tell me a story.", "And then?", answer="word " * 12)
    one.detect(interrupt_response=False)
    await one.reply(say("Tell me a story."))
    begun = len(one.sound)
    await one.hear(np.concatenate([say("And then?"), silence(0.9)]))
    assert one.loud()[begun : begun + 60].all(), "it does not even wait"
    await one.until("output_audio_buffer.stopped", 2)
    assert [event["response"]["status"] for event in one.all("response.done")] == ["completed", "completed"]
    assert not one.all("output_audio_buffer.cleared")


async def test_turns_without_replies(call, say):
    one = call("Tell me a story.")
    one.detect(create_response=False)
    await one.hear(np.concatenate([silence(0.5), say("Tell me a story."), silence(1.2)]))
    assert len(one.all("input_audio_buffer.committed")) == 1
    await one.until("conversation.item.input_audio_transcription.completed")
    assert not one.cascade.requests, "nothing is begun ahead either"
    one.session.on_message(json.dumps({"type": "response.create"}))
    await one.until("output_audio_buffer.started")


@pytest.mark.parametrize("prefix", [0, 300, 1000])
async def test_prefix_padding(call, say, prefix):
    one = call("Tell me a story.", kind="server_vad")
    one.detect(prefix_padding_ms=prefix)
    await one.hear(np.concatenate([silence(2.0), say("Tell me a story."), silence(0.8)]))
    (started,) = one.all("input_audio_buffer.speech_started")
    assert started["audio_start_ms"] == pytest.approx(2000 - prefix, abs=100)
    heard = one.cascade.heard[-1]
    assert len(heard) / 16 == pytest.approx(prefix + len(say("Tell me a story.")) / 16 + 200, abs=150)


async def test_idle_timeout_is_not_put_off_by_noises(call, say):
    one = call("Tell me a story.", answer="word word", kind="server_vad")
    one.detect(idle_timeout_ms=3000)
    await one.hear(np.concatenate([silence(0.5), say("Tell me a story.")]))
    await one.until("output_audio_buffer.stopped")
    stopped = one.frames
    await one.hear(np.concatenate([silence(0.5), cough(), silence(0.4), cough()]))
    await one.until("input_audio_buffer.timeout_triggered")
    assert (one.frames - stopped) * FRAME_S == pytest.approx(3.0, abs=0.2)
    await one.until("output_audio_buffer.started", 2)


async def test_a_higher_threshold_hears_less(call, say):
    faint = say("Tell me a story.") * 0.15
    rng = np.random.default_rng(1)
    noisy = faint + (rng.standard_normal(len(faint)) * 0.003).astype(np.float32)
    starts = []
    for threshold in (0.1, 1.0):
        one = call("Tell me a story.", kind="server_vad")
        one.detect(threshold=threshold)
        await one.hear(np.concatenate([silence(1.0, level=0.003), noisy, silence(0.8, level=0.003)]))
        starts.append(len(one.all("input_audio_buffer.speech_started")))
    assert starts == [1, 0]


@pytest.mark.parametrize(("eagerness", "silence_ms"), [("high", 240), ("auto", 320), ("low", 700)])
async def test_a_whole_question_is_answered_soon(call, say, eagerness, silence_ms):
    """Sound and words agree: the turn ends as soon as the eagerness allows."""
    one = call("Please turn the lights off in the kitchen.")
    one.detect(eagerness=eagerness)
    await one.hear(np.concatenate([silence(0.5), say("Please turn the lights off in the kitchen.")]))
    spoken = one.frames
    await one.hear(silence(1.0))
    assert one.all("input_audio_buffer.speech_stopped")[0]["audio_end_ms"] == pytest.approx(spoken * 20, abs=120)
    await one.until("response.done")
    waited = int(one.all("response.done")[0]["response"]["metadata"]["endpointing_ms"])
    most = EndpointingPolicy().patience(eagerness).awaiting_ms
    assert silence_ms <= waited <= most, "longer only if the reply was not begun by then"
