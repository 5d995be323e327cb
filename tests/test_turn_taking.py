"""The settings ``turns`` and the policies that they become."""

from __future__ import annotations

import pytest

from voicechat.config import load_settings
from voicechat.config_sources import ConfigError
from voicechat.config_turns import TurnsSettings
from voicechat.media.vad import VadPolicy
from voicechat.realtime.policy import TurnPolicy
from voicechat.turn_taking import turn_policy, vad_policy


def test_the_defaults_are_those_of_the_policies() -> None:
    """What is told of a setting, its default, is what a session without settings does."""
    assert turn_policy(TurnsSettings()) == TurnPolicy()
    assert vad_policy(TurnsSettings()) == VadPolicy()


def test_settings_reach_the_policies() -> None:
    settings = load_settings(
        overrides=["turns.endpointing.auto.limit_ms=3000", "turns.vad.release=0.2", "turns.language=de"], environ={}
    ).turns
    assert turn_policy(settings).endpointing.patience("auto").limit_ms == 3000
    assert turn_policy(settings).language == "de"
    assert vad_policy(settings).release == 0.2


def test_what_contradicts_itself_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"turns\.endpointing\.auto\.risk"):
        load_settings(overrides=["turns.endpointing.auto.risk=1.5"], environ={})
    with pytest.raises(ValueError, match="in this order"):
        turn_policy(load_settings(overrides=["turns.endpointing.high.least_ms=900"], environ={}).turns)
    with pytest.raises(ValueError, match="onset window"):
        turn_policy(load_settings(overrides=["turns.segmenter.onset_ms=200"], environ={}).turns)
