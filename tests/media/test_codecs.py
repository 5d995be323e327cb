import numpy as np
import pytest

from tests.speech import rms, voice
from voicechat.media.codecs import G711Encoder, G711Voice, VoiceError, decoder, encoder
from voicechat.media.jitter import MicrophoneStream, RtpAudio


def speech(seconds: float) -> np.ndarray:
    return np.round(voice(seconds, rate=24_000) * 32767).astype(np.int16)


def coded(sound: np.ndarray, law: str) -> list[bytes]:
    ours = encoder(law, 64_000)
    return [ours.encode(sound[i : i + 480]) for i in range(0, len(sound) - 479, 480)]


@pytest.mark.parametrize("law", ["pcmu", "pcma"])
def test_telephone_sound_survives(law):
    t = np.arange(48_000) / 24_000
    packets = coded(np.round(9000 * np.sin(2 * np.pi * 440 * t)).astype(np.int16), law)
    assert {len(packet) for packet in packets} == {160}
    ears = decoder(law)
    heard = np.concatenate([ears.decode(packet) for packet in packets])
    assert len(heard) == pytest.approx(32_000, abs=64)
    assert rms(heard) == pytest.approx(9000 / 32768 / 2**0.5, rel=0.03)
    middle = heard[8_000:24_000]
    assert np.argmax(np.abs(np.fft.rfft(middle * np.hanning(len(middle))))) == pytest.approx(440, abs=2)


def test_a_lost_packet_is_concealed_by_the_voice_before_it():
    packets = coded(speech(1.0), "pcmu")
    ears = G711Voice("pcmu")
    for packet in packets[:20]:
        ears.decode(packet)
    concealed = ears.conceal(320)
    assert rms(concealed) > 0.02
    assert rms(np.concatenate([ears.conceal(320) for _ in range(5)])[-640:]) < 0.001, "it fades away"


def test_the_stream_keeps_the_senders_time_over_losses():
    packets = coded(speech(2.0), "pcma")
    stream = MicrophoneStream(decoder("pcma"))
    frames = []
    for index, packet in enumerate(packets):
        if index % 10 != 5:
            frames += stream.push(RtpAudio(index, 160 * index, packet), index * 0.02)
        frames += stream.tick(index * 0.02)
    assert len(frames) == pytest.approx(100, abs=5)
    assert stream.stats.lost == 10


def test_wrong_payloads():
    for wrong in (b"", b"x" * 2000):
        with pytest.raises(VoiceError):
            G711Voice("pcmu").decode(wrong)


def test_first_packet_is_whole():
    assert len(G711Encoder("pcmu").encode(np.zeros(480, np.int16))) == 160
