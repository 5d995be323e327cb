"""RTP and RTCP against aiortc's own reading and writing of them."""

from __future__ import annotations

import random
import time

import pytest
from aiortc import rtp as reference
from aiortc.rtcrtpreceiver import StreamStatistics
from hypothesis import given
from hypothesis import strategies as st

from voicechat.media.rtp import RtpPacket, RtpReader, RtpWriter, is_rtcp, ntp_time, parse_rtp


def writer() -> RtpWriter:
    return RtpWriter(1234, "name", 111, 48_000, 65_535, 4_294_967_000)


def packet(sequence: int, timestamp: int = 0, ssrc: int = 9) -> RtpPacket:
    return RtpPacket(111, sequence % 65_536, timestamp % (1 << 32), ssrc, b"x")


def test_packets_are_read_by_others():
    ours = writer()
    first = reference.RtpPacket.parse(ours.packet(b"one", 0, 1.0, marker=True))
    second = reference.RtpPacket.parse(ours.packet(b"two", 960, 1.02, marker=False))
    assert (first.sequence_number, first.timestamp, first.marker, first.payload) == (65_535, 4_294_967_000, 1, b"one")
    assert (second.sequence_number, second.timestamp, second.marker) == (0, (4_294_967_000 + 960) % (1 << 32), 0)
    assert (first.ssrc, first.payload_type) == (1234, 111)


@given(
    st.integers(0, 127).filter(lambda kind: kind not in range(72, 77)), st.integers(0, 65_535),
    st.integers(0, (1 << 32) - 1), st.binary(max_size=40), st.integers(0, 3), st.booleans(),
)  # fmt: skip
def test_packets_of_others_are_read(kind, sequence, timestamp, payload, sources, extended):
    theirs = reference.RtpPacket(payload_type=kind, sequence_number=sequence, timestamp=timestamp, ssrc=77, marker=1)
    theirs.payload, theirs.csrc, theirs.padding_size = payload, list(range(sources)), 4 * sources
    extensions = reference.HeaderExtensionsMap()
    if extended:
        extensions._HeaderExtensionsMap__ids.mid = 3
        theirs.extensions.mid = "audio"
    found = parse_rtp(theirs.serialize(extensions))
    assert found == RtpPacket(kind, sequence, timestamp, 77, payload)


@given(st.binary(max_size=60))
def test_noise_does_no_harm(data):
    parse_rtp(data)
    list(writer().read(data, 1.0))
    RtpReader(48_000).heard_report(data, 1.0)


def test_kinds_are_told_apart():
    ours = writer()
    assert not is_rtcp(ours.packet(b"x", 0, 1.0, marker=True))
    assert is_rtcp(ours.report(1.0, 1000.0, b""))


def test_reports_are_read_by_others():
    ours, theirs = writer(), RtpReader(48_000)
    for index in range(10):
        if index != 4:
            theirs.take(packet(65_530 + index, 960 * index), 0.02 * index)
    ours.packet(b"12345", 480, 2.0, marker=False)
    report, names = reference.RtcpPacket.parse(ours.report(2.5, 1_000.0, theirs.report(2.5)))
    assert isinstance(report, reference.RtcpSrPacket)
    assert report.ssrc == 1234
    info = report.sender_info
    assert (info.packet_count, info.octet_count) == (1, 5)
    assert info.rtp_timestamp == (4_294_967_000 + 480 + 24_000) % (1 << 32)
    assert info.ntp_timestamp == ntp_time(1_000.0) == (1_000 + 2_208_988_800) << 32
    (block,) = report.reports
    assert (block.ssrc, block.packets_lost, block.fraction_lost) == (9, 1, 25)
    assert block.highest_sequence == 65_536 + 3
    assert isinstance(names, reference.RtcpSdesPacket)
    assert names.chunks[0].items == [(1, b"name")]


def test_a_receiver_report_before_anything_was_sent():
    (report, _) = reference.RtcpPacket.parse(writer().report(1.0, 1.0, b""))
    assert isinstance(report, reference.RtcpRrPacket)
    assert report.reports == []


def test_reports_of_others_are_read_with_the_round_trip():
    ours = writer()
    ours.packet(b"x", 0, 10.0, marker=True)
    sent = reference.RtcpPacket.parse(ours.report(10.0, 1_000.0, b""))[0]
    last = sent.sender_info.ntp_timestamp >> 16 & 0xFFFFFFFF
    block = reference.RtcpReceiverInfo(
        ssrc=1234, fraction_lost=51, packets_lost=7, highest_sequence=99, jitter=480, lsr=last, dlsr=65_536
    )
    other = reference.RtcpReceiverInfo(
        ssrc=5, fraction_lost=1, packets_lost=7, highest_sequence=1, jitter=1, lsr=0, dlsr=0
    )
    (found,) = ours.read(bytes(reference.RtcpRrPacket(ssrc=9, reports=[other, block])), 11.25)
    assert (found.fraction_lost, found.highest_sequence, found.jitter) == (51, 99, 480)
    assert found.round_trip == pytest.approx(0.25, abs=0.001)


def test_sender_reports_of_others_come_back_in_ours():
    theirs = RtpReader(48_000)
    theirs.take(packet(1), 1.0)
    info = reference.RtcpSenderInfo(ntp_timestamp=0x1122334455667788, rtp_timestamp=0, packet_count=1, octet_count=1)
    theirs.heard_report(bytes(reference.RtcpSrPacket(ssrc=9, sender_info=info)), 2.0)
    block = reference.RtcpReceiverInfo.parse(theirs.report(3.5))
    assert (block.lsr, block.dlsr) == (0x33445566, 65_536 + 32_768)


def test_jitter_and_loss_as_aiortc_counts_them(monkeypatch):
    """The same packets, counted by aiortc's receiver statistics."""
    rng = random.Random(4)
    ours, theirs = RtpReader(48_000), StreamStatistics(48_000)
    now = 100.0
    for index in range(400):
        if rng.random() < 0.07:
            continue
        now += 0.02
        arrival = now + rng.uniform(0, 0.03)
        moment = packet(index, 960 * index)
        ours.take(moment, arrival)
        copy = reference.RtpPacket(sequence_number=moment.sequence, timestamp=moment.timestamp, ssrc=9)
        monkeypatch.setattr(time, "time", lambda arrival=arrival: arrival)
        theirs.add(copy)
    assert ours.lost == theirs.packets_lost
    assert ours.jitter == pytest.approx(theirs.jitter, rel=0.02)


def test_another_stream_begins_anew():
    reader = RtpReader(48_000)
    assert reader.take(packet(10), 1.0)
    assert not reader.take(packet(11), 1.02)
    assert reader.take(packet(40_000, ssrc=10), 1.04)
    assert reader.lost == 0
