"""When a transcript can't be what was said: it is longer than its sound allows, or says the same again in no time.

Whisper's decoder sometimes misses the end of a sound and begins anew, more often in a window that is shorter than those
that it was trained on. The text is judged by itself and by its sound's length, so the rule is one for all forms of the
ears: :func:`doubtful` asks for another hearing with the whole window, :func:`kept` says what may be passed on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

MOST_PER_SECOND = 25.0
"""Characters that can be said in a second: half as many again as fast readers say (250 words a minute: 17 to 21)."""
SPARE = 40
"""Characters that a sound of no length may have: sounds are cut closely."""
REPEATED_PER_SECOND = 18.0
"""Characters a second of voice above which what is said twice was said once. Talk has 12 to 17, its double 24 to 34."""
LEAST_WORDS = 3
"""A phrase of fewer words may be said twice or three times in a row: "no, no, no", "thank you, thank you"."""
MOST_SHORT_COPIES = 3
LIKE_WORDS = 5
"""Of so many words one may differ between the copies: "about Wales", "about whales"."""
LONGEST_WORDS = 15
"""A text whose words have more characters than this on average is of a script without spaces."""
VOICE_BELOW_DB = 35.0
"""Voice is what is no further than this below the loud parts of a sound."""
_FRAME = 320

Pcm = npt.NDArray[np.float32]


def doubtful(text: str) -> bool:
    """True for a text that says a phrase several times in a row, so that another hearing is worth its time."""
    return _repetition([_plain(unit) for unit in units(text)[0]]) is not None


def kept(words: Sequence[str], seconds: float, voiced: float) -> list[int]:
    """Which of the words may be passed on, by number, heard in ``seconds`` of sound of which ``voiced`` hold voice.

    What is repeated faster than anybody speaks is there once; of a text that is too long all the same, nothing.
    """
    left = list(range(len(words)))
    while sum(len(words[index]) + 1 for index in left) > REPEATED_PER_SECOND * voiced:
        if (found := _repetition([_plain(words[index]) for index in left])) is None:
            break
        begin, length, copies = found
        del left[begin + length : begin + length * copies]
    return left if sum(len(words[index]) + 1 for index in left) <= SPARE + MOST_PER_SECOND * seconds else []


def units(text: str) -> tuple[list[str], str]:
    """Words, and what stands between them; characters where a script has no spaces."""
    words = text.split()
    return (words, " ") if len(text) <= LONGEST_WORDS * len(words) else (list(text), "")


def voiced_seconds(pcm: Pcm) -> float:
    """Seconds of float32 sound at 16 kHz that are not much quieter than its loud parts."""
    frames = len(pcm) // _FRAME
    if not frames:
        return len(pcm) / (50 * _FRAME)
    power = np.square(pcm[: frames * _FRAME].reshape(frames, _FRAME)).mean(1)
    loud = float(np.quantile(power, 0.95))
    return float((power > loud * 10 ** (-VOICE_BELOW_DB / 10)).sum()) / 50


def _plain(word: str) -> str:
    """A word without case and punctuation; what has no letters is like itself alone."""
    return "".join(filter(str.isalnum, word)).casefold() or word


def _repetition(words: Sequence[str]) -> tuple[int, int, int] | None:
    """Begin, length in words and number of the copies of the shortest phrase that follows itself too often."""
    for length in range(1, len(words) // 2 + 1):
        for begin in range(len(words) - 2 * length + 1):
            first = words[begin : begin + length]
            copies = 1
            while _alike(first, words[begin + copies * length : begin + (copies + 1) * length]):
                copies += 1
            if copies > (MOST_SHORT_COPIES if length < LEAST_WORDS else 1):
                return begin, length, copies
    return None


def _alike(first: Sequence[str], other: Sequence[str]) -> bool:
    if len(other) < len(first):
        return False
    return sum(one != two for one, two in zip(first, other, strict=True)) <= len(first) // LIKE_WORDS
