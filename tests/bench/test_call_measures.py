"""What is told of a call's packets, by packets whose fate is known."""

from __future__ import annotations

import random

import pytest

from voicechat.bench.call_client import Packet
from voicechat.bench.call_measures import LEAST_DELAY_S, buffered, intervals_ms, played


def sent(count: int, *, sequence: int = 65_530, timestamp: int = (1 << 32) - 9600) -> list[Packet]:
    """Packets that came 20 ms apart; their numbers wrap."""
    return [Packet(100 + 0.02 * n, (sequence + n) & 0xFFFF, (timestamp + 960 * n) & 0xFFFFFFFF) for n in range(count)]


def late(packet: Packet, by: float) -> Packet:
    return Packet(packet.at + by, packet.sequence, packet.timestamp)


def test_even_packets_are_heard_as_they_are():
    packets = sent(500)
    assert intervals_ms(packets) == pytest.approx([20.0] * 499)
    heard = buffered(packets)
    assert heard.good and (heard.share, heard.underruns) == (0.0, 0)
    assert heard.delay_s == pytest.approx(LEAST_DELAY_S, abs=0.001)


def test_lost_packets_are_filled_in_and_have_no_interval():
    packets = [packet for n, packet in enumerate(sent(500)) if n not in (100, 300, 301)]
    assert len(intervals_ms(packets)) == 499 - 2 - 3
    heard = buffered(packets)
    assert heard.underruns == 2
    assert heard.longest_s == pytest.approx(0.04)
    assert heard.share == pytest.approx(3 / 500)


def test_a_sender_that_stands_still_is_heard_as_one_gap_and_the_delay_goes_back():
    packets = [late(packet, 0.3 if n >= 200 else 0.0) for n, packet in enumerate(sent(900))]
    heard = buffered(packets)
    assert heard.underruns == 1 and not heard.good
    assert heard.longest_s == pytest.approx(0.3 - LEAST_DELAY_S, abs=0.02)


def test_what_was_overtaken_too_late_is_not_waited_for():
    packets = sent(500)
    packets.insert(260, late(packets.pop(250), 0.2))
    heard = buffered(packets)
    assert (heard.underruns, heard.longest_s) == (1, 0.02)


def test_jitter_makes_the_buffer_wait_longer():
    rng = random.Random(1)
    packets = sorted((late(packet, rng.uniform(0, 0.12)) for packet in sent(1500)), key=lambda packet: packet.at)
    heard = buffered(packets)
    assert 0.08 < heard.delay_s < 0.18
    assert heard.share < 0.05


def test_a_pause_of_the_sender_is_not_missed():
    packets = sent(300)
    moved = [Packet(p.at + 2, p.sequence, (p.timestamp + 96_000) & 0xFFFFFFFF) for p in packets[100:]]
    assert buffered(packets[:100] + moved).share == 0
    assert len(intervals_ms(packets[:100] + moved)) == 298


def test_hardly_any_packets():
    assert buffered(sent(1)) is None


def test_one_lost_packet_leaves_no_delay():
    slots = played([packet for n, packet in enumerate(sent(500)) if n != 250])
    assert [slot.number for slot in slots if slot.lost] == [250]
    assert [slot.delay_s for slot in slots] == pytest.approx([LEAST_DELAY_S] * 500)


def test_one_late_packet_delays_for_less_than_200_ms():
    held = [late(packet, max(0.0, 0.07 - 0.019 * n)) for n, packet in enumerate(sent(500)[250:])]
    slots = played(sent(500)[:250] + held)
    assert slots[250].filled_s == pytest.approx(0.07 - LEAST_DELAY_S, abs=0.003)
    assert all(slot.delay_s <= LEAST_DELAY_S + 0.021 for slot in slots[260:])
