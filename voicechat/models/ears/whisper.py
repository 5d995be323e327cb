"""The ears: Whisper through CTranslate2, for Thinkers that cannot hear by themselves.

Whisper's encoder always looks at 30 s, most of it silence after a short question, and that is nearly all of its time.
Here a short sound is encoded with only as much silence behind it as the decoder needs to stop in time. On 88 sounds of
the scripted set (tiny.en, int8, one thread, beams of 3) a window of 9 s takes 130 ms at a WER of 13.6 %, one of 12 s
180 ms at 13.8 %; one of 7 s saves no more and misses more (16.2 %). A second thread saves nothing at this size. A
transcript that is too long for its sound or says a phrase twice, the signs of a missed end, is made again with the full
window, and what is passed on of that one, :func:`voicechat.models.ears.repeats.kept` says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from voicechat.contract.hearing import PLAIN, HeardToken, HeardWord, HearingOptions, Transcription
from voicechat.models.ears.folder import ears_facts
from voicechat.models.ears.pieces import FRAMES_PER_SECOND, RATE, WINDOW_SECONDS, cut
from voicechat.models.ears.refusal import check_options
from voicechat.models.ears.repeats import doubtful, kept, units, voiced_seconds

if TYPE_CHECKING:
    from faster_whisper import WhisperModel
    from faster_whisper.tokenizer import Tokenizer

LEAST_SECONDS = 9.6
SILENCE_SECONDS = 5.6
"""A short window is at least the one, and the sound and the other."""
TOKENS_PER_SECOND = 8
SPARE_TOKENS = 12
"""Nobody says more than this many tokens; a longer transcript is a loop."""
FULL_TOKENS = 224
"""Most tokens of a full window: half of what Whisper's decoder can hold. The other half is for the prompt."""
NO_SPEECH = 0.9
"""Sounds that hold no speech with at least this probability have an empty transcript."""
DOUBTFUL_SPEECH, UNLIKELY_WORDS = 0.4, -1.0
"""So have those that hold none with the first probability, if the tokens' mean log probability is below the second:
what is heard in a cough or a hum, or in people who talk far away. That is Whisper's own rule, but for the first number
(0.6): of the scripted set's 99 sounds with words only one "uh-huh" comes above 0.3, at 0.5, in which "Oh god." was
heard, and of its noises none below 0.7.
"""

Pcm = npt.NDArray[np.float32]


def is_nothing(no_speech: float, log_probability: float) -> bool:
    """True if what was heard is to have an empty transcript: by the probability that it holds no speech and the mean
    log probability of its tokens, the end of the text included."""
    return no_speech >= NO_SPEECH or (no_speech >= DOUBTFUL_SPEECH and log_probability < UNLIKELY_WORDS)


@dataclass(frozen=True, slots=True)
class _Said:
    """What the decoder made of a window."""

    tokens: list[int]
    log_probability: float
    no_speech: float
    language: str
    encoded: Any
    frames: int


class Ears:
    """Speech to text. ``folder`` holds a CTranslate2 Whisper model; the rest is as in faster-whisper.

    As many callers' threads as there are ``workers`` are served at once, each by ``threads`` threads. ``language`` is
    what multilingual ears are to hear if nobody says; None: they find out.
    """

    def __init__(
        self,
        folder: str,
        *,
        threads: int,
        beam_size: int,
        compute_type: str = "int8",
        workers: int = 1,
        language: str | None = None,
    ) -> None:
        from faster_whisper import WhisperModel

        self.facts = ears_facts(folder)
        self._model: WhisperModel = WhisperModel(
            folder,
            device="cpu",
            compute_type=compute_type,
            cpu_threads=threads,
            num_workers=workers,
            local_files_only=True,
        )
        self._beam_size = beam_size
        self._language = language
        self._tokenizers: dict[tuple[str, bool], Tokenizer] = {}

    def warm_up(self) -> None:
        """Run once on noise, so that the first real question meets warm code."""
        self.transcribe(np.random.default_rng(0).normal(0, 0.01, RATE).astype(np.float32))

    def transcribe(self, pcm: Pcm) -> str:
        """Text of float32 mono 16 kHz sound, shape ``[samples]``; empty for silence."""
        return self.hear(pcm).text

    def hear(self, pcm: Pcm, options: HearingOptions = PLAIN) -> Transcription:
        """All that is heard in such a sound. Raises :class:`EarsRefusal`."""
        check_options(self.facts, options)
        found, at = [], 0
        for piece in cut(pcm):
            found.append(self._hear_piece(piece, options, at / RATE))
            at += len(piece)
        return found[0] if len(found) == 1 else joined(found)

    def _hear_piece(self, pcm: Pcm, options: HearingOptions, begin_s: float) -> Transcription:
        seconds = len(pcm) / RATE
        window = max(LEAST_SECONDS, seconds + SILENCE_SECONDS)
        heard = self._hear_short(pcm, options, begin_s, window) if window < WINDOW_SECONDS else None
        return settled_hearing(heard or self._hear_full(pcm, options, begin_s), pcm)

    def _hear_short(self, pcm: Pcm, options: HearingOptions, begin_s: float, window: float) -> Transcription | None:
        """By a window of ``window`` seconds; None if that says too much, or something again."""
        seconds = len(pcm) / RATE
        most = int(SPARE_TOKENS + TOKENS_PER_SECOND * seconds)
        padded = np.pad(pcm, (0, int(window * RATE) - len(pcm)))
        features = self._model.feature_extractor(padded)[:, : int(window * FRAMES_PER_SECOND) // 2 * 2]
        said = self._decode(features, most, options)
        if len(said.tokens) > most and not _nothing(said):
            return None
        heard = self._transcription(said, options, begin_s, seconds)
        return None if doubtful(heard.text) else heard

    def _hear_full(self, pcm: Pcm, options: HearingOptions, begin_s: float) -> Transcription:
        """With the window that Whisper was trained on; behind the sound its features are zero, as in faster-whisper."""
        features = self._model.feature_extractor(pcm)
        features = features[:, : len(pcm) * FRAMES_PER_SECOND // RATE]
        frames = int(WINDOW_SECONDS * FRAMES_PER_SECOND)
        features = np.pad(features[:, :frames], ((0, 0), (0, max(0, frames - features.shape[1]))))
        return self._transcription(self._decode(features, FULL_TOKENS, options), options, begin_s, len(pcm) / RATE)

    def _decode(self, features: Pcm, most: int, options: HearingOptions) -> _Said:
        """Hear a window; a text that is cut off has one token more than ``most``."""
        encoded = self._model.encode(features)
        language = options.language or self._language or self._found_language(encoded)
        tokenizer = self._tokenizer(language, options.translate)
        before = tokenizer.encode(f" {options.prompt.strip()}") if options.prompt.strip() else []
        prompt = self._model.get_prompt(tokenizer, before, without_timestamps=True)
        # CTranslate2 makes half of max_length, or what the prompt leaves of it, if that is less.
        longest = min(2 * FULL_TOKENS, max(2 * (most + 1), len(prompt) + most + 1))
        sampled = options.temperature > 0
        result = self._model.model.generate(
            encoded,
            [prompt],
            beam_size=1 if sampled else self._beam_size,
            sampling_topk=0 if sampled else 1,
            sampling_temperature=options.temperature if sampled else 1.0,
            max_length=longest,
            return_scores=True,
            return_no_speech_prob=True,
        )[0]
        tokens = result.sequences_ids[0]
        likely = result.scores[0] * len(tokens) / (len(tokens) + 1)  # as Whisper counts, with the end of the text
        return _Said(tokens, likely, result.no_speech_prob, language, encoded, features.shape[1])

    def _found_language(self, encoded: Any) -> str:
        if not self._model.model.is_multilingual:
            return "en"
        token, _ = self._model.model.detect_language(encoded)[0][0]
        return str(token)[2:-2]

    def _tokenizer(self, language: str, translate: bool) -> Tokenizer:
        from faster_whisper.tokenizer import Tokenizer

        if (language, translate) not in self._tokenizers:
            self._tokenizers[language, translate] = Tokenizer(
                self._model.hf_tokenizer,
                self.facts.translates,
                task="translate" if translate else "transcribe",
                language=language,
            )
        return self._tokenizers[language, translate]

    def _transcription(self, said: _Said, options: HearingOptions, begin_s: float, seconds: float) -> Transcription:
        if _nothing(said):
            return Transcription("", said.language, said.log_probability, said.no_speech)
        tokenizer = self._tokenizer(said.language, options.translate)
        text = str(tokenizer.decode(said.tokens)).strip()
        words: tuple[HeardWord, ...] = ()
        tokens: tuple[HeardToken, ...] = ()
        if text and (options.words or options.tokens):
            words, tokens = self._aligned(said, tokenizer, begin_s, seconds)
        language = "en" if options.translate else said.language
        return Transcription(
            text,
            language,
            said.log_probability,
            said.no_speech,
            words if options.words else (),
            tokens if options.tokens else (),
            len(said.tokens),
        )

    def _aligned(
        self, said: _Said, tokenizer: Tokenizer, begin_s: float, seconds: float
    ) -> tuple[tuple[HeardWord, ...], tuple[HeardToken, ...]]:
        """Words with their times, by what the decoder looks at while it writes them, and tokens (Whisper's method)."""
        from faster_whisper.transcribe import merge_punctuations

        written = [token for token in said.tokens if token < tokenizer.eot]
        heard = min(said.frames, 2 * math.ceil(seconds * FRAMES_PER_SECOND / 2))
        result = self._model.model.align(said.encoded, tokenizer.sot_sequence, [written], heard)[0]
        tokens = tuple(
            HeardToken(tokenizer.decode([token]), math.log(max(probability, 1e-10)))
            for token, probability in zip(written, result.text_token_probs, strict=False)
        )
        steps = [[step for text, step in result.alignments if text == index] for index in range(len(written) + 1)]
        texts, groups = tokenizer.split_to_word_tokens([*written, tokenizer.eot])
        spans, at = [], 0
        for text, group in zip(texts[:-1], groups[:-1], strict=True):
            inside = [step for index in range(at, at + len(group)) for step in steps[index]]
            at += len(group)
            behind = steps[at] if at < len(steps) and steps[at] else inside[-1:]
            spans.append(
                {"word": text, "tokens": group, "start": min(inside, default=0), "end": min(behind, default=0)}
            )
        merge_punctuations(spans, "\"'“¿([{-", "\"'.。,，!！?？:：”)]}、")
        words, last = [], 0.0
        for span in spans:
            if not str(span["word"]).strip():
                continue
            start = min(max(last, float(span["start"]) / 50), seconds)
            last = min(max(start, float(span["end"]) / 50), seconds)
            words.append(HeardWord(str(span["word"]).strip(), round(begin_s + start, 2), round(begin_s + last, 2)))
        return tuple(words), tokens


def _nothing(said: _Said) -> bool:
    return is_nothing(said.no_speech, said.log_probability)


def settled_hearing(heard: Transcription, pcm: Pcm) -> Transcription:
    """What of a hearing of ``pcm`` may be passed on; see :func:`voicechat.models.ears.repeats.kept`."""
    words, joint = units(heard.text)
    left = kept(words, len(pcm) / RATE, voiced_seconds(pcm))
    if len(left) == len(words):
        return heard
    timed = tuple(heard.words[index] for index in left) if len(heard.words) == len(words) else ()
    text = joint.join(words[index] for index in left)
    return Transcription(text, heard.language, heard.log_probability, heard.no_speech, timed, (), heard.written)


def joined(parts: list[Transcription]) -> Transcription:
    """What was heard in the pieces of a sound, one after another."""
    spoken = [part for part in parts if part.text] or parts[:1]
    return Transcription(
        " ".join(filter(None, (part.text for part in parts))),
        spoken[0].language,
        sum(part.log_probability for part in spoken) / len(spoken),
        min(part.no_speech for part in parts),
        tuple(word for part in parts for word in part.words),
        tuple(token for part in parts for token in part.tokens),
        sum(part.written for part in parts),
    )
