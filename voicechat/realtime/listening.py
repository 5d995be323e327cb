"""What is made of a turn while it is open: its text so far, whether it is over, and the reply begun ahead. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from voicechat.contract.sound import EARS_RATE, FRAME_MS, EarsPcm
from voicechat.realtime.captions import Captions
from voicechat.realtime.endpoint import Endpoint
from voicechat.realtime.judgement import (
    AFTERTHOUGHT_MS,
    INTERRUPTION_MS,
    JUDGE_MS,
    JUDGE_ON_MS,
    PATIENCE,
    is_listening,
    may_go_on,
)
from voicechat.realtime.outbox import Clip

if TYPE_CHECKING:
    from voicechat.realtime.session import Session

TRANSCRIPTION = "conversation.item.input_audio_transcription"

PROBE_MS = 60
"""Silence at which an open turn is heard ahead: for its text so far, and in case that this is its end."""

PROBE_EVERY_S = 0.5
"""So often at most."""

CAPTION_EVERY_S = 3.0
"""Who speaks for so long without such a silence is heard ahead all the same, if the client wants to read along."""

UNDECIDED_MS = 500
"""A reply waits at most so long, after the last voice, to learn what that was; then it was an interruption."""


class Listening:
    """Follows the open turn of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._endpoint = Endpoint(session.out, judged=session.limits.judged)
        self._captions = Captions()
        self._begun = 0.0
        self._probed: float | None = None  # when the turn was last heard ahead
        self._question_at = JUDGE_MS
        self._waiting = False  # only for the reply
        self._murmured = False  # a word of a listener, if nothing follows it

    def begin(self) -> None:
        """A turn has opened."""
        self._captions, self._probed, self._murmured = Captions(), None, False
        self._begun = self._session.out.now
        self._question_at = JUDGE_MS

    def end(self) -> Captions:
        """The turn is over, or was none: what was told of its text."""
        self.resume()
        self._session.ears.drop_probe()
        captions, self._captions = self._captions, Captions()
        return captions

    def resume(self) -> None:
        """The speaker goes on after a pause."""
        self._endpoint.resume()
        self._murmured = False

    def frame(self) -> None:
        """Another frame of the turn was taken: hear it ahead at a short silence, judge a longer one."""
        session = self._session
        silence, detection = session.turns.silence_ms, session.config.detection
        if silence == 0:
            session.ears.speak_on()
            self._endpoint.resume()
            if session.playback.held or session.replies.suspended:
                self._question()
            elif session.config.transcription and self._speaks_on():
                self._probe()
                session.ears.speak_on()
        elif session.weighing and (self._too_little(silence) or self._all_said(silence)):
            self._was_nothing()
        elif silence >= UNDECIDED_MS and session.playback.held:
            session.yield_to_user()  # the ears are late
        elif detection is not None and self._may_judge() and self._endpoint.due(silence, detection.eagerness):
            self._endpoint.judge(session.turns.sound(), silence)
        elif PROBE_MS <= silence < PROBE_MS + FRAME_MS and self._may_probe():
            self._probe()

    def pause(self, turn: EarsPcm) -> None:
        """The speaker pauses after ``turn`` (float32 mono 16 kHz)."""
        ears = self._session.ears
        if self._semantic:
            self._expect_end()
        if not ears.adopt():
            ears.guess(Clip(turn, EARS_RATE))
        elif ears.guessed is not None:
            self._guessed(ears.guessed)

    def heard(self, job: int, text: str) -> None:
        """The ears have heard ``text`` for nobody who waits: ahead."""
        if self._session.ears.is_guess(job):
            self._guessed(text)
        elif self._session.ears.is_probe(job):
            if self._session.weighing and not is_listening(text):
                self._session.yield_to_user()
            self._tell(text)

    def failed(self, job: int) -> None:
        """The ears could not hear ahead."""
        session = self._session
        if session.ears.is_guess(job):
            self._endpoint.on_words(None)
            self._expect_end()
            if session.weighing:
                session.yield_to_user()  # it can't be judged

    def drafted(self) -> None:
        """More has come of the reply that was begun ahead."""
        if self._session.turns.speaking and self._waiting and not self._session.replies.unready:
            self._expect_end()

    def judged(self, job: int, probability: float | None) -> None:
        """How likely the turn is over by its sound; None if it could not be judged."""
        if self._endpoint.on_sound(job, probability):
            self._expect_end()

    def _question(self) -> None:
        """The speaker goes on in a reply that waits: is it a word of a listener, or an interruption? The ears say. A
        client that has not told by now where it stopped is none that stops."""
        session = self._session
        voice = session.turns.voiced_ms
        if voice >= (INTERRUPTION_MS if session.weighing else JUDGE_MS):
            session.yield_to_user()
        elif voice >= self._question_at:
            self._question_at = voice + JUDGE_ON_MS
            self._probe()
            session.ears.speak_on()

    def _probe(self) -> None:
        """Hear the turn up to now."""
        self._probed = self._session.out.now
        self._session.ears.probe(Clip(self._session.turns.sound(), EARS_RATE))

    def _speaks_on(self) -> bool:
        last = self._begun if self._probed is None else self._probed
        return self._session.out.now - last >= CAPTION_EVERY_S

    def _too_little(self, silence_ms: int) -> bool:
        """True if a pause follows so little voice that it can't be a turn."""
        turns = self._session.limits.turns
        return silence_ms >= turns.pause_ms and self._session.turns.voiced_ms < turns.min_speech_ms

    def _all_said(self, silence_ms: int) -> bool:
        """True if nothing follows a word of a listener; that is decided before the silence ends the turn."""
        detection, base = self._session.config.detection, self._session.limits.turns
        ends_ms = base.silence_ms if detection is None else detection.turn_settings(base).silence_ms
        return self._murmured and silence_ms >= min(AFTERTHOUGHT_MS, ends_ms - FRAME_MS)

    def _was_nothing(self) -> None:
        """What was said is no turn: a reply that waits for it goes on."""
        session = self._session
        session.nothing = True
        session.playback.release()
        session.turns.expect_end(0)

    @property
    def _semantic(self) -> bool:
        detection = self._session.config.detection
        return detection is not None and detection.kind == "semantic_vad"

    def _may_probe(self) -> bool:
        """It is of use, the turn has words, and the last time was long ago."""
        session = self._session
        if not (self._semantic or session.config.transcription):
            return False
        return self._has_words() and (self._probed is None or session.out.now - self._probed >= PROBE_EVERY_S)

    def _may_judge(self) -> bool:
        """It is of use, and the turn has words."""
        return self._semantic and self._has_words()

    def _has_words(self) -> bool:
        return self._session.turns.voiced_ms >= self._session.limits.turns.min_speech_ms

    def _guessed(self, text: str) -> None:
        """The speaker pauses after ``text``: was it meant as an interruption? Is it the end?"""
        session = self._session
        if session.weighing and is_listening(text):
            self._murmured = True
            if not may_go_on(text) or self._all_said(session.turns.silence_ms):
                self._was_nothing()
        elif session.weighing or session.replies.suspended:
            session.yield_to_user()
        self._endpoint.on_words(text)
        self._tell(text)
        detection = session.config.detection
        creates = detection is not None and detection.create_response
        if text and creates and session.limits.eager and session.owed is None:
            session.replies.foresee(session.spec(), text)
        self._expect_end()

    def _expect_end(self) -> None:
        """Let the turn end after as much silence as is enough; but while nothing of the reply could be heard anyway, it
        costs no time to listen a little longer."""
        session = self._session
        detection = session.config.detection
        if detection is None or not self._semantic or session.nothing or self._murmured:
            return
        enough = self._endpoint.enough(detection.eagerness)
        self._waiting = session.replies.unready
        if self._waiting:
            enough = max(enough, PATIENCE[detection.eagerness].words_ms)
        session.turns.expect_end(enough)

    def _tell(self, text: str) -> None:
        """Tell what is certain of the open turn's text."""
        session = self._session
        if session.config.transcription is None or session.weighing or session.nothing:
            return
        if piece := self._captions.hear(text):
            session.out.send(f"{TRANSCRIPTION}.delta", item_id=session.item_id, content_index=0, delta=piece)
