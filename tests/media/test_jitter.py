import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.speech import rms, voice
from voicechat.media.jitter import MAX_WAIT_MS, MicrophoneStream, RtpAudio
from voicechat.media.opus import FRAME_SAMPLES, OpusEncoder


@pytest.fixture(scope="module")
def packets() -> list[RtpAudio]:
    """Two seconds of speech from a sender whose numbers are about to wrap."""
    sound = np.round(voice(2.0, rate=24_000) * 32767).astype(np.int16)
    encoder = OpusEncoder(expected_loss=20)
    return [
        RtpAudio(
            (65_500 + i) % 65_536,
            (4_294_960_000 + 960 * i) % (1 << 32),
            encoder.encode(sound[i * FRAME_SAMPLES : (i + 1) * FRAME_SAMPLES]),
        )
        for i in range(100)
    ]


def play(stream: MicrophoneStream, arrivals: list[tuple[float, RtpAudio]]) -> list[tuple[float, np.ndarray]]:
    """Frames with the times they came out, for packets with the times they came in; ticks every 20 ms."""
    out: list[tuple[float, np.ndarray]] = []
    tick = 0.0
    for at, packet in arrivals:
        while tick < at:
            out += [(tick, frame) for frame in stream.tick(tick)]
            tick += 0.02
        out += [(at, frame) for frame in stream.push(packet, at)]
    for _ in range(20):
        out += [(tick, frame) for frame in stream.tick(tick)]
        tick += 0.02
    return out


def test_in_order_packets_are_not_delayed(packets):
    out = play(MicrophoneStream(), [(i * 0.02, p) for i, p in enumerate(packets)])
    assert [at for at, _ in out] == pytest.approx([i * 0.02 for i in range(100)])
    assert all(frame.shape == (320,) for _, frame in out)
    assert rms(np.concatenate([f for _, f in out])) == pytest.approx(0.12, rel=0.15)


def test_overtaken_packet_is_put_back(packets):
    arrivals = [(i * 0.02, p) for i, p in enumerate(packets)]
    arrivals[40] = (0.825, packets[40])
    arrivals.sort(key=lambda arrival: arrival[0])
    stream = MicrophoneStream()
    out = play(stream, arrivals)
    in_order = play(MicrophoneStream(), [(i * 0.02, p) for i, p in enumerate(packets)])
    assert np.array_equal(np.concatenate([f for _, f in out]), np.concatenate([f for _, f in in_order]))
    assert stream.stats.lost == stream.stats.late == 0


def test_one_lost_packet_costs_one_short_wait(packets):
    arrivals = [(i * 0.02, p) for i, p in enumerate(packets) if i != 40]
    stream = MicrophoneStream()
    out = play(stream, arrivals)
    assert len(out) == 100, "time goes on as it did for the sender"
    assert stream.stats.lost == 1
    delays = [at - i * 0.02 for i, (at, _) in enumerate(out)]
    assert max(delays) <= MAX_WAIT_MS / 1000 + 0.05
    assert delays[40 + 10 :] == pytest.approx([0] * 50), "200 ms later the delay is what it was"
    assert rms(out[40][1]) > 0.02, "it is repaired"


def test_loss_of_many_is_bounded(packets):
    arrivals = [(i * 0.02, p) for i, p in enumerate(packets) if not 20 <= i < 60]
    stream = MicrophoneStream()
    assert len(play(stream, arrivals)) == 100
    assert stream.stats.lost == 40


def test_pauses_of_the_sender_are_silence(packets):
    """A sender that leaves out silence (DTX) skips timestamps, not sequence numbers."""
    shifted = [
        RtpAudio(p.sequence, (p.timestamp + (24_000 if i >= 50 else 0)) % (1 << 32), p.payload)
        for i, p in enumerate(packets)
    ]
    stream = MicrophoneStream()
    out = play(stream, [(i * 0.02 + (0.5 if i >= 50 else 0.0), p) for i, p in enumerate(shifted)])
    assert len(out) == 125
    assert stream.stats.lost == 0
    assert rms(np.concatenate([f for _, f in out[57:73]])) < 0.01


def test_starved_time_is_not_counted_twice(packets):
    stream = MicrophoneStream()
    assert stream.starve(5.0) == 0, "not before the first packet"
    for i, packet in enumerate(packets[:10]):
        stream.push(packet, i * 0.02)
    assert stream.starve(0.25) == 0
    assert stream.starve(0.18 + 0.1 + 0.205) == 10
    assert stream.starve(0.18 + 0.1 + 0.205) == 0
    later = RtpAudio(packets[10].sequence, (packets[9].timestamp + 960 * 16) % (1 << 32), packets[10].payload)
    assert len(stream.push(later, 0.5)) == 6, "fifteen frames are missing, ten of them have passed already"


def test_restarted_sender_is_followed(packets):
    stream = MicrophoneStream()
    first = play(stream, [(i * 0.02, p) for i, p in enumerate(packets[:20])])
    restarted = [
        RtpAudio((p.sequence + 30_000) % 65_536, (p.timestamp + 10**9) % (1 << 32), p.payload) for p in packets[20:]
    ]
    second = play(stream, [(i * 0.02, p) for i, p in enumerate(restarted)])
    assert len(first) + len(second) == 100


def test_garbage_is_counted_and_skipped(packets):
    stream = MicrophoneStream()
    mixed = [RtpAudio(p.sequence, p.timestamp, b"\xff\xff" if i == 30 else p.payload) for i, p in enumerate(packets)]
    assert len(play(stream, [(i * 0.02, p) for i, p in enumerate(mixed)])) == 100
    assert stream.stats.invalid == 1


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.floats(0, 0.3), st.floats(0, 0.2))
def test_any_network(packets, seed, loss, jitter):
    """Whatever is lost, delayed, doubled: nothing is held for long, and time stays the sender's to within a frame."""
    rng = random.Random(seed)
    arrivals = []
    for i, packet in enumerate(packets):
        if i in (0, 99) or rng.random() >= loss:
            arrivals.append((i * 0.02 + (0 if i == 0 else rng.random() * jitter), packet))
            if rng.random() < 0.05:
                arrivals.append((i * 0.02 + rng.random() * 0.3, packet))
    arrivals.sort(key=lambda arrival: arrival[0])
    if arrivals[0][1] is not packets[0]:
        return
    stream = MicrophoneStream()
    out = play(stream, arrivals)
    assert 99 <= len(out) <= 100
    assert not stream._held
