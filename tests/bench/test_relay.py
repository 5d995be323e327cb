from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voicechat.bench.relay import Path, Relay, Weather, through


def losses(weather: Weather, count: int = 20_000) -> list[bool]:
    path = Path(weather, 5)
    return [not path.fates(index * 0.02) for index in range(count)]


@pytest.mark.parametrize("burst", [1.0, 3.0])
def test_so_much_is_lost_in_runs_of_such_length(burst):
    lost = losses(Weather(loss=0.05, burst=burst))
    runs = sum(now and not before for before, now in zip([False, *lost], lost, strict=False))
    assert sum(lost) / len(lost) == pytest.approx(0.05, rel=0.15)
    assert sum(lost) / runs == pytest.approx(max(burst, 1 / 0.95), rel=0.15)


@settings(deadline=None)
@given(st.floats(0, 100), st.floats(0, 100))
def test_delays_are_within_their_bounds_and_keep_the_order(delay, jitter):
    path = Path(Weather(delay_ms=delay, jitter_ms=jitter), 3)
    out = [(index * 0.02, path.fates(index * 0.02)[0]) for index in range(200)]
    assert all(delay / 1000 - 1e-9 <= due - at <= (delay + jitter) / 1000 + 1e-9 for at, due in out)
    assert all(first <= second for (_, first), (_, second) in zip(out, out[1:], strict=False))


def test_copies_and_latecomers():
    path = Path(Weather(duplicate=0.1, reorder=0.1), 3)
    fates = [path.fates(0.02 * index) for index in range(5000)]
    assert sum(len(fate) == 2 for fate in fates) / 5000 == pytest.approx(0.1, rel=0.2)
    assert sum(fate[0] > 0.02 * index + 0.025 for index, fate in enumerate(fates)) / 5000 == pytest.approx(0.1, rel=0.2)


class Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, addr):
        self.transport.sendto(b"re:" + data, addr)


class Inbox(asyncio.DatagramProtocol):
    def __init__(self):
        self.queue = asyncio.Queue()

    def datagram_received(self, data, addr):
        self.queue.put_nowait((data, addr))


async def test_packets_go_there_and_back():
    loop = asyncio.get_running_loop()
    echo, _ = await loop.create_datagram_endpoint(Echo, local_addr=("127.0.0.1", 0))
    relay = await Relay(echo.get_extra_info("sockname"), Weather(delay_ms=5)).start()
    client, inbox = await loop.create_datagram_endpoint(Inbox, local_addr=("127.0.0.1", 0))
    for word in (b"one", b"two"):
        client.sendto(word, relay.address)
    got = [await asyncio.wait_for(inbox.queue.get(), 5) for _ in range(2)]
    assert got == [(b"re:one", relay.address), (b"re:two", relay.address)]
    relay.blocked = True
    client.sendto(b"three", relay.address)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(inbox.queue.get(), 0.1)
    for transport in (client, echo):
        transport.close()
    relay.close()


async def test_an_answer_leads_through_the_relay():
    text = "v=0\r\nm=audio 9 X 1\r\na=ice-pwd:x\r\na=candidate:1 1 udp 2130706431 127.0.0.1 4000 typ host\r\n"
    made, relay = await through(text, Weather())
    assert relay.target == ("127.0.0.1", 4000)
    assert f"127.0.0.1 {relay.address[1]} typ host" in made
    assert " 4000 typ" not in made
    relay.close()
