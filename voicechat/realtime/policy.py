"""How turns are taken: every time and threshold of it, as one frozen value. Pure.

The server's settings (``turns:`` in :mod:`voicechat.config`) are the same tree; what each field means is told there and
here. All times are milliseconds and are rounded up to whole frames of 20 ms.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Literal

from voicechat.contract.sound import FRAME_MS

Eagerness = Literal["low", "medium", "high", "auto"]


@dataclass(frozen=True, slots=True)
class SegmenterSettings:
    """How frames become turns.

    ``onset_ms`` of voice within ``onset_window_ms`` open a turn; ``strict_onset_ms`` within ``strict_window_ms`` are
    needed while a reply is heard, so that a cough does not: it is only suspected to be speech, for at most
    ``suspect_ms``, and dismissed after ``dismiss_ms`` without voice, more than some speakers rest after a short word
    ("Wait, what about …"). A turn with less voice than ``min_speech_ms`` is discarded. ``prefix_ms`` of sound before
    the first voiced frame belong to the turn, which may be over after ``pause_ms`` of silence, and is after
    ``silence_ms``; ``resume_ms`` of voice end a pause. After ``max_turn_ms`` a turn is cut.
    """

    silence_ms: int = 500
    pause_ms: int = 160
    prefix_ms: int = 300
    onset_ms: int = 60
    onset_window_ms: int = 120
    strict_onset_ms: int = 240
    strict_window_ms: int = 400
    suspect_ms: int = 800
    dismiss_ms: int = 400
    resume_ms: int = 40
    min_speech_ms: int = 120
    max_turn_ms: int = 60_000

    def __post_init__(self) -> None:
        for name in ("silence_ms", "pause_ms", "onset_ms", "strict_onset_ms", "resume_ms", "max_turn_ms", "dismiss_ms"):
            if getattr(self, name) < FRAME_MS:
                raise ValueError(f"{name} must be at least {FRAME_MS}")
        for name in ("prefix_ms", "min_speech_ms"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
        if self.onset_window_ms < self.onset_ms or self.strict_window_ms < self.strict_onset_ms:
            raise ValueError("an onset window must not be shorter than its onset")


@dataclass(frozen=True, slots=True)
class BargeInPolicy:
    """What it takes to interrupt a reply.

    With a detector of speech that coughs do not fool, less voice opens a turn in a reply than by
    :class:`SegmenterSettings`: where the server plays, the reply is held at the first sign of speech and little is lost
    by being sure (``server_onset_ms`` within ``server_window_ms``); where the client plays, the reply is heard until
    the client is told (``client_onset_ms``, ``client_window_ms``).

    So much voice in a reply is heard for what it means: ``judge_ms``, and again after ``judge_again_ms`` more;
    ``certain_ms`` are a barge-in, twice as much if all that was understood of it is a backchannel. ``afterthought_ms``
    of silence after a backchannel tell that no "but" follows. A held reply waits at most ``undecided_ms`` after the
    last voice for the ASR.

    What is short is often misheard: a partial transcript must have ``partial_words`` different words that no listener
    says to be a barge-in, one less if with one of them speakers take the floor ("stop"); and what was said before a
    pause, if it is less voice than ``short_ms``, ``short_words``, or such a word. The reply is silent meanwhile.
    """

    server_onset_ms: int = 160
    server_window_ms: int = 320
    client_onset_ms: int = 100
    client_window_ms: int = 160
    judge_ms: int = 400
    judge_again_ms: int = 300
    certain_ms: int = 1200
    short_ms: int = 900
    short_words: int = 2
    partial_words: int = 3
    afterthought_ms: int = 480
    undecided_ms: int = 500


@dataclass(frozen=True, slots=True)
class PartialPolicy:
    """When the open turn is heard ahead: at ``silence_ms`` of silence, for its text so far and in case that this is its
    end, but not more often than every ``every_ms``; and after ``speech_ms`` without such a silence, if the client wants
    partial transcripts."""

    silence_ms: int = 60
    every_ms: int = 500
    speech_ms: int = 3000


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait in a pause, for one ``eagerness`` of the protocol.

    A turn ends when the ``risk`` that its speaker goes on is no more than this, after ``least_ms`` of silence and
    before ``limit_ms``; if its words make a whole, before ``complete_ms``. The sound is first judged after
    ``judge_ms``: while the ASR still hears the words, before the response needs the processor. Until anything is known
    of the pause, ``unknown_ms`` of silence end the turn. While nothing of the response could be heard anyway, and until
    the words are known, it costs nothing to listen on: up to ``awaiting_ms``.
    """

    judge_ms: int
    least_ms: int
    risk: float
    complete_ms: int
    awaiting_ms: int
    unknown_ms: int
    limit_ms: int

    def __post_init__(self) -> None:
        if not 0 < self.risk < 1:
            raise ValueError(f"risk must be between 0 and 1, not {self.risk}")
        if not FRAME_MS <= self.least_ms <= self.complete_ms <= self.awaiting_ms <= self.limit_ms:
            raise ValueError("least_ms, complete_ms, awaiting_ms and limit_ms must be in this order")


@dataclass(frozen=True, slots=True)
class EndpointingPolicy:
    """When a pause is the end, in ``semantic_vad``: a :class:`Patience` for each eagerness, whose limits are OpenAI's.

    While a long silence goes on, the sound is judged again after ``again_ms``. ``made_up_ms`` of silence make a
    judgement better: what is lacking of it yet is made up, for if the speaker goes on, the judgement is void anyway.

    An end is taken back if the user goes on within ``retake_ms`` of the last voice, before ``retake_heard_ms`` of the
    reply have been heard; 0: never.
    """

    low: Patience = Patience(300, 700, 0.02, 1600, 1700, 2500, 8000)
    medium: Patience = Patience(100, 320, 0.15, 620, 680, 1300, 4000)
    auto: Patience = Patience(100, 320, 0.15, 620, 680, 1300, 4000)
    high: Patience = Patience(100, 240, 0.3, 440, 500, 700, 2000)
    again_ms: tuple[int, ...] = (1000, 2000, 4000)
    made_up_ms: int = 240
    retake_ms: int = 900
    retake_heard_ms: int = 400

    def patience(self, eagerness: Eagerness) -> Patience:
        """Of an eagerness."""
        found: Patience = getattr(self, eagerness)
        return found


@dataclass(frozen=True, slots=True)
class TurnPolicy:
    """All of it. ``language`` is the user's where the session does not say."""

    language: str = "en"
    segmenter: SegmenterSettings = field(default_factory=SegmenterSettings)
    barge_in: BargeInPolicy = field(default_factory=BargeInPolicy)
    partials: PartialPolicy = field(default_factory=PartialPolicy)
    endpointing: EndpointingPolicy = field(default_factory=EndpointingPolicy)

    def with_speech_detector(self, *, server_plays: bool) -> TurnPolicy:
        """For a session whose voice activity detector is not fooled by coughs: less voice opens a turn in a reply."""
        asked = self.barge_in
        onset, window = (
            (asked.server_onset_ms, asked.server_window_ms)
            if server_plays
            else (asked.client_onset_ms, asked.client_window_ms)
        )
        strict = dataclasses.replace(self.segmenter, strict_onset_ms=onset, strict_window_ms=window)
        return dataclasses.replace(self, segmenter=strict)
