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
    ``certain_ms`` are a barge-in, whatever the words. ``afterthought_ms`` of silence after a backchannel tell that no
    "but" follows. A held reply waits at most ``undecided_ms`` after the last voice for the ASR.
    """

    server_onset_ms: int = 160
    server_window_ms: int = 320
    client_onset_ms: int = 100
    client_window_ms: int = 160
    judge_ms: int = 400
    judge_again_ms: int = 300
    certain_ms: int = 1000
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
    """Milliseconds of silence that end a turn, for one ``eagerness`` of the protocol.

    By both, sound and words: ``sure_ms`` if they agree that the turn is complete, ``words_ms`` or ``sound_ms`` if only
    the one says so. Where nobody judges the sound: ``finished_ms`` and ``unfinished_ms``, by the words. Whatever they
    say: ``limit_ms``. The sound is first judged after ``judge_ms``: while the ASR still hears the words, before the
    reply needs the processor.
    """

    judge_ms: int
    sure_ms: int
    words_ms: int
    sound_ms: int
    finished_ms: int
    unfinished_ms: int
    limit_ms: int


@dataclass(frozen=True, slots=True)
class EndpointingPolicy:
    """When a pause is the end, in ``semantic_vad``; a :class:`Patience` for each eagerness, whose limits are OpenAI's.

    ``sure`` and ``unsure`` are the probabilities from which, and up to which, the sound says all that it can say. While
    a long silence goes on, the sound is judged again after ``again_ms``. ``made_up_ms`` of silence make a judgement
    better: what is lacking of it yet is made up, for if the speaker goes on, the judgement is void anyway.
    """

    low: Patience = Patience(300, 700, 1700, 2400, 700, 2500, 8000)
    medium: Patience = Patience(100, 500, 760, 1000, 420, 1300, 4000)
    auto: Patience = Patience(100, 500, 760, 1000, 420, 1300, 4000)
    high: Patience = Patience(100, 240, 500, 600, 240, 700, 2000)
    sure: float = 0.75
    unsure: float = 0.05
    again_ms: tuple[int, ...] = (1000, 2000, 4000)
    made_up_ms: int = 240

    def patience(self, eagerness: Eagerness) -> Patience:
        """Of an eagerness."""
        found: Patience = getattr(self, eagerness)
        return found

    def by_both(self, eagerness: Eagerness, probability: float, complete: bool) -> int:
        """Silence that ends a turn. ``probability``: that it is complete by its sound; ``complete``: by its words."""
        patience = self.patience(eagerness)
        most, least = (patience.words_ms, patience.sure_ms) if complete else (patience.limit_ms, patience.sound_ms)
        doubt = min(1.0, max(0.0, (self.sure - probability) / (self.sure - self.unsure)))
        return round(least + (most - least) * doubt**1.5)


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
