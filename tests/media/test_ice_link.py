"""How a link is made, by a client that speaks STUN over a plain socket."""

from __future__ import annotations

import asyncio
import socket

import aioice.stun
import pytest

from voicechat.media import ice_checks
from voicechat.media.aioice_adapter import IceLink, UdpPorts
from voicechat.media.ice import IceSettings
from voicechat.media.sdp import Candidate

LOOPBACK = IceSettings(interfaces=("none",), loopback=True)
NAME, PASSWORD = "them", "their-password-of-24-char"


@pytest.fixture
async def link():
    """A link that has gathered its address."""
    made = IceLink(LOOPBACK, UdpPorts(), lambda _: None)
    await made.gather_candidates()
    yield made
    await made.close()


@pytest.fixture
def sock():
    """The client's socket."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.bind(("127.0.0.1", 0))
        made.setblocking(False)
        yield made


async def test_a_client_that_could_not_answer_the_first_check_is_asked_again_when_it_checks(link, sock, monkeypatch):
    monkeypatch.setattr(aioice.stun, "RETRY_RTO", 3600.0)  # nothing is repeated by the clock
    loop, (host, port) = asyncio.get_running_loop(), sock.getsockname()
    theirs = Candidate("1", 1, "udp", 2_122_063_615, host, port, "host")
    async with asyncio.timeout(30):
        reaching = asyncio.create_task(link.reach([theirs], NAME, PASSWORD, lite=False))
        first, server = await loop.sock_recvfrom(sock, 2048)
        assert aioice.stun.parse_message(first).message_class is aioice.stun.Class.REQUEST
        check = ice_checks.check(f"{link.local_username}:{NAME}", link.local_password)
        await loop.sock_sendto(sock, check, server)
        answered = asked = False
        while not (answered and asked):
            data, server = await loop.sock_recvfrom(sock, 2048)
            answer = ice_checks.read(data, server, PASSWORD)
            if answer is None:
                answered = True
            elif aioice.stun.parse_message(data).transaction_id != aioice.stun.parse_message(first).transaction_id:
                asked = True
                await loop.sock_sendto(sock, answer, server)
        await reaching
    assert link.connected


async def test_what_is_neither_check_nor_answer_is_refused():
    with pytest.raises(ValueError):
        ice_checks.read(b"\0" * 20, ("127.0.0.1", 9), PASSWORD)
