"""A cascade for tests of the faces: no model, the same answer to the same question, real timing."""

from voicechat.bench.cascade_double import TONE_HZ, TONE_LEVEL, DoubleCascade, DoubleResponse, tone

__all__ = ["TONE_HZ", "TONE_LEVEL", "DoubleCascade", "DoubleResponse", "tone"]
