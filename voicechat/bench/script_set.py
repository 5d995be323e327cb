"""The scripted sets as entries, the choosing of a part of one, and the making of its sounds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from voicechat.bench.script import (
    SOUND_RATE,
    SPEECH_DB,
    Background,
    Effect,
    Entry,
    Excerpt,
    Expect,
    Floats,
    Kind,
    Recording,
    Source,
    Speech,
    Splice,
    framed,
    leveled,
    parse,
    spliced,
    voiced_span,
    with_pauses,
)
from voicechat.bench.script_held_out import HELD_OUT
from voicechat.bench.script_sounds import BACKGROUNDS, EFFECTS, LOOP_S, babble
from voicechat.bench.script_texts import Joined, Noise, Recorded, Texts
from voicechat.bench.script_tuning import TUNING
from voicechat.bench.script_voices import Speech as Spoken
from voicechat.bench.script_voices import installed, read_sound, sound_file
from voicechat.media.resample import to_pcm

SETS = {texts.name: texts for texts in (TUNING, HELD_OUT)}
"""The sets by their names."""


def entries(texts: Texts) -> list[Entry]:
    """A whole set, kind by kind; every take of a text is spoken by another speaker."""
    found: list[Entry] = []

    def add(kind: Kind, expect: Expect, sources: Sequence[tuple[Source, str, Background | None]]) -> None:
        for take in range(texts.takes.get(kind, 1)):
            for index, (source, words, background) in enumerate(sources):
                name = f"{kind.value.replace(' ', '-')}-{index + 1:02}" + (f"-{take + 1}" if take else "")
                taken = _take(source, take, len(texts.voices))
                if taken is not None:
                    after_s = 0.8 + 0.3 * ((index + take) % 4)
                    found.append(Entry(name, kind, expect, taken, words, background, after_s))

    def spoken(said: Iterable[str]) -> list[tuple[Source, str, Background | None]]:
        return [(Speech(text, index), parse(text)[0], None) for index, text in enumerate(said)]

    add(Kind.QUESTION, Expect.ONE_TURN, spoken(texts.questions))
    add(Kind.PAUSE, Expect.ONE_TURN, spoken(texts.pauses))
    add(Kind.HESITATION, Expect.ONE_TURN, spoken(texts.hesitations))
    noisy = [
        (Speech(text, index), parse(text)[0], Background(name, snr, index))
        for index, (text, name, snr) in enumerate(texts.noisy)
    ]
    add(Kind.NOISY, Expect.ONE_TURN, noisy)
    add(Kind.RECORDED, Expect.ONE_TURN, [(_recorded(one), one.words, None) for one in texts.recorded])
    add(Kind.NOISE, Expect.NO_TURN, [(_noise(noise, 0), "", None) for noise in texts.noises])
    add(Kind.NOISE_IN_REPLY, Expect.NO_INTERRUPTION, [(_noise(noise, 20), "", None) for noise in texts.noises])
    murmurs: list[tuple[Source, str, Background | None]] = [
        (Effect(text, texts.seed + index, -28.0) if text in EFFECTS else Speech(text, index, SPEECH_DB - 4), "", None)
        for index, text in enumerate(texts.backchannels)
    ]
    add(Kind.BACKCHANNEL, Expect.NO_INTERRUPTION, murmurs)
    barge_ins: list[tuple[Source, str, Background | None]] = [
        (Speech(one, index), parse(one)[0], None) if isinstance(one, str) else (_recorded(one), one.words, None)
        for index, one in enumerate(texts.interruptions)
    ]
    add(Kind.INTERRUPTION, Expect.INTERRUPTION, barge_ins)
    return found


def _recorded(one: Recorded | Joined) -> Source:
    if isinstance(one, Joined):
        return Splice(one.files, one.pauses_ms)
    return Excerpt(one.file, one.start_s, one.end_s)


def _noise(noise: Noise, more: int) -> Source:
    if noise.name.startswith("moh/"):  # music: some seconds of it
        return Excerpt(noise.name, noise.seed % 5, noise.seed % 5 + 3.0, noise.level_db)
    if "/" in noise.name:
        return Excerpt(noise.name, level_db=noise.level_db)
    return Effect(noise.name, noise.seed + more, noise.level_db)


def _take(source: Source, take: int, speakers: int) -> Source | None:
    """``source`` for another take; None if it would be the same again."""
    match source:
        case Speech() if take < speakers:
            return dataclasses.replace(source, speaker=source.speaker + take * (speakers // 2 + 1))
        case Effect():
            return dataclasses.replace(source, seed=source.seed + 40 * take)
    return source if not take else None


def chosen(all_entries: Sequence[Entry], count: int | None) -> list[Entry]:
    """``count`` entries of every kind in proportion, spread over each kind's, turn about; from the start again if
    there are fewer. None: each of them once."""
    kinds = list(dict.fromkeys(entry.kind for entry in all_entries))
    by_kind = {kind: [entry for entry in all_entries if entry.kind is kind] for kind in kinds}
    total = len(all_entries)
    if count is None:
        count = total
    if count > total:
        return [*chosen(all_entries, None), *chosen(all_entries, count - total)]
    shares = {kind: count * len(by_kind[kind]) / total for kind in kinds}
    numbers = {kind: math.floor(share) for kind, share in shares.items()}
    for kind in sorted(kinds, key=lambda kind: numbers[kind] - shares[kind])[: count - sum(numbers.values())]:
        numbers[kind] += 1
    places: list[tuple[float, int, Entry]] = []
    for order, kind in enumerate(kinds):
        number, some = numbers[kind], by_kind[kind]
        for index in range(number):
            places.append(((index + 0.5) / number, order, some[(index * len(some) // number + order) % len(some)]))
    return [entry for _, _, entry in sorted(places, key=lambda place: place[:2])]


class Studio:
    """Makes recordings of the entries of a set; what is spoken is kept in ``folder``. Raises :class:`NoVoice`."""

    def __init__(self, folder: Path, texts: Texts, *, speech: Spoken | None = None) -> None:
        self.speech = speech or Spoken(folder, installed(texts.voices))
        self._crowd = texts.crowd

    def possible(self, wanted: Iterable[Entry]) -> list[Entry]:
        """Those that can be made with what is installed."""
        return [entry for entry in wanted if all(sound_file(file) is not None for file in files_of([entry]))]

    def record(self, wanted: Sequence[Entry]) -> list[Recording]:
        """The sounds of ``wanted``."""
        texts = [
            (entry.source.speaker, parse(entry.source.text)[0]) for entry in wanted if isinstance(entry.source, Speech)
        ]
        self.speech.make([*texts, *self._crowd])
        return [self._record(entry) for entry in wanted]

    def say(self, said: Sequence[tuple[int, str]]) -> list[Recording]:
        """Questions that are not of the set, as (speaker, text)."""
        return self.record(
            [
                Entry("prompt", Kind.QUESTION, Expect.ONE_TURN, Speech(text, speaker, SPEECH_DB), text)
                for speaker, text in said
            ]
        )

    def _record(self, entry: Entry) -> Recording:
        source, background = entry.source, None
        if isinstance(source, Speech):
            text, pauses = parse(source.text)
            sound, spans = with_pauses(self.speech.get(source.speaker, text), text, pauses)
            voice = self.speech.voice(source.speaker).name
        elif isinstance(source, Excerpt):
            whole = read_sound(source.file)
            end = int(source.end_s * SOUND_RATE) or len(whole)
            sound, spans = with_pauses(whole[int(source.start_s * SOUND_RATE) : end], " ", [])
            voice = source.file
        elif isinstance(source, Splice):
            sound, spans = spliced([read_sound(file) for file in source.files], source.pauses_ms)
            voice = source.files[0]
        else:
            sound = leveled(self._effect(source), source.level_db)
            spans, voice = [voiced_span(sound)], source.name
        sound, placed = framed(leveled(sound, source.level_db), spans)
        if entry.background is not None:
            level = source.level_db - entry.background.snr_db
            background = leveled(self._background(entry.background.name, entry.background.seed), level)
        return Recording(entry, to_pcm(sound).astype(np.float32) / np.float32(32768), placed, voice, background)

    def _effect(self, source: Effect) -> Floats:
        if source.name in EFFECTS:
            return EFFECTS[source.name](source.seed)
        loop = self._background(source.name, source.seed)[: 3 * SOUND_RATE].copy()
        edge = SOUND_RATE // 5
        loop[:edge] *= np.linspace(0, 1, edge, dtype=np.float32)
        loop[-edge:] *= np.linspace(1, 0, edge, dtype=np.float32)
        return loop

    def _background(self, name: str, seed: int) -> Floats:
        if name in BACKGROUNDS:
            return BACKGROUNDS[name](seed)
        if "/" in name:
            return read_sound(name)[seed * SOUND_RATE :][: int(LOOP_S * SOUND_RATE)]
        crowd = [self.speech.get(speaker, text) for speaker, text in self._crowd]
        turned = seed % len(crowd)
        return babble(crowd[turned:] + crowd[:turned])


def files_of(some: Iterable[Entry]) -> list[str]:
    """Files of other packages that entries are made of."""
    files: list[str] = []
    for entry in some:
        if entry.background is not None and "/" in entry.background.name:
            files.append(entry.background.name)
        match entry.source:
            case Excerpt(file=file):
                files.append(file)
            case Splice(files=parts):
                files += parts
    return files
