"""``voicechat bench loss``: what a bad network does to the words, in both directions, on a virtual clock.

Questions are spoken, coded as calls are (:mod:`voicechat.media.opus`), sent over a simulated network (as
:mod:`voicechat.bench.relay` is), and decoded: by the server's :class:`~voicechat.media.jitter.MicrophoneStream` (what
the ears hear), and by a browser's jitter buffer (:mod:`voicechat.bench.call_measures`) with libopus's concealment and
repair (what the client hears). The ears that are served with write both down. ``--json`` prints one object: ``schema``
"voicechat-loss/1", ``kind``, ``command``, ``machine``, ``settings``, ``texts``, and of ``none``, ``ears`` and
``client`` the ``word_errors``, ``words`` and ``wer``, with ``points`` more than with nothing lost.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from voicechat.bench import spoken
from voicechat.bench.call_client import FRAME, Packet
from voicechat.bench.call_measures import played
from voicechat.bench.machine import machine_facts
from voicechat.bench.outcome import Report, outcome
from voicechat.bench.questions import questions
from voicechat.bench.relay import Path, Weather
from voicechat.bench.served import assembled, settings_of
from voicechat.contract.sound import EARS_RATE, PCM_RATE, EarsPcm
from voicechat.media.jitter import MicrophoneStream, RtpAudio
from voicechat.media.opus import FRAME_SAMPLES, OpusDecoder, OpusEncoder
from voicechat.media.rate import EXPECTED_LOSS, MOST_EXPECTED
from voicechat.media.resample import resample, to_pcm
from voicechat.train.transcriber import Transcriber
from voicechat.train.transcripts import compare

SCHEMA = "voicechat-loss/1"
_FRAME_S = 0.02
_EARS_FRAME = EARS_RATE // 50
_TAIL_S = 0.4


def main(options: argparse.Namespace) -> int:
    """Run the benchmark: 0, or 2 if an option can't be used."""
    return outcome(options, lambda: _run(options), as_text, lambda _: False)


async def _run(options: argparse.Namespace) -> Report:
    texts = list(questions(options.texts))
    voice, sounds = await asyncio.to_thread(spoken.speak, texts, PCM_RATE)
    ears = (await assembled(settings_of(options))).ears
    weather = Weather(loss=options.loss / 100, burst=options.burst, jitter_ms=options.jitter)
    figures = await asyncio.to_thread(_measure, texts, sounds, weather, Transcriber(ears))
    settings = {"loss": options.loss, "burst": options.burst, "jitter_ms": options.jitter, "voice": voice}
    head = {"schema": SCHEMA, "kind": "loss", "command": " ".join(["voicechat", *sys.argv[1:]])}
    return {**head, "machine": machine_facts(), "settings": settings, "texts": len(texts), **figures}


def _measure(
    texts: Sequence[str], sounds: Sequence[npt.NDArray[np.float32]], weather: Weather, hear: Transcriber
) -> dict[str, Any]:
    errors = {"none": 0, "ears": 0, "client": 0}
    words = 0
    expected = max(EXPECTED_LOSS, min(MOST_EXPECTED, round(100 * weather.loss)))
    for number, (text, sound) in enumerate(zip(texts, sounds, strict=True)):
        packets = coded(sound, expected)
        heard = {
            "none": ears_hear(packets, Path(Weather(), 0)),
            "ears": ears_hear(packets, Path(weather, 2 * number)),
            "client": client_hears(packets, Path(weather, 2 * number + 1)),
        }
        for name, one in heard.items():
            found = compare(text, hear(to_pcm(resample(one, EARS_RATE, PCM_RATE))))
            errors[name] += found.errors
        words += found.words
    rates = {name: 100 * count / words for name, count in errors.items()}
    return {
        name: {"word_errors": errors[name], "words": words, "wer": rates[name], "points": rates[name] - rates["none"]}
        for name in errors
    }


def coded(sound: npt.NDArray[np.float32], expected_loss: int) -> list[bytes]:
    """The packets of float32 sound at 24 kHz, with quiet after it; ``expected_loss`` in percent, as reports tell it."""
    pcm = to_pcm(np.concatenate([sound, np.zeros(round(_TAIL_S * PCM_RATE), np.float32)]))
    encoder = OpusEncoder(expected_loss=expected_loss)
    starts = range(0, len(pcm) - FRAME_SAMPLES + 1, FRAME_SAMPLES)
    return [encoder.encode(pcm[start : start + FRAME_SAMPLES]) for start in starts]


def arrivals(packets: Sequence[bytes], path: Path) -> list[tuple[float, int]]:
    """When packets that are sent every 20 ms come out of ``path``, and their numbers; in order of time."""
    return sorted((due, number) for number in range(len(packets)) for due in path.fates(number * _FRAME_S))


def ears_hear(packets: Sequence[bytes], path: Path) -> EarsPcm:
    """What the server's ears hear: float32 at 16 kHz."""
    stream, frames, tick = MicrophoneStream(), list[EarsPcm](), 0.0
    for at, number in arrivals(packets, path):
        while tick < at:
            frames += stream.tick(tick)
            tick += _FRAME_S
        frames += stream.push(RtpAudio(number, number * FRAME, packets[number]), at)
    for _ in range(10):
        tick += _FRAME_S
        frames += stream.tick(tick)
    return np.concatenate(frames)


def client_hears(packets: Sequence[bytes], path: Path) -> EarsPcm:
    """What a browser plays, but for its stretching: float32 at 16 kHz."""
    came = arrivals(packets, path)
    slots = played([Packet(at, number, number * FRAME) for at, number in came])
    here, first, decoder = {number for _, number in came}, came[0][1], OpusDecoder()
    sound: list[EarsPcm] = []
    for slot in slots:
        number = first + slot.number
        if not slot.lost:
            late = round(slot.filled_s / 0.01) * (EARS_RATE // 100)
            if late:
                sound.append(decoder.conceal(min(late, 6 * _EARS_FRAME)))
            sound.append(decoder.decode(packets[number]))
        elif number + 1 in here:
            sound.append(decoder.repair(packets[number + 1], _EARS_FRAME))
        else:
            sound.append(decoder.conceal(_EARS_FRAME))
    return np.concatenate(sound)


def as_text(report: Report) -> str:
    """A line for each direction."""
    settings = report["settings"]
    lines = [
        f"{report['texts']} spoken questions, {settings['loss']:g} % lost in runs of {settings['burst']:g}, "
        f"{settings['jitter_ms']:g} ms of jitter",
    ]
    for name, title in (("none", "nothing lost"), ("ears", "the ears"), ("client", "the client")):
        found = report[name]
        lines.append(
            f"{title:13} WER {found['wer']:5.1f} % ({found['word_errors']} of {found['words']}), {found['points']:+.1f}"
        )
    return "\n".join(lines)
