"""The endpointing model: its weights, and what follows from them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voicechat.realtime.endpoint_model import FEATURES, EndpointModel, endpoint_model, features, parse
from voicechat.realtime.lexicon import lexicon

ENGLISH = lexicon("en")
MODEL = EndpointModel((0.0, 1.0, 2.0, 0.0, 0.0, -1.0, 0.0), (0.5, *[0.0] * 6), (0.0, 1.0, *[0.0] * 5), 200.0, 300.0)
"""Simple enough to be reckoned with by hand."""


def test_the_silence_by_hand():
    assert MODEL.logit("I see it.", 0.5, ENGLISH) == pytest.approx(2.0)
    assert MODEL.logit("It", 0.5, ENGLISH) == pytest.approx(-1.0)
    assert MODEL.logit("I see it.", None, ENGLISH) == 0.5
    assert MODEL.logit(None, 0.8, ENGLISH) == pytest.approx(math.log(4))
    assert MODEL.logit(None, None, ENGLISH) is None
    assert MODEL.silence_ms(0.0, 0.5) == 200, "even odds, and so much risk is allowed"
    assert MODEL.silence_ms(0.0, 0.1) == pytest.approx(200 + 300 * math.log(9))
    assert MODEL.silence_ms(math.log(9), 0.1) == pytest.approx(200)


@given(st.floats(-8, 8), st.floats(0.01, 0.9))
def test_after_the_silence_the_risk_is_what_is_allowed(logit, risk):
    """By its own assumption: of the pauses that are no ends, exp(-s/h) last s longer."""
    lasting = math.exp(-(MODEL.silence_ms(logit, risk) - MODEL.from_ms) / MODEL.hold_ms)
    assert lasting / (lasting + math.exp(logit)) == pytest.approx(risk)


def test_the_model_that_comes_along_says_what_it_was_fitted_to():
    model = endpoint_model()
    whole, part = (model.logit(text, 0.5, ENGLISH) for text in ("What is the capital of Peru?", "What is the"))
    assert whole > 0 > part
    assert model.logit("What is the capital of Peru?", 0.99, ENGLISH) > model.logit(
        "What is the capital of Peru?", 0.01, ENGLISH
    )
    assert 100 < model.hold_ms < 1000


@given(st.text(max_size=40), st.floats(0, 1))
def test_every_text_has_features(text, sound):
    values = features(text, sound, ENGLISH)
    assert len(values) == len(FEATURES) and all(math.isfinite(value) for value in values)


def test_weights_of_other_features_are_refused():
    with pytest.raises(ValueError, match="other features"):
        parse({"features": ["bias"]})
    data = {"features": list(FEATURES), "weights": {name: [1.0] for name in ("both", "by_words", "by_sound")}}
    with pytest.raises(ValueError, match="every feature"):
        parse(data)
