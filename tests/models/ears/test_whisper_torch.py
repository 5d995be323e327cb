"""The ears in PyTorch hear what faster-whisper hears, alone and together; here on the CPU, in float32."""

from __future__ import annotations

import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.cascade.listening import SPEAKERS, error_rate
from tests.models.ears.noises import NOISES, noise
from voicechat.assemble import AssembledPaths
from voicechat.models.ears.pieces import RATE, cut
from voicechat.models.ears.whisper import LEAST_SECONDS, SILENCE_SECONDS, Ears
from voicechat.models.ears.whisper_net import LogMel, read_weights
from voicechat.models.ears.whisper_torch import FULL_FRAMES, Said, TorchEars, _full, _Piece, _short

QUESTIONS = (
    "Yes.",
    "What is the capital of France?",
    "Tell me a short story about a little dragon who could not sleep.",
    "Could you explain to me why the sky is blue, and why it turns red in the evening when the sun goes down?",
)
Sound = np.ndarray[Any, np.dtype[np.float32]]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Any:
    """Of torch, as elsewhere in the tests."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folder(models: AssembledPaths) -> Path:
    return models.ears


@pytest.fixture(scope="module")
def ears(folder: Path) -> TorchEars:
    return TorchEars(folder, device=torch.device("cpu"), max_batch=4)


@pytest.fixture(scope="module")
def reference(folder: Path) -> Ears:
    """faster-whisper as exactly as it computes."""
    return Ears(str(folder), threads=1, beam_size=1, compute_type="float32")


@pytest.fixture(scope="module")
def sounds() -> list[Sound]:
    """Questions of 1 to 7 s in two voices, one of 25 s, silence, noise and nothing."""
    speak = [SPEAKERS[name] for name in ("espeak-us", "espeak-gb-female")]
    said = [speak[number % 2](question).astype(np.float32) for number, question in enumerate(QUESTIONS)]
    noise = np.random.default_rng(0).normal(0, 0.01, 2 * RATE).astype(np.float32)
    long = np.concatenate([said[3], said[2]] * 3)[: 25 * RATE]
    return [*said, long, np.zeros(RATE, np.float32), noise, np.zeros(0, np.float32)]


def features_of(reference: Ears, piece: _Piece) -> Sound:
    """Features as faster-whisper makes them of a piece."""
    from faster_whisper.audio import pad_or_trim

    extract = reference._model.feature_extractor
    if piece.short:
        seconds = max(LEAST_SECONDS, len(piece.pcm) / RATE + SILENCE_SECONDS)
        return np.asarray(extract(np.pad(piece.pcm, (0, int(seconds * RATE) - len(piece.pcm))))[:, : piece.frames])
    return np.asarray(pad_or_trim(extract(piece.pcm)[:, :-1]))


def text_of(ears: TorchEars, piece: _Piece, said: Said) -> str:
    heard = ears._text_of(piece, said)
    assert heard is not None
    return heard.text


def test_features_and_encoder_in_a_batch_of_different_lengths(
    ears: TorchEars, reference: Ears, sounds: list[Sound]
) -> None:
    """Each row is what faster-whisper makes of it alone, whatever stands beside it."""
    pieces = [_short(sound) for sound in sounds[:5]]
    assert [piece.short for piece in pieces] == [True] * 4 + [False]
    assert pieces[0].frames == 100 * LEAST_SECONDS < pieces[3].frames < pieces[4].frames == FULL_FRAMES
    features = ears.features(pieces)
    with torch.inference_mode():
        encoded = ears._net.encode(features, [piece.frames for piece in pieces])
    for piece, made, coded in zip(pieces, features.numpy(), encoded.numpy(), strict=True):
        theirs = features_of(reference, piece)
        assert np.abs(made[:, : piece.frames] - theirs).max() < 1e-4
        heard = np.asarray(reference._model.encode(theirs))[0]
        assert heard.shape == (piece.frames // 2, 384)
        assert np.abs(heard).max() > 5
        assert np.abs(coded[: piece.frames // 2] - heard).max() < 5e-3


def test_together_alone_and_by_faster_whisper(ears: TorchEars, reference: Ears, sounds: list[Sound]) -> None:
    """More sounds than fit into a batch."""
    texts = ears.transcribe(sounds)
    assert texts == [reference.transcribe(sound) for sound in sounds]
    assert texts == [ears.transcribe([sound])[0] for sound in sounds]
    for question, text in zip(QUESTIONS, texts, strict=False):
        assert error_rate(question, text) <= 0.4
    assert texts[4].count("dragon") >= 1
    assert texts[5:] == ["", "", ""]


def test_likelihoods(ears: TorchEars, reference: Ears, sounds: list[Sound]) -> None:
    """No speech, tokens and their mean log probability are faster-whisper's; without speech no token is made."""
    for sound in (sounds[1], sounds[3], sounds[6]):
        piece = _full(sound)
        (said,) = ears.decode([piece])
        whisper: Any = reference._model
        (theirs,) = whisper.model.generate(
            whisper.encode(features_of(reference, piece)),
            [whisper.get_prompt(reference._tokenizer("en", False), [], without_timestamps=True)],
            beam_size=1,
            return_scores=True,
            return_no_speech_prob=True,
        )
        assert said.no_speech == pytest.approx(theirs.no_speech_prob, abs=1e-3)
        if sound is sounds[6]:
            assert said.no_speech > 0.9
            assert said.tokens == []
            continue
        assert said.tokens == theirs.sequences_ids[0]
        count = len(said.tokens)
        assert said.log_probability == pytest.approx(theirs.scores[0] * count / (count + 1), abs=1e-3)


def test_a_transcript_that_is_too_long_is_made_again(ears: TorchEars, sounds: list[Sound]) -> None:
    """By the full window, beside one that is not; it stops at the bound."""
    short, other = _short(sounds[2]), _short(sounds[1])
    tight = replace(short, tokens=3)
    (said,) = ears.decode([tight])
    assert len(said.tokens) == 4
    assert ears._text_of(tight, said) is None
    (full,) = ears.decode([_full(sounds[2])])
    assert [heard.text for heard in ears._transcribe([other, tight])] == [
        ears.transcribe([sounds[1]])[0],
        text_of(ears, _full(sounds[2]), full),
    ]


def test_doubtful_transcripts_are_nothing(ears: TorchEars, sounds: list[Sound]) -> None:
    full, short = _full(sounds[1]), _short(sounds[1])
    (said,) = ears.decode([full])
    assert text_of(ears, full, said) != ""
    assert text_of(ears, full, Said(said.tokens, 0.7, -1.5)) == ""
    assert text_of(ears, full, Said(said.tokens, 0.7, -0.5)) != ""
    assert text_of(ears, short, Said(said.tokens, 0.7, -1.5)) == ""
    assert text_of(ears, short, Said(said.tokens, 0.7, -0.5)) != ""
    assert text_of(ears, short, Said(said.tokens, 0.95, 0.0)) == ""


@pytest.mark.parametrize(("name", "seed"), NOISES)
def test_no_words_are_heard_in_sounds_that_are_none(
    ears: TorchEars, reference: Ears, name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on the CPU; without the rule both find words."""
    sound = noise(name, seed)
    assert ears.transcribe([sound]) == [reference.transcribe(sound)] == [""]
    monkeypatch.setattr("voicechat.models.ears.whisper.UNLIKELY_WORDS", -9.0)
    assert "" not in (ears.transcribe([sound])[0], reference.transcribe(sound))


def test_long_sounds_are_cut_where_it_is_quiet() -> None:
    rng = np.random.default_rng(3)
    sound = rng.normal(0, 0.1, 70 * RATE).astype(np.float32)
    sound[int(24.0 * RATE) : int(24.5 * RATE)] *= 0.01
    pieces = cut(sound)
    assert np.array_equal(np.concatenate(pieces), sound)
    assert 24.0 <= len(pieces[0]) / RATE <= 24.5
    assert all(20 * RATE <= len(piece) <= 30 * RATE for piece in pieces[:-1])
    assert len(pieces[-1]) <= 30 * RATE
    assert cut(sound[: 30 * RATE])[0] is not None
    assert len(cut(sound[: 30 * RATE])) == 1


def test_a_sound_of_more_than_a_window(ears: TorchEars, sounds: list[Sound]) -> None:
    """All of it is heard, in order."""
    pause = np.zeros(RATE, np.float32)
    long = np.concatenate([sounds[1], pause, *[sounds[3], pause] * 4, sounds[2]])
    assert len(long) > 31 * RATE
    (text,) = ears.transcribe([long])
    assert text.index("capital") < text.index("sky") < text.index("dragon")
    assert 3 <= text.count("red") <= 4


def variable(name: str, number: int, array: Any) -> bytes:
    """One of CTranslate2's variables, by the number of its type."""
    text = struct.pack("<H", len(name) + 1) + name.encode() + b"\0"
    shape = struct.pack("<B", array.ndim) + b"".join(struct.pack("<I", size) for size in array.shape)
    return text + shape + struct.pack("<BI", number, array.nbytes) + array.tobytes()


def text(value: str) -> bytes:
    return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"


def test_quantised_weights(tmp_path: Path) -> None:
    """int8 has a scale for each row, int16 one for all; an alias is what it stands for."""
    entries = [
        variable("a/weight", 1, np.array([[127, -64], [10, 20]], np.int8)),
        variable("a/weight_scale", 0, np.array([127.0, 10.0], np.float32)),
        variable("b/weight", 2, np.array([[512, -256]], np.int16)),
        variable("b/weight_scale", 0, np.array(512.0, np.float32)),
        variable("c/bias", 4, np.array([0.5, 2.0], np.float16)),
        variable("heads", 2, np.array(6, np.int16)),
    ]
    head = struct.pack("<I", 6) + text("WhisperSpec") + struct.pack("<II", 3, len(entries))
    aliases = (
        struct.pack("<I", 2) + text("d/weight") + text("a/weight") + text("d/weight_scale") + text("a/weight_scale")
    )
    path = tmp_path / "model.bin"
    path.write_bytes(head + b"".join(entries) + aliases)
    weights = read_weights(path)
    assert sorted(weights) == ["a/weight", "b/weight", "c/bias", "d/weight", "heads"]
    assert torch.allclose(weights["a/weight"], torch.tensor([[1.0, -64 / 127], [1.0, 2.0]]))
    assert weights["d/weight"] is weights["a/weight"]
    assert weights["b/weight"].tolist() == [[1.0, -0.5]]
    assert weights["c/bias"].dtype == torch.float32
    assert int(weights["heads"]) == 6
    whole = path.read_bytes()
    for broken in (
        whole[: len(head) + 20],
        b"",
        struct.pack("<I", 5) + whole[4:],
        whole.replace(b"WhisperS", b"WhimperS"),
    ):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=r"model\.bin"):
            read_weights(path)


def test_the_features_of_silence_are_finite() -> None:
    assert torch.isfinite(LogMel(80)(torch.zeros(2, RATE))).all()


def test_nothing_of_ctranslate2_is_needed(folder: Path) -> None:
    """Neither it nor faster-whisper is imported: their CUDA is not there where these ears are used."""
    code = (
        "import sys; sys.modules['ctranslate2'] = sys.modules['faster_whisper'] = None\n"
        "import numpy, torch; from voicechat.models.ears.whisper_torch import TorchEars\n"
        f"ears = TorchEars({str(folder)!r}, device=torch.device('cpu'), max_batch=1)\n"
        "print(ears.transcribe([numpy.zeros(16000, numpy.float32)]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "['']"), done.stderr
