"""Is the turn over? Two voices are heard on every pause: how it sounded, and what was said. Pure.

Smart Turn judges by the sound, the lexicon by the words, and the endpointing model says from both how likely this is
the end, and from that how much silence makes it certain enough. While a long silence goes on, the sound is judged
again; as any sound seems complete after enough silence, the first judgement counts as much as the newest.
"""

from __future__ import annotations

import numpy as np

from voicechat.contract.sound import EARS_RATE, EarsPcm
from voicechat.realtime.endpoint_model import endpoint_model
from voicechat.realtime.lexicon import Lexicon
from voicechat.realtime.outbox import CancelJudge, Clip, JudgeTurn, Outbox
from voicechat.realtime.policy import Eagerness, EndpointingPolicy


class Endpointer:
    """Judges one pause at a time; what comes late, of a pause that is over, is ignored. ``judged``: there is somebody
    who judges by the sound; else the words alone decide."""

    def __init__(self, out: Outbox, policy: EndpointingPolicy, *, judged: bool) -> None:
        self._out = out
        self._policy = policy
        self._judged = judged
        self._last = 0
        self._job: int | None = None
        self._asked = 0
        self._first: float | None = None
        self._sound: float | None = None
        self._text: str | None = None
        self._lexicon = Lexicon()

    def resume(self) -> None:
        """The speaker goes on, or the turn has ended: nothing that was asked for matters any more."""
        if self._job is not None:
            self._out.add(CancelJudge(self._job))
        self._job = self._first = self._sound = self._text = None
        self._asked = 0

    def due(self, silence_ms: int, eagerness: Eagerness) -> bool:
        """True if the sound is to be judged after so much silence. :meth:`judge` is to follow."""
        if not self._judged or self._job is not None:
            return False
        moments = (self._policy.patience(eagerness).judge_ms, *self._policy.again_ms)
        return self._asked < len(moments) and silence_ms >= moments[self._asked]

    def judge(self, turn: EarsPcm, silence_ms: int) -> None:
        """Judge by ``turn`` (float32 mono 16 kHz) with the silence at its end."""
        self._last += 1
        self._asked += 1
        self._job = self._last
        if (lacking := self._policy.made_up_ms - silence_ms) > 0:
            turn = np.pad(turn, (0, lacking * EARS_RATE // 1000))
        self._out.add(JudgeTurn(self._last, Clip(turn, EARS_RATE)))

    def on_words(self, text: str | None, lexicon: Lexicon) -> None:
        """What was said before the pause; None if it can't be known."""
        self._text, self._lexicon = text, lexicon

    def on_sound(self, job: int, probability: float | None) -> bool:
        """How likely the turn is complete by its sound; None if it can't be judged. False if nobody waits for it."""
        if job != self._job:
            return False
        self._job = None
        if probability is None:
            self._judged = False
            return True
        self._first = probability if self._first is None else self._first
        self._sound = (self._first + probability) / 2
        return True

    def enough(self, eagerness: Eagerness) -> int:
        """Milliseconds of silence that end the turn, by what is known yet; what is not known speaks for more."""
        patience, model = self._policy.patience(eagerness), endpoint_model()
        logit = model.logit(self._text, self._sound, self._lexicon)
        if logit is None or (self._judged and self._sound is None):
            return patience.unknown_ms
        least, most = patience.least_ms, patience.limit_ms
        if self._text is None:
            least = patience.awaiting_ms
        elif self._lexicon.is_complete(self._text):
            most = patience.complete_ms
        return round(min(max(model.silence_ms(logit, patience.risk), least), most))
