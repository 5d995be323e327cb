"""What leaves for a client: silence that costs nothing, and speech after it as if it had been coded throughout."""

from __future__ import annotations

import numpy as np
import pytest

from tests.speech import rms, voice
from voicechat.media import codecs
from voicechat.media.rtp import parse_rtp
from voicechat.media.sdp import Codec
from voicechat.media.sender import SETTLED_FRAMES, Sender

SILENCE = np.zeros(480, np.int16)
CODECS = {"opus": Codec("opus", 111, 48_000), "pcmu": Codec("pcmu", 0, 8_000)}


class Counted:
    """A coder that counts what it codes."""

    def __init__(self, encoder: codecs.VoiceEncoder) -> None:
        self._encoder, self.count = encoder, 0

    def encode(self, pcm: np.ndarray) -> bytes:
        self.count += 1
        return self._encoder.encode(pcm)


def heard(name: str, frames: list[np.ndarray]) -> tuple[np.ndarray, int, list]:
    """What a receiver hears of ``frames``, how many were coded, and the packets."""
    sent: list[bytes] = []
    sender = Sender(CODECS[name], 1, "c", 32_000, sent.append, sent.append)
    counted = sender._encoder = Counted(sender._encoder)
    for number, pcm in enumerate(frames):
        sender.wait(0.02 * number)
        sender.frame(pcm, 0.02 * number)
    packets = [parse_rtp(data) for data in sent]
    decoder = codecs.decoder(name)
    return np.concatenate([decoder.decode(packet.payload) for packet in packets]), counted.count, packets


@pytest.mark.parametrize("name", CODECS)
def test_long_silence_is_not_coded_again_and_again(name):
    spoken = np.round(voice(1.0, rate=24_000) * 32767).astype(np.int16).reshape(-1, 480)
    frames = [*spoken, *[SILENCE] * 100, *spoken]
    sound, coded, packets = heard(name, frames)
    assert coded == 2 * len(spoken) + SETTLED_FRAMES
    assert len(packets) == len(frames)
    assert {(b.sequence - a.sequence) & 0xFFFF for a, b in zip(packets, packets[1:], strict=False)} == {1}
    pause = sound[320 * (len(spoken) + 5) : 320 * (len(spoken) + 95)]
    assert rms(pause) < 2e-4
    again = sound[320 * (len(spoken) + 100) :]
    whole, _, _ = heard(name, [*spoken, *[SILENCE] * 8, *spoken])
    straight = whole[-len(again) :]
    loud = slice(640, None)
    assert rms(again[loud] - straight[loud]) < 0.35 * rms(straight[loud]), "as after a pause that was coded"
    assert rms(again) == pytest.approx(rms(straight), rel=0.05)
