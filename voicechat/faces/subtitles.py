"""What was heard in a file, as OpenAI's formats show it: text, subtitles, segments and words."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from voicechat.contract.hearing import HeardWord, Transcription

SENTENCE_ENDS = ".?!。？！"
PAUSES = ",;:、，"
LONG_CHARACTERS = 84
"""Two lines of subtitles; a longer segment ends with the next word that ends a clause, or at the latest"""
MOST_CHARACTERS = 126
PAUSE_S = 0.8
"""A pause between words that ends a segment."""
_NAMES = {
    "ar": "arabic", "bg": "bulgarian", "ca": "catalan", "cs": "czech", "da": "danish", "de": "german", "el": "greek",
    "en": "english", "es": "spanish", "et": "estonian", "fa": "persian", "fi": "finnish", "fr": "french",
    "he": "hebrew", "hi": "hindi", "hr": "croatian", "hu": "hungarian", "id": "indonesian", "it": "italian",
    "ja": "japanese", "ko": "korean", "lt": "lithuanian", "lv": "latvian", "nl": "dutch", "no": "norwegian",
    "pl": "polish", "pt": "portuguese", "ro": "romanian", "ru": "russian", "sk": "slovak", "sl": "slovenian",
    "sr": "serbian", "sv": "swedish", "th": "thai", "tr": "turkish", "uk": "ukrainian", "ur": "urdu",
    "vi": "vietnamese", "zh": "chinese",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Spoken:
    """A piece of a file in which somebody spoke, from ``begin_s`` to ``end_s``, and what was heard in it.

    Words have the times of the piece.
    """

    begin_s: float
    end_s: float
    heard: Transcription

    def words(self) -> list[HeardWord]:
        """With the times of the file."""
        return [
            HeardWord(word.text, round(self.begin_s + word.start_s, 2), round(self.begin_s + word.end_s, 2))
            for word in self.heard.words
        ]


@dataclass(frozen=True, slots=True)
class Segment:
    """About a sentence. Times in seconds of the file."""

    start_s: float
    end_s: float
    text: str
    heard: Transcription


def language_name(code: str) -> str:
    """As OpenAI writes it: ``english``; the code of a language that has no name here."""
    return _NAMES.get(code, code)


def segments(spoken: Sequence[Spoken]) -> list[Segment]:
    """Sentences, or what is short enough to be read at once; whole pieces where words have no times."""
    found = []
    for piece in spoken:
        words = piece.words()
        if not words:
            found.append(Segment(round(piece.begin_s, 2), round(piece.end_s, 2), piece.heard.text, piece.heard))
            continue
        begin = 0
        for index, word in enumerate(words):
            if index + 1 == len(words) or _ends(words[begin : index + 1], words[index + 1]):
                text = " ".join(each.text for each in words[begin : index + 1])
                found.append(Segment(words[begin].start_s, word.end_s, text, piece.heard))
                begin = index + 1
    return found


def _ends(words: Sequence[HeardWord], following: HeardWord) -> bool:
    last = words[-1]
    characters = sum(len(word.text) + 1 for word in words)
    return (
        (last.text[-1] in SENTENCE_ENDS and len(words) > 1)
        or following.start_s - last.end_s >= PAUSE_S
        or characters >= MOST_CHARACTERS
        or (characters >= LONG_CHARACTERS and last.text[-1] in PAUSES)
    )


def whole_text(spoken: Sequence[Spoken]) -> str:
    """All that was said."""
    return " ".join(piece.heard.text for piece in spoken)


def srt(spoken: Sequence[Spoken]) -> str:
    """SubRip."""
    return "".join(
        f"{number}\n{_time(segment.start_s, ',')} --> {_time(segment.end_s, ',')}\n{segment.text}\n\n"
        for number, segment in enumerate(segments(spoken), 1)
    )


def vtt(spoken: Sequence[Spoken]) -> str:
    """WebVTT (https://www.w3.org/TR/webvtt1/), in which ``-->``, ``&`` and ``<`` are no text."""
    cues = (
        f"{_time(segment.start_s, '.')} --> {_time(segment.end_s, '.')}\n"
        f"{segment.text.replace('&', '&amp;').replace('<', '&lt;').replace('>', '&gt;')}\n\n"
        for segment in segments(spoken)
    )
    return "WEBVTT\n\n" + "".join(cues)


def verbose(
    spoken: Sequence[Spoken], *, task: str, duration_s: float, granularities: Sequence[str], temperature: float
) -> dict[str, Any]:
    """OpenAI's ``verbose_json``, without the usage. There are no numbers of tokens, for other ears have other ones."""
    language = next((piece.heard.language for piece in spoken if piece.heard.language), "")
    body: dict[str, Any] = {
        "task": task,
        "language": language_name(language),
        "duration": round(duration_s, 2),
        "text": whole_text(spoken),
    }
    if "segment" in granularities:
        body["segments"] = [
            {
                "id": number,
                "seek": round(segment.start_s * 100),
                "start": segment.start_s,
                "end": segment.end_s,
                "text": segment.text,
                "tokens": [],
                "temperature": temperature,
                "avg_logprob": segment.heard.log_probability,
                "compression_ratio": _compression(segment.text),
                "no_speech_prob": segment.heard.no_speech,
            }
            for number, segment in enumerate(segments(spoken))
        ]
    if "word" in granularities:
        body["words"] = [
            {"word": word.text, "start": word.start_s, "end": word.end_s} for piece in spoken for word in piece.words()
        ]
    return body


def _compression(text: str) -> float:
    data = text.encode()
    return len(data) / len(zlib.compress(data)) if data else 1.0


def _time(seconds: float, point: str) -> str:
    total = round(seconds * 1000)
    return f"{total // 3_600_000:02d}:{total // 60_000 % 60:02d}:{total // 1000 % 60:02d}{point}{total % 1000:03d}"
