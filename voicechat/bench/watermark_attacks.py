"""What happens to sound on its way: codecs, loss, bands, noise, speed, a room. Each on int16 mono sound at 24 kHz."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass

import av
import numpy as np
import numpy.typing as npt

from voicechat.contract.sound import EARS_RATE, PCM_RATE, Pcm
from voicechat.media.jitter import MicrophoneStream, RtpAudio
from voicechat.media.opus import FRAME_SAMPLES, OpusEncoder
from voicechat.media.resample import resample, to_float, to_pcm

Floats = npt.NDArray[np.float32]
Sound = tuple[Floats, int]
"""Sound in about [-1, 1], and its rate in Hz."""

OPUS_DELAY_MS = 6.5
"""libopus's look-ahead in its VoIP mode at 24 kHz: what is decoded lags what was encoded."""


@dataclass(frozen=True, slots=True)
class Attack:
    """One way. ``row`` is the line of the table that it counts for; ``apply`` takes the sound and a seed."""

    name: str
    row: str
    apply: Callable[[Pcm, int], Sound]
    delay_ms: float = 0.0


def clean(pcm: Pcm, seed: int) -> Sound:
    """As it was made."""
    return to_float(pcm), PCM_RATE


def opus(bitrate: int, loss: float) -> Callable[[Pcm, int], Sound]:
    """Our encoder for calls, RTP packets of which ``loss`` is the share that is lost, our jitter buffer and repair."""

    def apply(pcm: Pcm, seed: int) -> Sound:
        encoder, stream, rng = OpusEncoder(bitrate=bitrate), MicrophoneStream(), np.random.default_rng(seed)
        pcm = np.pad(pcm, (0, -len(pcm) % FRAME_SAMPLES))
        heard: list[Floats] = []
        for number, frame in enumerate(pcm.reshape(-1, FRAME_SAMPLES)):
            packet, now = encoder.encode(frame), number * 0.02
            if rng.random() >= loss:
                heard += stream.push(RtpAudio(number, number * 960, packet), now)
            heard += stream.tick(now)
        heard += stream.tick(len(pcm) / PCM_RATE + 1)
        return np.concatenate(heard) if heard else np.zeros(0, np.float32), EARS_RATE

    return apply


def file_codec(container: str, codec: str, bitrate: int) -> Callable[[Pcm, int], Sound]:
    """Written to a file by an encoder of PyAV, and read again."""

    def apply(pcm: Pcm, seed: int) -> Sound:
        data = io.BytesIO()
        with av.open(data, "w", format=container) as out:
            stream = out.add_stream(codec, rate=PCM_RATE)
            stream.layout = "mono"  # type: ignore[union-attr]
            stream.bit_rate = bitrate  # type: ignore[union-attr]
            frame = av.AudioFrame.from_ndarray(pcm[None], format="s16", layout="mono")
            frame.sample_rate = PCM_RATE
            for packet in [*stream.encode(frame), *stream.encode(None)]:  # type: ignore[union-attr,arg-type]
                out.mux(packet)
        data.seek(0)
        with av.open(data, "r") as read:
            resampler = av.AudioResampler(format="flt", layout="mono", rate=PCM_RATE)
            frames = [f for frame in read.decode(audio=0) for f in resampler.resample(frame)]
            frames += resampler.resample(None)
        return np.concatenate([f.to_ndarray().reshape(-1) for f in frames]), PCM_RATE

    return apply


def resampled(*rates: int) -> Callable[[Pcm, int], Sound]:
    """Through each of the rates."""

    def apply(pcm: Pcm, seed: int) -> Sound:
        sound, rate = to_float(pcm), PCM_RATE
        for other in rates:
            sound, rate = resample(sound, rate, other), other
        return sound, rate

    return apply


def mulaw(pcm: Pcm, seed: int) -> Sound:
    """G.711 mu-law at 8 kHz (ITU-T G.711: 8 bits, mu = 255, by its continuous curve)."""
    sound, rate = resampled(8_000)(pcm, seed)
    sound = np.clip(sound, -1, 1)
    level = np.rint(np.sign(sound) * np.log1p(255 * np.abs(sound)) / np.log(256) * 127) / 127
    return (np.sign(level) * np.expm1(np.abs(level) * np.log(256)) / 255).astype(np.float32), rate


def noise(snr_db: float) -> Callable[[Pcm, int], Sound]:
    """White noise under the sound's mean power."""

    def apply(pcm: Pcm, seed: int) -> Sound:
        sound = to_float(pcm)
        scale = np.sqrt(np.mean(np.square(sound, dtype=np.float64))) * 10 ** (-snr_db / 20)
        return sound + (np.random.default_rng(seed).normal(size=len(sound)) * scale).astype(np.float32), PCM_RATE

    return apply


def gain(decibels: float) -> Callable[[Pcm, int], Sound]:
    """Louder or softer, rounded to 16 bits and clipped."""
    return lambda pcm, seed: (to_float(to_pcm(to_float(pcm) * np.float32(10 ** (decibels / 20)))), PCM_RATE)


def cut(pcm: Pcm, seed: int) -> Sound:
    """Up to 0.3 s are missing at the beginning, by the sample."""
    return to_float(pcm[int(np.random.default_rng(seed).integers(1, 7200)) :]), PCM_RATE


def speed(factor: float) -> Callable[[Pcm, int], Sound]:
    """Faster by a factor, and higher with it, as a tape would be."""

    def apply(pcm: Pcm, seed: int) -> Sound:
        return resample(to_float(pcm), round(PCM_RATE * factor), PCM_RATE), PCM_RATE

    return apply


def echo(t60_s: float = 0.3, direct_db: float = 3.0) -> Callable[[Pcm, int], Sound]:
    """A room: an exponentially decaying noise tail from 2 ms on, ``direct_db`` below the direct sound (Polack)."""

    def apply(pcm: Pcm, seed: int) -> Sound:
        length = int(PCM_RATE * t60_s)
        tail = np.random.default_rng(seed).normal(size=length) * 10 ** (-3 * np.arange(length) / length)
        tail[:48] = 0
        tail *= 10 ** (-direct_db / 20) / np.sqrt((tail**2).sum())
        tail[0] = 1
        size = 1 << (len(pcm) + length).bit_length()
        sound = np.fft.irfft(np.fft.rfft(to_float(pcm), size) * np.fft.rfft(tail, size), size)[: len(pcm)]
        return sound.astype(np.float32), PCM_RATE

    return apply


def after(*attacks: Callable[[Pcm, int], Sound]) -> Callable[[Pcm, int], Sound]:
    """One after the other, at 24 kHz and 16 bits in between."""

    def apply(pcm: Pcm, seed: int) -> Sound:
        sound, rate = to_float(pcm), PCM_RATE
        for attack in attacks:
            sound, rate = attack(to_pcm(resample(sound.astype(np.float32), rate, PCM_RATE)), seed)
        return sound, rate

    return apply


_CALL, _FILE = "Opus 24 and 32 kb/s, 0 and 5 % loss", "MP3 64, AAC 64, Opus 16 kb/s"
_BAND, _MILD = "16 kHz, 8 kHz, mu-law", "noise 20 dB, gain ±12 dB, cut, ±2 % speed, echo"
_BOTH = "two at once"
ROWS = ("clean", _CALL, _FILE, _BAND, _MILD, _BOTH)

ATTACKS = {
    attack.name: attack
    for attack in (
        Attack("clean", "clean", clean),
        Attack("opus24", _CALL, opus(24_000, 0.0), OPUS_DELAY_MS),
        Attack("opus24_loss5", _CALL, opus(24_000, 0.05), OPUS_DELAY_MS),
        Attack("opus32", _CALL, opus(32_000, 0.0), OPUS_DELAY_MS),
        Attack("opus32_loss5", _CALL, opus(32_000, 0.05), OPUS_DELAY_MS),
        Attack("mp3_64", _FILE, file_codec("mp3", "libmp3lame", 64_000)),
        Attack("aac_64", _FILE, file_codec("adts", "aac", 64_000)),
        Attack("opus16", _FILE, opus(16_000, 0.0), OPUS_DELAY_MS),
        Attack("resample16", _BAND, resampled(16_000)),
        Attack("resample8", _BAND, resampled(8_000)),
        Attack("mulaw", _BAND, mulaw),
        Attack("noise20", _MILD, noise(20.0)),
        Attack("gain+12", _MILD, gain(12.0)),
        Attack("gain-12", _MILD, gain(-12.0)),
        Attack("cut", _MILD, cut),
        Attack("speed+2", _MILD, speed(1.02)),
        Attack("speed-2", _MILD, speed(0.98)),
        Attack("echo", _MILD, echo()),
        Attack("opus24_mulaw", _BOTH, after(opus(24_000, 0.0), mulaw)),
        Attack("mp3_noise30", _BOTH, after(file_codec("mp3", "libmp3lame", 64_000), noise(30.0))),
    )
}
