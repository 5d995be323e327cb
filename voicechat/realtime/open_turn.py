"""What is made of the user's turn while it is open: its text so far, whether it is over, whether it is a barge-in or a
backchannel, and the response begun ahead. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from voicechat.contract.sound import EARS_RATE, FRAME_MS, EarsPcm
from voicechat.realtime.endpointing import Endpointer
from voicechat.realtime.outbox import Clip
from voicechat.realtime.partial_transcript import PartialTranscript
from voicechat.realtime.turn_state import Cue, TurnState

if TYPE_CHECKING:
    from voicechat.realtime.session import Session

TRANSCRIPTION = "conversation.item.input_audio_transcription"


class OpenTurn:
    """Follows the open turn of a session; what it concludes moves the session's turn machine."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._policy = session.limits.policy
        self._endpointer = Endpointer(session.out, self._policy.endpointing, judged=session.limits.judged)
        self._told = PartialTranscript()
        self._begun = 0.0
        self._heard_ahead: float | None = None  # when the turn was last heard ahead
        self._question_at = 0
        self._murmurs = False  # the last partial transcript is a backchannel
        self._awaiting_response = False  # its end waits only for the response that was begun ahead

    def begin(self) -> None:
        """A turn has opened."""
        self._told, self._heard_ahead, self._murmurs = PartialTranscript(), None, False
        self._begun = self._session.out.now
        self._question_at = self._policy.barge_in.judge_ms

    def end(self) -> PartialTranscript:
        """The turn is over, or was none: what was told of its text."""
        self.resume()
        self._session.asr.drop_partial()
        told, self._told = self._told, PartialTranscript()
        return told

    def resume(self) -> None:
        """The speaker goes on after a pause."""
        self._endpointer.resume()

    def frame(self) -> None:
        """Another frame of the turn was taken: hear it ahead at a short silence, judge a longer one."""
        session = self._session
        silence, detection = session.input.silence_ms, session.config.detection
        if silence == 0:
            self._voice()
        elif session.weighing and (self._too_little(silence) or self._all_said(silence)):
            self._acknowledge()
        elif silence >= self._policy.barge_in.undecided_ms and session.playback.held:
            session.yield_to_user()  # the ASR is late
        elif detection is not None and self._may_judge() and self._endpointer.due(silence, detection.eagerness):
            self._endpointer.judge(session.input.sound(), silence)
        elif 0 <= silence - self._policy.partials.silence_ms < FRAME_MS and self._may_hear_ahead():
            self._hear_ahead()

    def pause(self, turn: EarsPcm) -> None:
        """The speaker pauses after ``turn`` (float32 mono 16 kHz)."""
        asr = self._session.asr
        if self._semantic:
            self._expect_end()
        if not asr.adopt():
            asr.suppose(Clip(turn, EARS_RATE))
        elif asr.hypothesis is not None:
            self._supposed(asr.hypothesis)

    def heard(self, job: int, text: str) -> None:
        """The ASR has heard ``text`` for nobody who waits: ahead."""
        session = self._session
        if session.asr.is_hypothesis(job):
            self._supposed(text)
        elif session.asr.is_partial(job):
            self._murmurs = session.lexicon.is_backchannel(text)
            needed = self._policy.barge_in.partial_words - session.lexicon.takes_floor(text)
            if session.weighing and session.lexicon.other_words(text) >= needed:
                session.yield_to_user()
            self._tell(text)

    def failed(self, job: int) -> None:
        """The ASR could not hear ahead."""
        session = self._session
        if session.asr.is_hypothesis(job):
            self._endpointer.on_words(None, session.lexicon)
            self._expect_end()
            if session.weighing:
                session.yield_to_user()  # it can't be judged

    def drafted(self) -> None:
        """More has come of the response that was begun ahead."""
        if self._session.turn.open and self._awaiting_response and not self._session.replies.unready:
            self._expect_end()

    def judged(self, job: int, probability: float | None) -> None:
        """How likely the turn is over by its sound; None if it could not be judged."""
        if self._endpointer.on_sound(job, probability):
            self._expect_end()

    def _voice(self) -> None:
        """The frame is the user's voice."""
        session = self._session
        session.asr.speak_on()
        self._endpointer.resume()
        if session.turn.state is TurnState.ACKNOWLEDGED:
            session.resumed()  # so soon that it was no pause
        elif session.turn.undecided:
            self._question()
        elif session.config.transcription and self._speaks_on():
            self._hear_ahead()
            session.asr.speak_on()

    def _question(self) -> None:
        """The speaker goes on in a reply that waits: is it a backchannel, or a barge-in? The ASR says. A client that
        has not told by now where it stopped is none that stops."""
        session, policy = self._session, self._policy.barge_in
        voice = session.input.voiced_ms
        certain_ms = policy.certain_ms * (2 if self._murmurs else 1)
        if voice >= (certain_ms if session.weighing else policy.judge_ms):
            session.yield_to_user()
        elif voice >= self._question_at:
            self._question_at = voice + policy.judge_again_ms
            self._hear_ahead()
            session.asr.speak_on()

    def _hear_ahead(self) -> None:
        """Hear the turn up to now."""
        self._heard_ahead = self._session.out.now
        self._session.asr.hear_ahead(Clip(self._session.input.sound(), EARS_RATE))

    def _speaks_on(self) -> bool:
        last = self._begun if self._heard_ahead is None else self._heard_ahead
        return (self._session.out.now - last) * 1000 >= self._policy.partials.speech_ms

    def _too_little(self, silence_ms: int) -> bool:
        """True if a pause follows so little voice that it can't be a turn."""
        settings = self._policy.segmenter
        return silence_ms >= settings.pause_ms and self._session.input.voiced_ms < settings.min_speech_ms

    def _all_said(self, silence_ms: int) -> bool:
        """True if nothing follows a backchannel; that is decided before the silence ends the turn."""
        if self._session.turn.state is not TurnState.BACKCHANNEL:
            return False
        detection = self._session.config.detection
        settings = self._policy.segmenter if detection is None else detection.segmenter_settings(self._policy)
        return silence_ms >= min(self._policy.barge_in.afterthought_ms, settings.silence_ms - FRAME_MS)

    def _acknowledge(self) -> None:
        """What was said is no turn: a reply that waits for it goes on."""
        session = self._session
        session.turn.feed(Cue.ACKNOWLEDGE)
        session.playback.release()
        session.input.expect_end(0)

    @property
    def _semantic(self) -> bool:
        detection = self._session.config.detection
        return detection is not None and detection.kind == "semantic_vad"

    def _may_hear_ahead(self) -> bool:
        """It is of use, the turn has words, and the last time was long ago."""
        session = self._session
        if not (self._semantic or session.config.transcription) or not self._has_words():
            return False
        last, every_ms = self._heard_ahead, self._policy.partials.every_ms
        return last is None or (session.out.now - last) * 1000 >= every_ms

    def _may_judge(self) -> bool:
        """It is of use, and the turn has words."""
        return self._semantic and self._has_words()

    def _has_words(self) -> bool:
        return self._session.input.voiced_ms >= self._policy.segmenter.min_speech_ms

    def _supposed(self, text: str) -> None:
        """The speaker pauses after ``text``: was it meant as a barge-in? Is it the end?"""
        session = self._session
        if session.weighing and self._may_be_backchannel(text):
            if session.turn.may(Cue.MURMUR):
                session.turn.feed(Cue.MURMUR)
            if not session.lexicon.may_go_on(text) or self._all_said(session.input.silence_ms):
                self._acknowledge()
        elif session.turn.undecided:
            session.yield_to_user()
        self._endpointer.on_words(text, session.lexicon)
        self._tell(text)
        detection = session.config.detection
        creates = detection is not None and detection.create_response
        eager = session.limits.eager and not session.model.hears  # which waits for the sound, not for its words
        if text and creates and eager and session.owed is None:
            session.replies.speculate(session.spec(), text)
        self._expect_end()

    def _may_be_backchannel(self, text: str) -> bool:
        """True if what was said before a pause in a reply is a backchannel, or so short that it was misheard."""
        words, policy = self._session.lexicon, self._policy.barge_in
        short = self._session.input.voiced_ms < policy.short_ms
        misheard = short and words.other_words(text) < policy.short_words and not words.takes_floor(text)
        return misheard or words.is_backchannel(text)

    def _expect_end(self) -> None:
        """Let the turn end after as much silence as is enough; but while nothing of the response could be heard anyway,
        it costs no time to listen a little longer."""
        session = self._session
        detection = session.config.detection
        if detection is None or not self._semantic:
            return
        if session.turn.state in (TurnState.BACKCHANNEL, TurnState.ACKNOWLEDGED):
            return
        enough = self._endpointer.enough(detection.eagerness)
        self._awaiting_response = session.replies.unready
        if self._awaiting_response:
            enough = max(enough, self._policy.endpointing.patience(detection.eagerness).awaiting_ms)
        session.input.expect_end(enough)

    def _tell(self, text: str) -> None:
        """Tell what is certain of the open turn's text."""
        session = self._session
        if session.config.transcription is None or session.weighing:
            return
        if session.turn.state is TurnState.ACKNOWLEDGED:
            return
        if piece := self._told.hear(text):
            session.out.send(f"{TRANSCRIPTION}.delta", item_id=session.item_id, content_index=0, delta=piece)
