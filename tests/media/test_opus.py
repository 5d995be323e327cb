import numpy as np
import pytest
from av import AudioFrame, CodecContext

from tests.speech import rms, voice
from voicechat.media.opus import FRAME_SAMPLES, OpusDecoder, OpusEncoder, OpusError


def coded(sound: np.ndarray, **options) -> list[bytes]:
    """Packets of int16 24 kHz sound."""
    encoder = OpusEncoder(**options)
    return [
        encoder.encode(sound[i : i + FRAME_SAMPLES]) for i in range(0, len(sound) - FRAME_SAMPLES + 1, FRAME_SAMPLES)
    ]


def speech(seconds: float) -> np.ndarray:
    return np.round(voice(seconds, rate=24_000) * 32767).astype(np.int16)


def test_level_and_length_survive():
    sound = speech(2.0)
    decoder = OpusDecoder()
    heard = np.concatenate([decoder.decode(packet) for packet in coded(sound)])
    assert heard.dtype == np.float32
    assert len(heard) == 2 * 16_000
    assert rms(heard) == pytest.approx(rms(sound / 32768), rel=0.1)


def test_tone_keeps_its_pitch():
    t = np.arange(24_000) / 24_000
    tone = np.round(9000 * np.sin(2 * np.pi * 440 * t)).astype(np.int16)
    decoder = OpusDecoder()
    heard = np.concatenate([decoder.decode(packet) for packet in coded(tone)])[4000:12_000]
    spectrum = np.abs(np.fft.rfft(heard * np.hanning(len(heard))))
    assert np.argmax(spectrum) * 16_000 / len(heard) == pytest.approx(440, abs=3)


def test_bit_rate():
    packets = coded(speech(4.0), bitrate=32_000)
    assert 20_000 < sum(len(p) for p in packets) * 8 / 4.0 < 40_000
    assert all(packet[0] & 0x04 == 0 for packet in packets), "mono"


def test_stereo_sender_is_mixed_down_and_keeps_its_pace():
    context = CodecContext.create("libopus", "w")
    context.sample_rate, context.layout, context.format, context.bit_rate = 48_000, "stereo", "s16", 96_000
    sound = np.round(voice(1.0, rate=48_000) * 32767).astype(np.int16)
    packets = []
    for i in range(0, 48_000, 960):
        frame = AudioFrame.from_ndarray(np.repeat(sound[i : i + 960], 2)[None], format="s16", layout="stereo")
        frame.sample_rate, frame.pts = 48_000, i
        packets += [bytes(packet) for packet in context.encode(frame)]
    assert all(packet[0] & 0x04 for packet in packets), "the test sends stereo"
    decoder = OpusDecoder()
    heard = np.concatenate([decoder.decode(packet) for packet in packets])
    assert len(heard) == len(packets) * 320
    assert rms(heard) == pytest.approx(rms(sound / 32768), rel=0.1)


def test_lost_packets_are_repaired_or_concealed():
    packets = coded(speech(2.0), expected_loss=20)
    whole, lossy, silent = OpusDecoder(), OpusDecoder(), OpusDecoder()
    reference, repaired, dropped = [], [], []
    for i, packet in enumerate(packets):
        reference.append(whole.decode(packet))
        if i % 10 == 5:
            repaired.append(lossy.repair(packets[i + 1], 320))
            dropped.append(np.zeros(320, dtype=np.float32))
        else:
            repaired.append(lossy.decode(packet))
            dropped.append(silent.decode(packet))
    good, mended, holes = (np.concatenate(parts) for parts in (reference, repaired, dropped))
    assert rms(good - mended) < 0.5 * rms(good - holes)
    assert len(lossy.conceal(320)) == 320


def test_silence_is_cheap():
    packets = coded(np.zeros(24_000, dtype=np.int16))
    assert np.mean([len(packet) for packet in packets[10:]]) < 30


@pytest.mark.parametrize("garbage", [b"", b"\xff" * 3])
def test_garbage_is_refused(garbage):
    with pytest.raises(OpusError):
        OpusDecoder().decode(garbage)


def test_wrong_length_is_refused():
    with pytest.raises(OpusError, match="480"):
        OpusEncoder().encode(np.zeros(960, dtype=np.int16))
