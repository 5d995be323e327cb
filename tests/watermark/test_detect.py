"""The detector: what it finds through channels, where, and how seldom it is wrong."""

from __future__ import annotations

import functools
import math
import tracemalloc

import numpy as np
import numpy.typing as npt
import pytest

from voicechat.bench.watermark_attacks import ATTACKS, Floats
from voicechat.contract.sound import PCM_RATE, Pcm
from voicechat.watermark.code import signs_of
from voicechat.watermark.detect import Detector, detect
from voicechat.watermark.embed import Embedder
from voicechat.watermark.features import Contrasts, Levels
from voicechat.watermark.keys import Key
from voicechat.watermark.pattern import PILOT, Pattern
from voicechat.watermark.search import (
    HYPOTHESES,
    INTERESTING,
    SCALES,
    Hypothesis,
    Places,
    Template,
    Window,
    search,
    steps_needed,
)

KEY, OTHER = Key(bytes(range(32))), Key(bytes(range(1, 33)))
PAYLOAD = 0xACE1


@functools.cache
def speech(seconds: float = 6.0, seed: int = 1) -> Pcm:
    """Syllables: harmonics under moving formants, and hisses between them, at 24 kHz."""
    rng = np.random.default_rng(seed)
    time = np.arange(int(seconds * PCM_RATE)) / PCM_RATE
    pitch = 120 + 25 * np.sin(2 * np.pi * 0.4 * time + seed)
    phase = np.cumsum(pitch) / PCM_RATE
    formants = [(500, 250, 1.1), (1500, 500, 1.7), (2600, 300, 0.9), (4200, 400, 0.6)]
    sound = np.zeros_like(time)
    for n in range(1, 60):
        level = sum(
            1 / (1 + ((pitch * n - middle - swing * np.sin(2 * np.pi * rate * time)) / 150) ** 2)
            for middle, swing, rate in formants
        )
        sound += level * np.sin(2 * np.pi * n * phase + n * n) / n**0.5
    hiss = np.diff(rng.normal(size=len(time) + 1)) * 0.4
    turn = np.sin(2 * np.pi * 2.5 * time) > 0.5
    sound = np.where(turn, hiss, sound) + rng.normal(size=len(time)) * 0.02
    sound *= 0.3 + 0.7 * np.abs(np.sin(2 * np.pi * 1.7 * time))
    return np.asarray(sound / np.abs(sound).max() * 20_000, np.int16)


def mark(pcm: Pcm, key: Key = KEY, payload: int = PAYLOAD) -> Pcm:
    embedder = Embedder(key, payload)
    return np.concatenate([embedder.push(pcm), embedder.finish()])


def test_the_scores_of_a_day_are_small() -> None:
    """Two windows a second: what is kept of them is one number a second."""
    detector = Detector([KEY], 16_000)
    tracemalloc.start()
    for half in range(2 * 86_400):
        detector._note(half / 2 + 1, float(half % 7))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 86_400 * 10
    scores = detector._by_second(4.0)
    assert scores[:3] == (0.0, 1.0, 3.0) and scores[3] == 6.0, "what reaches beyond the end counts for the last second"


@functools.cache
def contrasts_of(seed: int) -> Floats:
    """Contrasts of unmarked speech."""
    levels, front = Levels(PCM_RATE, SCALES), Contrasts(len(SCALES))
    seen = front.push(levels.push(speech(3.0, seed).astype(np.float32) / 32768))
    return np.concatenate([seen, front.push(levels.finish()), front.finish()])


@pytest.mark.parametrize(
    "name", ["clean", "opus24_loss5", "mp3_64", "mulaw", "noise20", "gain-12", "cut", "speed+2", "echo"]
)
def test_the_payload_is_read_through(name: str) -> None:
    sound, rate = ATTACKS[name].apply(mark(speech()), 3)
    report = detect(np.asarray(sound, np.float32), [OTHER, KEY], rate)
    assert report.marked and report.p_value < 1e-6
    assert {(span.payload, span.key_id) for span in report.spans} == {(PAYLOAD, KEY.id)}


def test_the_speed_is_told() -> None:
    sound, rate = ATTACKS["speed+2"].apply(mark(speech()), 3)
    assert detect(sound, [KEY], rate).spans[0].speed == 1.02


def test_unmarked_sound_and_a_wrong_key_give_nothing() -> None:
    assert detect(speech(), [KEY], PCM_RATE, [PAYLOAD]).outcome == "not_marked"
    report = detect(mark(speech()), [OTHER], PCM_RATE, [PAYLOAD])
    assert (report.outcome, report.spans) == ("not_marked", ()) and report.p_value > 1e-3


def test_an_expected_payload_is_found_where_it_is_fainter() -> None:
    faint = ATTACKS["noise20"].apply(mark(speech()), 1)[0][:24_000]
    known, blind = (detect(faint, [KEY], PCM_RATE, expected).p_value for expected in ([PAYLOAD], []))
    assert known < blind


def test_marked_parts_of_a_joined_sound_lie_where_they_are() -> None:
    first, second = mark(speech(6.0, 2)), mark(speech(5.0, 3), payload=77)[PCM_RATE:]
    sound = np.concatenate([speech(5.0, 4), first, speech(4.0, 5), second, speech(3.0, 6)])
    report = detect(sound, [KEY], PCM_RATE)
    assert [span.payload for span in report.spans] == [PAYLOAD, 77]
    for span, (start, end) in zip(report.spans, [(5.0, 11.0), (15.0, 19.0)], strict=True):
        assert abs(span.start_s - start) < 0.5 and abs(span.end_s - end) < 0.5


@pytest.mark.parametrize("seed", range(4))
def test_a_short_marked_part_of_a_longer_sound_lies_where_it_is(seed: int) -> None:
    """Of the windows that see it most lie mostly beside it: what is there says nothing of how clear the mark is."""
    before, after = speech(3.0 + seed / 2, 20 + seed), speech(3.0, 30 + seed)
    part = mark(speech(6.0, 40 + seed))[2 * PCM_RATE : 5 * PCM_RATE]
    spans = detect(np.concatenate([before, part, after]), [KEY], PCM_RATE, [PAYLOAD]).spans
    assert [span.payload for span in spans] == [PAYLOAD]
    start = 3.0 + seed / 2
    assert abs(spans[0].start_s - start) < 0.3 and abs(spans[0].end_s - start - 3.0) < 0.3


def test_a_sum_of_random_signs_with_fixed_sound_is_normal() -> None:
    """One place, no search: z of many keys against its distribution (Kolmogorov's distance, its 0.1 % bound)."""
    seen = contrasts_of(9)[1 : 4 * 128 : 4, 0]
    rng = np.random.default_rng(1)
    keys = rng.choice(np.array([-1, 1], np.float32), (4000, seen.size))
    z = np.sort(keys @ seen.reshape(-1) / np.sqrt((seen**2).sum()))
    from statistics import NormalDist

    expected = np.array([NormalDist().cdf(value) for value in z])
    distance = np.abs(expected - (np.arange(len(z)) + 0.5) / len(z)).max()
    assert distance < 1.95 / np.sqrt(len(z))


def test_p_values_hold_under_random_keys() -> None:
    """Of 300 keys that the sound was not marked with, no more than a share a gets a p-value of a or less."""
    rng = np.random.default_rng(2)
    places = Places(Window(contrasts_of(9)[: steps_needed(100)], 100), 100)
    found = [search(places, Template(Pattern.of(Key(rng.bytes(32)))), [PAYLOAD]) for _ in range(300)]
    p = np.exp([one.log_p for one in found])
    for bound in (0.3, 0.1, 0.03):
        assert (p <= bound).sum() <= 300 * bound + 3 * np.sqrt(300 * bound)
    assert max(one.score for one in found) < 9


@pytest.mark.parametrize("rows", [100, 250])
@pytest.mark.parametrize("depth", [1.0, 0.15, 0.0])
def test_a_windows_score_is_that_of_its_definition(rows: int, depth: float) -> None:
    """By loops over places, in float64: the best of the 24 where the pilot is seen best, for a payload that is expected
    and for all; exact whenever it may count, and else no better.
    """
    plain = speech(7.0)
    sound = (plain + depth * (mark(plain).astype(float) - plain)).astype(np.float32) / 32768
    levels, front = Levels(PCM_RATE, SCALES), Contrasts(len(SCALES))
    seen = np.concatenate([front.push(levels.push(sound)), front.push(levels.finish())])[60:]
    pattern = Pattern.of(KEY)
    places, template = Places(Window(seen, 250), rows), Template(pattern)
    (known, place), (any_word, _) = by_definition(seen, pattern, rows)
    if depth == 1.0:
        found = search(places, template, [PAYLOAD])
        assert found.word == found.payload == PAYLOAD
        assert found.score == pytest.approx(known, rel=1e-4)
        assert (found.hypothesis, found.first, found.row) == place
    tried = math.log(len(HYPOTHESES) * 128 * 4)
    blind_p = tried + math.log(65536) - any_word**2 / 2
    known_p = min(math.log(2) + blind_p, tried + math.log(2) - known**2 / 2)
    for expected, exact in (([], blind_p), ([PAYLOAD], known_p)):
        log_p = search(places, template, expected).log_p
        assert log_p == pytest.approx(min(0.0, exact), abs=1e-2) or min(log_p, exact) > INTERESTING
        assert log_p >= min(0.0, exact) - 1e-2


Place = tuple[Hypothesis, int, int]


def by_definition(seen: Floats, pattern: Pattern, rows: int) -> tuple[tuple[float, Place], tuple[float, Place]]:
    """The best z of PAYLOAD, and of any, at the 24 places where the pilot's z is best; and which place that is."""
    is_pilot, signs = pattern.symbols == PILOT, pattern.signs.reshape(-1).astype(float)
    places = []
    for hypothesis in HYPOTHESES:
        for first in range(4):
            steps = np.rint(first + 4 * np.arange(rows) / hypothesis.speed).astype(int)
            folded = np.zeros((128, 44))
            np.add.at(folded, np.arange(rows) % 128, seen[steps, hypothesis.scale].astype(float))
            for row in range(128):
                at = np.where(is_pilot, folded[(np.arange(128) - row) % 128], 0).reshape(-1)
                places.append((at @ signs / np.sqrt(at @ at), (hypothesis, first, row), folded))
    known, all_words, words = [], [], signs_of(np.arange(65536)).astype(float)
    for _, place, folded in sorted(places, key=lambda one: -one[0])[:24]:
        own = np.roll(folded, place[2], 0) * pattern.signs
        soft = np.array([own[pattern.symbols == symbol].sum() for symbol in range(64)])
        agreement = words @ soft
        norm, pilot = np.sqrt((folded**2).sum()), own[is_pilot].sum()
        known.append(((pilot + agreement[PAYLOAD]) / norm, place))
        all_words.append(((pilot + agreement.max()) / norm, place))
    return max(known, key=lambda one: one[0]), max(all_words, key=lambda one: one[0])


def test_several_keys_are_looked_for_as_each_alone() -> None:
    sound = np.concatenate([mark(speech(4.0, 2)), mark(speech(4.0, 3), OTHER, 77)])
    both, one, other = (detect(sound, keys, PCM_RATE) for keys in ([KEY, OTHER], [KEY], [OTHER]))
    assert [(s.key_id, s.payload, s.score) for s in both.spans] == [
        (s.key_id, s.payload, s.score) for s in (*one.spans, *other.spans)
    ]
    assert both.scores == tuple(map(max, zip(one.scores, other.scores, strict=True)))


def test_the_result_does_not_depend_on_how_the_sound_was_fed() -> None:
    sound = mark(speech())
    detector = Detector([KEY], PCM_RATE)
    for piece in np.array_split(sound, 23):
        detector.feed(piece)
    pieces, whole = detector.finish(), detect(sound, [KEY], PCM_RATE)
    assert pieces.spans[0].payload == whole.spans[0].payload == PAYLOAD
    assert abs(pieces.spans[0].score - whole.spans[0].score) < 0.5


def test_every_symbol_lies_in_any_second() -> None:
    symbols = Pattern.of(KEY).symbols
    for first in range(0, 128 - 50):
        assert set(symbols[first : first + 50].reshape(-1)) == {PILOT, *range(64)}


@pytest.mark.parametrize(
    ("sound", "outcome"),
    [
        (np.zeros(0, np.float32), "too_short"),
        (np.full(8_000, 0.1, np.float32), "too_short"),
        (np.zeros(40_000, np.float32), "silent"),
        (np.zeros(40_000, np.int16), "silent"),
    ],
)
def test_what_is_no_sound_is_told(sound: npt.NDArray[np.float32], outcome: str) -> None:
    report = detect(sound, [KEY])
    assert (report.outcome, report.spans) == (outcome, ())


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="no key"):
        Detector([])
    with pytest.raises(ValueError, match="44100"):
        Detector([KEY], 44_100)
    with pytest.raises(ValueError, match="float32"):
        Detector([KEY]).feed(np.zeros(10))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no number"):
        Detector([KEY]).feed(np.full(10, np.nan, np.float32))
    with pytest.raises(ValueError, match="16 bits"):
        Detector([KEY], expected=[1 << 16])


def test_memory_does_not_grow_with_the_sound() -> None:
    """What is held after one minute and after three."""
    detector, piece = Detector([KEY], PCM_RATE), mark(speech())
    held = []
    tracemalloc.start()
    try:
        for _ in range(2):
            for _ in range(5):
                detector.feed(piece)
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert held[1] - held[0] < 200_000
