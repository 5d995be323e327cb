"""What is measured of a spoken text, as pure functions of its sound, and of what a transcriber heard.

A **failure** is one of: ``loop``, three words or more in a row that were heard and are not the text's, but repeat what
stands a little before or after them; ``skip``, more than two words in a row inside the text that were not heard;
``early end``, more than two words at the end that were not heard; ``long``, more than 1.5 times the teacher's length.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from voicechat.bench.measures import first_audible, last_voiced
from voicechat.train.transcripts import MOST_REPEATED, Compared

Floats = npt.NDArray[np.float32]

MOST_SKIPPED = 2
MOST_LENGTH = 1.5
FAILURES = ("loop", "skip", "early end", "long")


def failures(compared: Compared, samples: int, teacher_samples: int | None) -> tuple[str, ...]:
    """Kinds of failure of one sound; ``long`` only if the teacher's length is known."""
    found = {
        "loop": compared.looped > MOST_REPEATED,
        "skip": compared.skipped > MOST_SKIPPED,
        "early end": compared.lost_end > MOST_SKIPPED,
        "long": bool(teacher_samples) and samples > MOST_LENGTH * (teacher_samples or 0),
    }
    return tuple(kind for kind in FAILURES if found[kind])


def spoken_seconds(samples: Floats, rate: int) -> float:
    """Seconds from the first audible to the last voiced sample of float32 ``[n]``."""
    first, last = first_audible(samples), last_voiced(samples, rate)
    return (last - first) / rate if first is not None and last is not None and last > first else 0.0
