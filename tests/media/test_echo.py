"""Echoes of a voice that was sent, late, weak, through a room and a telephone; and users who talk over them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.speech import voice
from voicechat.media import g711
from voicechat.media.echo import CLEAR_FRAMES, DOUBT_FRAMES, MAX_DELAY_MS, EchoGuard
from voicechat.media.resample import resample

QUIET = 1e-4


def babble(seconds: float, rng: np.random.Generator) -> np.ndarray:
    """Speech-like sound at 24 kHz, float32, rms about 0.1: noise through formants that move, in syllables."""
    out = []
    while sum(map(len, out)) < seconds * 24_000:
        count = int(24_000 * rng.uniform(0.08, 0.25))
        spectrum = np.fft.rfft(rng.standard_normal(count))
        hertz = np.fft.rfftfreq(count, 1 / 24_000)
        shape = sum(
            np.exp(-(((hertz - centre) / width) ** 2))
            for centre, width in [
                (rng.uniform(250, 800), 120),
                (rng.uniform(900, 2300), 200),
                (rng.uniform(2400, 3500), 300),
            ]
        )
        sound = np.fft.irfft(spectrum * shape, count) * np.hanning(count)
        out.append(sound / (np.sqrt(np.mean(sound**2)) + 1e-9) * 0.12)
        out.append(np.zeros(int(24_000 * rng.uniform(0.0, 0.08))))
    return np.concatenate(out)[: int(seconds * 24_000)].astype(np.float32)


def telephone(sound: np.ndarray) -> np.ndarray:
    """Through G.711 and back, at 16 kHz."""
    narrow = resample(sound.astype(np.float32), 16_000, 8_000)
    coded = g711.encode((np.clip(narrow, -1, 1) * 32767).astype(np.int16), "pcmu")
    return resample(g711.decode(coded, "pcmu").astype(np.float32) / 32768, 8_000, 16_000)[: len(sound)]


def room(sound: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Through a room with a reverberation time of 0.4 s, whose echo is 2 dB weaker than the direct sound."""
    count = 6400
    tail = rng.standard_normal(count) * 10 ** (-3 * np.arange(count) / count)
    answer = tail / np.sqrt(np.sum(tail**2)) * 10 ** (-2 / 20)
    answer[0] = 1.0
    wet = np.convolve(sound, answer)[: len(sound)]
    return wet * np.sqrt(np.mean(sound**2) / np.mean(wet**2))


class Scene:
    """A reply of ``seconds`` that begins after 0.2 s, and what the microphone hears meanwhile."""

    def __init__(
        self, seed: int, *, seconds: float = 4.0, db: float = -20, delay_ms: float = 200, path: str = ""
    ) -> None:
        self.rng = np.random.default_rng(seed)
        reply = np.concatenate([np.zeros(4800, np.float32), babble(seconds, self.rng), np.zeros(12_000, np.float32)])
        self.reply = reply[: len(reply) // 480 * 480]
        echo = resample(self.reply, 24_000, 16_000)[: len(self.reply) * 2 // 3] * 10 ** (db / 20)
        if "room" in path:
            echo = room(echo, self.rng)
        late = np.concatenate([np.zeros(int(delay_ms * 16)), echo])[: len(echo)]
        self.mic = late + QUIET * self.rng.standard_normal(len(late))
        self.path = path

    def user(self, at: float, seconds: float, level: float) -> None:
        """Somebody speaks."""
        sound = voice(seconds, 16_000)
        start = int(at * 16_000)
        sound = sound[: len(self.mic) - start]
        self.mic[start : start + len(sound)] += sound * level / np.sqrt(np.mean(sound**2))

    def run(self, guard: EchoGuard | None = None, *, sent: bool = True) -> np.ndarray:
        """Which frames were given to the detectors as they came."""
        guard = guard or EchoGuard()
        mic = (telephone(self.mic) if "g711" in self.path else self.mic).astype(np.float32)
        passed = []
        for index in range(len(mic) // 320):
            frame = mic[index * 320 : (index + 1) * 320]
            reply = self.reply[index * 480 : (index + 1) * 480]
            guard.sent((reply * 32767).astype(np.int16) if sent else np.zeros(480, np.int16))
            passed.append(guard.heard(frame) is frame and np.sqrt(np.mean(frame**2)) > 6 * QUIET)
        self.guard = guard
        return np.array(passed)


def longest(passed: np.ndarray, within: int = 16) -> int:
    """Most frames that pass within 320 ms: what opens a turn."""
    return int(np.convolve(passed, np.ones(within)).max())


@pytest.mark.parametrize("path", ["", "g711", "room", "room g711"])
@pytest.mark.parametrize("db", [-12, -20, -30])
def test_an_echo_opens_no_turn_from_the_first_word_on(db, path):
    for seed in range(3):
        scene = Scene(seed, db=db, delay_ms=60 + 200 * seed, path=path)
        assert longest(scene.run()) < 6
        assert scene.guard.delay_ms == pytest.approx(60 + 200 * seed, abs=25)


@pytest.mark.parametrize("path", ["", "room g711"])
@pytest.mark.parametrize("over", [6, 15])
def test_who_talks_over_the_echo_is_heard(over, path):
    for seed in range(3):
        scene = Scene(seed, db=-20, path=path)
        scene.user(2.0, 1.5, 0.1 * 10 ** ((over - 20) / 20))
        assert longest(scene.run()) >= 8


def test_without_an_echo_everything_passes_once_that_is_known():
    scene = Scene(1, db=-200, seconds=6.0)
    scene.user(3.0, 1.5, 0.05)
    passed = scene.run()
    assert scene.guard.delay_ms is None
    assert passed[155:220].mean() > 0.8
    assert longest(passed) == 16


def test_who_speaks_before_that_is_known_waits_a_moment_at_most():
    scene = Scene(2, db=-200)
    scene.user(0.5, 1.5, 0.05)
    passed = scene.run()
    first = int(np.flatnonzero(passed)[0])
    assert first - 25 <= DOUBT_FRAMES + 3 < CLEAR_FRAMES


def test_the_users_words_pass_untouched_while_nothing_is_sent():
    scene = Scene(3, db=-200)
    scene.user(0.5, 2.0, 0.05)
    assert scene.run(sent=False)[30:120].all()


def test_an_echo_that_moves_is_found_again():
    guard = EchoGuard()
    Scene(4, delay_ms=100).run(guard)
    moved = Scene(5, delay_ms=400)
    passed = moved.run(guard)
    assert guard.delay_ms == pytest.approx(400, abs=40)
    assert longest(passed[100:]) < 6


def test_a_later_reply_is_known_at_once():
    guard = EchoGuard()
    Scene(6, delay_ms=150, path="room").run(guard)
    assert longest(Scene(7, delay_ms=150, path="room").run(guard)) < 6


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1 << 30), st.floats(-35, -8), st.floats(20, MAX_DELAY_MS - 100), st.sampled_from(["", "g711"]))
def test_any_echo(seed, db, delay, path):
    assert longest(Scene(seed, seconds=2.5, db=db, delay_ms=delay, path=path).run()) < 8


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from(["sent", "quiet", "heard", "loud", "missed"]), max_size=200), st.integers(0, 1000))
def test_any_order_of_calls(calls, seed):
    rng = np.random.default_rng(seed)
    guard = EchoGuard()
    for call in calls:
        match call:
            case "sent":
                guard.sent((rng.standard_normal(480) * 3000).astype(np.int16))
            case "quiet":
                guard.sent(np.zeros(480, np.int16))
            case "heard":
                assert guard.heard((rng.standard_normal(320) * 1e-4).astype(np.float32)).shape == (320,)
            case "loud":
                assert guard.heard((rng.standard_normal(320) * 0.1).astype(np.float32)).dtype == np.float32
            case "missed":
                guard.missed(int(rng.integers(0, 500)))
