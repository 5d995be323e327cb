"""One port for many links: who sends is known by a check that only who has the password can have made."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import aioice.stun
import pytest

from voicechat.media import aioice_adapter, ice
from voicechat.media.aioice_adapter import MAX_PEERS, IceLink, UdpPorts

LOOPBACK = ice.IceSettings(interfaces=("none",), loopback=True)
SOUND = b"\x80sound"
OTHER = ("127.0.0.1", 5)


class Ends:
    """Two links on one port, and what each gets."""

    def __init__(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind(("127.0.0.1", 0))
            number = sock.getsockname()[1]
        self.ports = UdpPorts(number, number)
        self.heard: tuple[list[bytes], list[bytes]] = ([], [])
        self.links = [IceLink(LOOPBACK, self.ports, heard.append) for heard in self.heard]

    @property
    def port(self) -> aioice_adapter.UdpPort:
        (port,) = self.ports._shared.values()
        return port


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    made = Ends()
    for link in made.links:
        await link.gather_candidates()
    yield made
    for link in made.links:
        await link.close()
    made.ports.close()


def check(link: IceLink, password: str | None = None) -> bytes:
    """A connectivity check for ``link``, signed with ``password``."""
    message = aioice.stun.Message(aioice.stun.Method.BINDING, aioice.stun.Class.REQUEST)
    message.attributes |= {"USERNAME": f"{link.local_username}:them", "PRIORITY": 1, "ICE-CONTROLLING": 1}
    message.add_message_integrity((password or link.local_password).encode())
    return bytes(message)


async def test_a_check_without_the_password_moves_nobody(ends: Ends):
    first, second = ends.links
    ends.port.datagram_received(check(first), OTHER)
    ends.port.datagram_received(check(second, "x" * 24), OTHER)
    ends.port.datagram_received(SOUND, OTHER)
    assert ends.heard == ([SOUND], []), "the forged check has turned nothing"
    ends.port.datagram_received(check(second), OTHER)
    ends.port.datagram_received(SOUND, OTHER)
    assert ends.heard == ([SOUND], [SOUND])


async def test_a_link_has_so_many_addresses_at_most(ends: Ends):
    first, second = ends.links
    ends.port.datagram_received(check(second), OTHER)
    for number in range(1000, 1000 + 3 * MAX_PEERS):
        ends.port.datagram_received(check(first), ("127.0.0.1", number))
        ends.port.datagram_received(check(first), ("127.0.0.1", 1000))
    assert len(ends.port._peers) == MAX_PEERS + 1
    for number in (1000, 1001, 1000 + 3 * MAX_PEERS - 1):
        ends.port.datagram_received(SOUND, ("127.0.0.1", number))
    ends.port.datagram_received(SOUND, OTHER)
    assert ends.heard == ([SOUND] * 2, [SOUND]), "the one that goes on checking stays, and others' stay"
    await first.close()
    assert list(ends.port._peers) == [OTHER]


@pytest.mark.parametrize("shared", [True, False])
async def test_a_malformed_message_is_dropped(ends: Ends, shared: bool):
    link = ends.links[0]
    receiver = ends.port if shared else ends.port._names[link.local_username]
    arrived = link.arrived
    priority_of_two_bytes = b"\x00\x24\x00\x02ab\x00\x00"
    name_that_is_no_text = b"\x00\x06\x00\x04\xff\xff\xff\xff"
    for kind in (b"\x00\x01", b"\x01\x01"):
        for attribute in (priority_of_two_bytes, name_that_is_no_text):
            receiver.datagram_received(kind + b"\x00\x08\x21\x12\xa4\x42" + bytes(12) + attribute, OTHER)
        receiver.datagram_received(kind, OTHER)
    assert link.arrived == arrived and ends.heard == ([], [])


async def test_a_check_without_a_priority_harms_nothing(ends: Ends):
    link = ends.links[0]
    bare = aioice.stun.Message(aioice.stun.Method.BINDING, aioice.stun.Class.REQUEST)
    bare.attributes["USERNAME"] = f"{link.local_username}:them"
    bare.add_message_integrity(link.local_password.encode())
    ends.port.datagram_received(bytes(bare), OTHER)
    link.remote_username, link.remote_password = "them", "y" * 24
    connecting = asyncio.create_task(link.connect())  # checks that came early are looked into
    await asyncio.sleep(0)
    assert not connecting.done()
    await link.close()
    with pytest.raises(ConnectionError):
        await connecting
