"""Smart Turn: the same probabilities as those who trained it get, and off the event loop."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from tests.speech import silence, voice
from voicechat.assemble import AssembledPaths
from voicechat.contract.sound import EARS_RATE
from voicechat.media.detectors import SMART_TURN_FILE, Detectors
from voicechat.media.resample import resample
from voicechat.media.smart_turn import BANDS, FRAMES, SmartTurn, features


@pytest.fixture(scope="module")
def smart_turn(models: AssembledPaths) -> SmartTurn:
    return SmartTurn(models.detectors / SMART_TURN_FILE)


@pytest.fixture(scope="module")
def turns() -> dict[str, np.ndarray]:
    """Whole and broken-off turns, and sounds that are none."""
    hibari = pytest.importorskip("hibari")
    rng = np.random.default_rng(2)

    def say(text: str) -> np.ndarray:
        return resample(np.asarray(hibari.Hibari()(text, seed=1), np.float32), hibari.SAMPLE_RATE, EARS_RATE)

    whole, other = say("Please turn the lights off in the kitchen."), say("My sister and I are going to Portugal.")
    story = say("I went to the market in the morning, and then I met an old friend of mine, and we talked for hours.")
    return {
        "whole": np.concatenate([whole, silence(0.2)]),
        "broken off": np.concatenate([other[: int(0.55 * len(other))], silence(0.2)]),
        "longer than 8 s": np.concatenate([story, story, silence(0.3)]),
        "exactly 8 s": np.resize(story, 8 * EARS_RATE),
        "noise": (rng.standard_normal(20_000) * 0.01).astype(np.float32),
        "vowels": voice(1.3),
        "short": whole[:800],
        "silence": np.zeros(EARS_RATE, np.float32),
    }


def test_the_same_probability_as_pipecats_own_analyzer(smart_turn, turns, models):
    module = pytest.importorskip("pipecat.audio.turn.smart_turn.local_smart_turn_v3", reason="pipecat is not installed")
    reference = module.LocalSmartTurnAnalyzerV3(smart_turn_model_path=str(models.detectors / SMART_TURN_FILE))
    for name, turn in turns.items():
        expected = reference._predict_endpoint(turn)["probability"]
        # the net is in int8: features that differ by 1e-5 (float32 against float64) can round another way
        assert smart_turn.finished(turn) == pytest.approx(expected, abs=0.02), name


def test_the_same_features_as_transformers(turns):
    transformers = pytest.importorskip("transformers")
    extractor = transformers.WhisperFeatureExtractor(chunk_length=8)
    for name, turn in turns.items():
        padded = np.pad(turn[-8 * EARS_RATE :], (max(0, 8 * EARS_RATE - len(turn)), 0))
        expected = extractor(
            padded, sampling_rate=EARS_RATE, return_tensors="np", padding="max_length", max_length=8 * EARS_RATE,
            truncation=True, do_normalize=True,
        ).input_features[0]  # fmt: skip
        assert features(turn).shape == expected.shape == (BANDS, FRAMES)
        assert np.abs(features(turn) - expected).max() < 1e-3, name


def test_a_whole_turn_seems_complete_and_a_broken_one_does_not(smart_turn, turns):
    assert smart_turn.finished(turns["whole"]) > 0.8
    assert smart_turn.finished(turns["broken off"]) < 0.6


def test_no_sound_is_a_sound(smart_turn):
    assert 0 <= smart_turn.finished(np.zeros(0, np.float32)) <= 1
    with pytest.raises(ValueError, match="one dimension"):
        features(np.zeros((2, 100), np.float32))


async def test_judging_leaves_the_loop_free_and_can_be_called_off(models, turns):
    detectors = Detectors.load(models.detectors)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    ticking = asyncio.create_task(tick())
    first = asyncio.create_task(detectors.finished(turns["whole"]))
    waiting = [asyncio.create_task(detectors.finished(turns["noise"])) for _ in range(50)]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    assert await first == pytest.approx(
        SmartTurn(models.detectors / SMART_TURN_FILE).finished(turns["whole"]), abs=1e-6
    )
    assert ticks > 3, "others ran meanwhile"
    assert await detectors.finished(turns["noise"]) <= 1, "those that were called off are not waited for"
    ticking.cancel()
    detectors.close()
    detectors.close()
    with pytest.raises(RuntimeError):
        await detectors.finished(turns["noise"])
