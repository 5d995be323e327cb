"""From the settings ``turns`` to the policies of the rooms that take turns."""

from __future__ import annotations

from voicechat.config_turns import EndpointingSection, TurnsSettings
from voicechat.media.vad import VadPolicy
from voicechat.realtime.policy import (
    BargeInPolicy,
    EndpointingPolicy,
    PartialPolicy,
    Patience,
    SegmenterSettings,
    TurnPolicy,
)


def turn_policy(settings: TurnsSettings) -> TurnPolicy:
    """How sessions take turns. Raises ValueError if two settings contradict each other."""
    return TurnPolicy(
        language=settings.language,
        segmenter=SegmenterSettings(**settings.segmenter.model_dump()),
        barge_in=BargeInPolicy(**settings.barge_in.model_dump()),
        partials=PartialPolicy(**settings.partials.model_dump()),
        endpointing=_endpointing(settings.endpointing),
    )


def vad_policy(settings: TurnsSettings) -> VadPolicy:
    """When a frame is voiced."""
    return VadPolicy(**settings.vad.model_dump())


def _endpointing(settings: EndpointingSection) -> EndpointingPolicy:
    patience = {name: Patience(**getattr(settings, name).model_dump()) for name in ("low", "medium", "auto", "high")}
    return EndpointingPolicy(**settings.model_dump() | patience)
