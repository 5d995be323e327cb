"""The scripted set itself, the choosing of a part of it, and the making of its sounds."""

from __future__ import annotations

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
    framed,
    leveled,
    parse,
    voiced_span,
    with_pauses,
)
from voicechat.bench.script_sounds import BACKGROUNDS, EFFECTS, babble
from voicechat.bench.script_voices import Speech as Spoken
from voicechat.bench.script_voices import read_wav, recordings
from voicechat.media.resample import to_pcm

_QUESTIONS = (
    "Why?", "What is two plus two?", "Who wrote Romeo and Juliet?", "What is the capital of France?",
    "How are you today?", "Tell me a joke.", "What makes bread rise?", "How far away is the moon?",
    "What language do people speak in Brazil?", "How many legs does a spider have?", "What do bees do all day?",
    "Is a tomato a fruit or a vegetable?", "Can you tell me a fun fact about cats?", "What are the primary colors?",
    "How do I say thank you in Spanish?", "Who painted the Mona Lisa?", "Good morning.",
    "When is the best time of the year to visit Japan?", "How do I remove a coffee stain from a white shirt?",
    "What is the difference between a crocodile and an alligator?",
    "I have three apples and I eat one of them.{300} How many do I have left?",
    "My sister is coming to visit next week and she loves music.{300} Where should I take her?",
    "Could you explain in simple words how an airplane manages to stay up in the air?",
    "If I leave home at nine in the morning and drive for four hours, when do I arrive?",
)  # fmt: skip

_PAUSES = (
    "What is the best way,{400} to learn the piano?", "How long does it take,{350} to walk five miles?",
    "Can you give me a tip,{450} for a job interview?", "Tell me something,{300} about the history of Rome.",
    "Is it true,{500} that cats always land on their feet?", "When I go to the beach,{700} what should I take with me?",
    "If I only have eggs and rice,{900} what should I cook for dinner?", "In which country,{500} was chess invented?",
    "If it rains tomorrow,{650} what could we do with the children?", "Before I plant the roses,{550} what do I need?",
    "I would like to know,{750} how many people live in Canada.", "My phone number is five five five,{600} two three,"
    "{500} eight nine. Can you say it back?", "Please compare,{450} a bicycle,{350} and a car.",
    "When we were in Italy last summer,{850} we ate a kind of cake with coffee in it.{300} What is it called?",
)  # fmt: skip

_HESITATIONS = (
    "Um,{500} what time does the sun rise in winter?", "Uh,{400} how do I boil an egg?",
    "I was wondering, uh,{600} whether dogs can see colors.", "So,{500~} what is the tallest mountain in the world?",
    "I want to know about trees and,{700~} about the birds that live in them.",
    "Well,{450~} could you recommend a hobby, um,{500} for the winter?", "What is the, um,{600} the capital of Peru?",
    "Can you tell me, uh,{800} who invented the telephone?", "I need a name for,{600~} for a small dog.",
    "I like tea but,{700~} but what is healthier, tea or coffee?", "Hmm,{600} how often should I water my plants?",
    "Could you, um,{350} could you explain why the sky is blue?",
)  # fmt: skip

_NOISY = (
    ("What is the largest ocean on earth?", "fan", 20), ("How do plants make their food?", "street", 15),
    ("Who was the first person on the moon?", "babble", 15), ("What should I wear when it rains?", "fan", 10),
    ("How can I fall asleep faster?", "street", 20), ("What is a good name for a small dog?", "babble", 20),
    ("What is the freezing point of water?", "street", 10), ("Which animal is the fastest on land?", "babble", 10),
    ("Can you count to five,{350} and then back again?", "fan", 15),
    ("Near the south pole,{400} how do penguins stay warm?", "babble", 15),
    ("What day comes after Sunday?", "street", 15), ("Why do leaves change color in autumn?", "babble", 20),
)  # fmt: skip

_RECORDED = (
    ("clone-test.wav", 0.25, 4.11, "I think that America do it very well"),
    ("two_cities.wav", 1.0, 4.75, "It was the best of times it was the worst of times"),
    ("endgame_nagg_nell.wav", 0.0, 0.98, "Do you hear me"),
    ("two_cities.wav", 20.95, 26.3, "we had everything before us we had nothing before us"),
    ("endgame_nagg_nell.wav", 23.6, 27.5, "Do you remember the day I went and fetched you from that ditch"),
    ("beckett.wav", 6.4, 9.96, "Try again Fail again Fail better"),
    ("endgame_nagg_nell.wav", 17.5, 18.95, "What are you talking about"),
    ("two_cities.wav", 36.8, 41.9, "for evil in the superlative degree of comparison only"),
)  # fmt: skip

_NOISES = (
    ("cough", 0, -20), ("typing", 1, -38), ("throat", 2, -24), ("street", 3, -36), ("clap", 4, -22), ("fan", 5, -40),
    ("cough", 1, -26), ("door", 6, -22), ("babble", 0, -50), ("throat", 7, -30), ("cough", 8, -18), ("clap", 9, -28),
    ("typing", 10, -32), ("babble", 1, -46),
)  # fmt: skip

_BACKCHANNELS = (
    "mm-hm", "Yeah.", "Uh-huh.", "Right.", "Okay.", "mm-hm", "I see.", "Yeah, yeah.", "Oh, wow.", "Sure.", "mm-hm",
    "Mm.", "Right, okay.", "Yes.",
)  # fmt: skip

_INTERRUPTIONS = (
    "Stop.", "Wait, what about the other one?", "No, I meant something else.", "Hold on a second.",
    "Stop, please.", "Can you say that again?", "Actually, tell me about dogs.", "No, no, that is wrong.",
    "Okay, but how much does it cost?", "That is enough, thank you.", "Sorry, I have another question.",
    "Wait.", "Let me ask you something different.{300} Who was Mozart?", "What do you mean by that?",
    "Yeah, but why is that so?", "Be quiet.", "I think you did not understand me.", "Shorter, please.",
)  # fmt: skip

_CROWD = (
    (0, "We went to the market on Saturday, and the weather was lovely, so we stayed there until the evening."),
    (1, "The meeting was moved to Thursday because half of the people could not come any earlier."),
    (2, "My brother has bought a new car, but he says that the old one was much more comfortable."),
    (3, "They are building a bridge over the river, and it should be ready before next summer."),
    (4, "I have never seen so many people in that little shop, and everybody wanted the same thing."),
)
"""Who babbles in the background, as (speaker, text)."""


def entries() -> list[Entry]:
    """The whole set, kind by kind."""
    found: list[Entry] = []

    def add(kind: Kind, expect: Expect, source: Source, words: str = "", background: Background | None = None) -> None:
        number = sum(entry.kind is kind for entry in found)
        after_s = 0.8 + 0.3 * (number % 4)
        found.append(
            Entry(f"{kind.value.replace(' ', '-')}-{number + 1:02}", kind, expect, source, words, background, after_s)
        )

    for kind, texts in ((Kind.QUESTION, _QUESTIONS), (Kind.PAUSE, _PAUSES), (Kind.HESITATION, _HESITATIONS)):
        for index, text in enumerate(texts):
            add(kind, Expect.ONE_TURN, Speech(text, index), parse(text)[0])
    for index, (text, noise, snr) in enumerate(_NOISY):
        add(Kind.NOISY, Expect.ONE_TURN, Speech(text, index), parse(text)[0], Background(noise, snr, index))
    for file, start, end, words in _RECORDED:
        add(Kind.RECORDED, Expect.ONE_TURN, Excerpt(file, start, end), words)
    for name, seed, level in _NOISES:
        add(Kind.NOISE, Expect.NO_TURN, Effect(name, seed, level))
    for name, seed, level in _NOISES:
        add(Kind.NOISE_IN_REPLY, Expect.NO_INTERRUPTION, Effect(name, seed + 20, level))
    for index, text in enumerate(_BACKCHANNELS):
        said: Source = Effect(text, index, -28.0) if text in EFFECTS else Speech(text, index, SPEECH_DB - 4)
        add(Kind.BACKCHANNEL, Expect.NO_INTERRUPTION, said)
    for index, text in enumerate(_INTERRUPTIONS):
        add(Kind.INTERRUPTION, Expect.INTERRUPTION, Speech(text, index), parse(text)[0])
    return found


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
    """Makes recordings of entries; what is spoken is kept in ``folder``. Raises :class:`NoVoice`."""

    def __init__(self, folder: Path, *, speech: Spoken | None = None) -> None:
        self.speech = speech or Spoken(folder)
        self.recordings = recordings()

    def possible(self, wanted: Iterable[Entry]) -> list[Entry]:
        """Those that can be made with what is installed."""
        return [entry for entry in wanted if self.recordings is not None or not isinstance(entry.source, Excerpt)]

    def record(self, wanted: Sequence[Entry]) -> list[Recording]:
        """The sounds of ``wanted``."""
        texts = [
            (entry.source.speaker, parse(entry.source.text)[0]) for entry in wanted if isinstance(entry.source, Speech)
        ]
        self.speech.make([*texts, *_CROWD])
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
            assert self.recordings is not None, "only what is possible can be recorded"
            whole = read_wav(self.recordings / source.file)
            sound = whole[int(source.start_s * SOUND_RATE) : int(source.end_s * SOUND_RATE)]
            sound, spans = with_pauses(sound, " ", [])
            voice = source.file
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
        crowd = [self.speech.get(speaker, text) for speaker, text in _CROWD]
        turned = seed % len(crowd)
        return babble(crowd[turned:] + crowd[:turned])
