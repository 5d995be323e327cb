"""The ears: Whisper through faster-whisper, for Thinkers that cannot hear by themselves.

Whisper's encoder always looks at 30 s, most of it silence after a short question, and that is nearly all of its time.
Here a short sound is encoded with only as much silence behind it as the decoder needs to stop in time. On 88 sounds of
the scripted set (tiny.en, int8, one thread, beams of 3) a window of 9 s takes 130 ms at a WER of 13.6 %, one of 12 s
180 ms at 13.8 %; one of 7 s saves no more and misses more (16.2 %). A second thread saves nothing at this size. A
transcript that is too long for its sound, the sign of a missed end, is made again with the full window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from faster_whisper import WhisperModel

RATE = 16_000
FRAMES_PER_SECOND = 100
WINDOW_SECONDS = 30.0
"""What Whisper was trained on."""
LEAST_SECONDS = 9.6
SILENCE_SECONDS = 5.6
"""A short window is at least the one, and the sound and the other."""
TOKENS_PER_SECOND = 8
SPARE_TOKENS = 12
"""Nobody says more than this many tokens; a longer transcript is a loop."""
NO_SPEECH = 0.9
"""Sounds that hold no speech with at least this probability have an empty transcript."""
DOUBTFUL_SPEECH, UNLIKELY_WORDS = 0.4, -1.0
"""So have those that hold none with the first probability, if the tokens' mean log probability is below the second:
what is heard in a cough or a hum, or in people who talk far away. That is Whisper's own rule, but for the first number
(0.6): of the scripted set's 99 sounds with words only one "uh-huh" comes above 0.3, at 0.5, in which "Oh god." was
heard, and of its noises none below 0.7.
"""


def is_nothing(no_speech: float, log_probability: float) -> bool:
    """True if what was heard is to have an empty transcript: by the probability that it holds no speech and the mean
    log probability of its tokens, the end of the text included."""
    return no_speech >= NO_SPEECH or (no_speech >= DOUBTFUL_SPEECH and log_probability < UNLIKELY_WORDS)


class Ears:
    """Speech to text. ``folder`` holds a CTranslate2 Whisper model; the rest is as in faster-whisper.

    As many callers' threads as there are ``workers`` are served at once, each by ``threads`` threads.
    """

    def __init__(
        self, folder: str, *, threads: int, beam_size: int, compute_type: str = "int8", workers: int = 1
    ) -> None:
        from faster_whisper import WhisperModel
        from faster_whisper.tokenizer import Tokenizer

        self._model: WhisperModel = WhisperModel(
            folder,
            device="cpu",
            compute_type=compute_type,
            cpu_threads=threads,
            num_workers=workers,
            local_files_only=True,
        )
        self._tokenizer = Tokenizer(self._model.hf_tokenizer, multilingual=False, task="transcribe", language="en")
        self._prompt = self._model.get_prompt(self._tokenizer, [], without_timestamps=True)
        self._beam_size = beam_size

    def warm_up(self) -> None:
        """Run once on noise, so that the first real question meets warm code."""
        self.transcribe(np.random.default_rng(0).normal(0, 0.01, RATE).astype(np.float32))

    def transcribe(self, pcm: npt.NDArray[np.float32]) -> str:
        """Text of float32 mono 16 kHz sound, shape ``[samples]``; empty for silence."""
        seconds = len(pcm) / RATE
        window = max(LEAST_SECONDS, seconds + SILENCE_SECONDS)
        if window < WINDOW_SECONDS:
            text = self._transcribe_short(pcm, window, int(SPARE_TOKENS + TOKENS_PER_SECOND * seconds))
            if text is not None:
                return text
        segments, _ = self._model.transcribe(
            pcm,
            language="en",
            beam_size=self._beam_size,
            without_timestamps=True,
            condition_on_previous_text=False,
            temperature=0.0,
            no_speech_threshold=DOUBTFUL_SPEECH,
            log_prob_threshold=UNLIKELY_WORDS,
        )
        return " ".join(segment.text.strip() for segment in segments if segment.no_speech_prob < NO_SPEECH).strip()

    def _transcribe_short(self, pcm: npt.NDArray[np.float32], window: float, most: int) -> str | None:
        """Text by a window of ``window`` seconds, or None if it is longer than ``most`` tokens."""
        padded = np.pad(pcm, (0, int(window * RATE) - len(pcm)))
        features = self._model.feature_extractor(padded)[:, : int(window * FRAMES_PER_SECOND) // 2 * 2]
        result = self._model.model.generate(
            self._model.encode(features),
            [self._prompt],
            beam_size=self._beam_size,
            max_length=2 * (most + 1),  # CTranslate2 makes half of it, or what the prompt leaves of it, if that is less
            return_scores=True,
            return_no_speech_prob=True,
        )[0]
        tokens = result.sequences_ids[0]
        likely = result.scores[0] * len(tokens) / (len(tokens) + 1)  # as Whisper counts, with the end of the text
        if is_nothing(result.no_speech_prob, likely):
            return ""
        return None if len(tokens) > most else str(self._tokenizer.decode(tokens)).strip()
