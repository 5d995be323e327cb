"""How likely a pause is the end of the turn, by how it sounds and by what was said: a logistic regression. Pure.

The weights are data (``endpointing.json``, with what they were fitted to); ``voicechat.bench.fit_endpointing`` makes
them. From the probability follows how long to wait, by a hazard model: of the pauses that are no ends, the share that
still lasts falls exponentially with the silence, so that the odds of an end grow as much. A turn ends when the risk of
cutting the speaker off has fallen to what the ``eagerness`` allows.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from voicechat.realtime.lexicon import Lexicon

FEATURES = ("bias", "sound", "complete", "complete and sound", "question", "open end", "words")
"""Of a pause: the logit of the probability by sound, whether the words make a whole, both at once, whether they end in
a question mark, whether they end in no mark or in one that is no end, and the logarithm of their number."""

_MOST = 5.0


@dataclass(frozen=True, slots=True)
class EndpointModel:
    """``both``, ``by_words`` and ``by_sound``: weights of :data:`FEATURES` where so much is known. Of the pauses that
    are no ends, those that last ``from_ms`` last ``hold_ms`` longer on average."""

    both: tuple[float, ...]
    by_words: tuple[float, ...]
    by_sound: tuple[float, ...]
    from_ms: float
    hold_ms: float

    def logit(self, text: str | None, sound: float | None, lexicon: Lexicon) -> float | None:
        """Of the probability that the pause is the end. ``text``: what was said; ``sound``: the probability that it is
        complete by its sound; None: not known. None if nothing is known."""
        if text is None and sound is None:
            return None
        weights = self.by_sound if text is None else self.by_words if sound is None else self.both
        values = features(text or "", 0.5 if sound is None else sound, lexicon)
        return math.fsum(weight * value for weight, value in zip(weights, values, strict=True))

    def silence_ms(self, logit: float, risk: float) -> float:
        """Silence after which the risk that the speaker goes on has fallen to ``risk``."""
        return self.from_ms + self.hold_ms * (math.log((1 - risk) / risk) - logit)


def features(text: str, sound: float, lexicon: Lexicon) -> tuple[float, ...]:
    """:data:`FEATURES` of a pause."""
    sure = min(max(sound, 1e-6), 1 - 1e-6)
    logit = min(max(math.log(sure / (1 - sure)), -_MOST), _MOST)
    text = text.strip()
    complete = float(lexicon.is_complete(text))
    question = float(text.endswith(("?", "？")))
    open_end = float(not text.endswith((".", "!", "?", "。", "！", "？")) or text.endswith("..."))
    return (1.0, logit, complete, complete * logit, question, open_end, math.log1p(len(text.split())))


def parse(data: Mapping[str, Any]) -> EndpointModel:
    """A model of the fields of a file. Raises ValueError or KeyError if it is of another version."""
    if tuple(data["features"]) != FEATURES:
        raise ValueError(f"the weights are of other features: {data['features']}")
    weights = {name: tuple(map(float, data["weights"][name])) for name in ("both", "by_words", "by_sound")}
    if any(len(values) != len(FEATURES) for values in weights.values()):
        raise ValueError("not every feature has a weight")
    return EndpointModel(**weights, from_ms=float(data["from_ms"]), hold_ms=float(data["hold_ms"]))


@functools.cache
def endpoint_model() -> EndpointModel:
    """The one that comes with the package, read once at first use."""
    text = resources.files("voicechat.realtime").joinpath("endpointing.json").read_text(encoding="utf-8")
    return parse(json.loads(text))
