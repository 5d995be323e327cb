"""Is the turn over? Two voices are heard on every pause: how it sounded, and what was said. Pure.

The turn detector judges by the sound and says how likely it is that the turn is complete; the words say whether they
make a whole. If both are for it, the turn ends soon; if both are against it, the speaker has until the limit of the
``eagerness``; if they differ, something between. While a long silence goes on, the sound is judged again; as any sound
seems complete after enough silence, the first judgement counts as much as the newest.
"""

from __future__ import annotations

import numpy as np

from voicechat.contract.sound import EARS_RATE, EarsPcm
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
        self._words: bool | None = None

    def resume(self) -> None:
        """The speaker goes on, or the turn has ended: nothing that was asked for matters any more."""
        if self._job is not None:
            self._out.add(CancelJudge(self._job))
        self._job = self._first = self._sound = self._words = None
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
        self._words = text is not None and lexicon.is_complete(text)

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
        words = bool(self._words)
        if self._sound is not None:
            return self._policy.by_both(eagerness, self._sound, words)
        patience = self._policy.patience(eagerness)
        return patience.finished_ms if words and not self._judged else patience.unfinished_ms
