"""ICE by way of aioice, and all that is used of aioice's insides.

:class:`IceLink` is one ICE connection: its addresses are those that the settings allow, what it receives goes to a sink
at once, and it lives as long as the other side answers (RFC 7675), however little is said.
:func:`check` tells what of aioice has moved when another version is installed; a test calls it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import random
import secrets
import socket
import struct
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

import aioice
import aioice.ice
import aioice.stun
from aioice.candidate import candidate_foundation, candidate_priority

from voicechat.media import ice
from voicechat.media.sdp import Candidate

log = logging.getLogger(__name__)

CONSENT_S = 30.0
"""Without an answer for so long, nothing more may be sent (RFC 7675 section 5.1)."""

CONSENT_INTERVAL_S = 5.0
GATHER_S = 2.0
"""How long STUN and TURN servers may take: an answer without their addresses is better than none."""

MAX_PEERS = 64
"""Addresses that one link may be sent to from, where one port serves all."""

_CLOSE_S = 2.0
_RECEIVE_BUFFER = 256 * 1024
_PROBE_RETRIES = 2  # after 0.5, 1.5 and 3.5 s: within the interval, and a slow path's answer still counts
_MAX_PROBES = 16  # at a time
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


class _Socket(aioice.ice.StunProtocol):
    """A socket of a link. What is not STUN (RFC 7983) is passed on before anybody tries to read it as such. ``peers``
    are the addresses that send to it on a shared port, the last to check last."""

    def __init__(self, link: IceLink) -> None:
        super().__init__(link)
        self.peers: dict[tuple[str, int], None] = {}

    def datagram_received(self, data: bytes | str, addr: tuple[Any, ...]) -> None:
        """Called by the event loop."""
        if data and isinstance(data, bytes) and data[0] > 3:
            self.receiver.data_received(data, 1)
        elif _parsed(data) is not None:  # else it is neither, and is dropped (RFC 8489 section 6.3)
            super().datagram_received(data, addr)


def _parsed(data: bytes | str) -> aioice.stun.Message | None:
    """The STUN message that ``data`` is; None if it is none, or is malformed."""
    if not isinstance(data, bytes):
        return None
    try:
        return aioice.stun.parse_message(data)
    except (ValueError, struct.error):  # aioice checks some lengths; struct those of numbers
        return None


class _Shared:
    """What a link's socket writes to where one port serves all links: looks like the loop's transport."""

    def __init__(self, port: UdpPort, owner: _Socket) -> None:
        self._port = port
        self._owner = owner
        self._closed = False

    def sendto(self, data: bytes, addr: tuple[str, int]) -> None:
        """Send from the shared port."""
        if not self._closed:
            self._port.send(data, addr, self._owner)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """The shared port's."""
        return self._port.transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """True once closed."""
        return self._closed

    def close(self) -> None:
        """Leave the port to the others."""
        if not self._closed:
            self._closed = True
            self._port.forget(self._owner)
            asyncio.get_running_loop().call_soon(self._owner.connection_lost, None)


class UdpPort(asyncio.DatagramProtocol):
    """One UDP socket for many links: checks are told apart by the user name in them, all else by its sender."""

    def __init__(self) -> None:
        self.transport: asyncio.DatagramTransport
        self._names: dict[str, _Socket] = {}
        self._peers: dict[tuple[str, int], _Socket] = {}
        self._asked: dict[bytes, _Socket] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self.transport = cast(asyncio.DatagramTransport, transport)

    def join(self, link: IceLink) -> _Socket:
        """A socket of ``link`` on this port."""
        sock = _Socket(link)
        self._names[link.local_username] = sock
        shared: Any = _Shared(self, sock)
        sock.connection_made(shared)
        return sock

    def forget(self, sock: _Socket) -> None:
        """Nothing more goes to ``sock``."""
        self._names = {name: other for name, other in self._names.items() if other is not sock}
        for peer in sock.peers:
            del self._peers[peer]
        sock.peers.clear()
        self._asked = {asked: other for asked, other in self._asked.items() if other is not sock}

    def send(self, data: bytes, addr: tuple[str, int], sock: _Socket) -> None:
        """Send for ``sock``, and remember what it asks."""
        if data[0] == 0 and len(data) >= 20:  # a request
            self._asked[data[8:20]] = sock
            while len(self._asked) > 4096:
                del self._asked[next(iter(self._asked))]
        self.transport.sendto(data, addr)

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        """Called by the event loop."""
        peer = (addr[0], addr[1])
        if not data:
            return
        if data[0] > 3:
            if (known := self._peers.get(peer)) is not None:
                known.receiver.data_received(data, 1)
            return
        answer = data[0] == 1
        sock = self._asked.pop(bytes(data[8:20]), None) if answer else self._checked(data, peer)
        if sock is not None:
            sock.datagram_received(data, addr)

    def _checked(self, data: bytes, peer: tuple[str, int]) -> _Socket | None:
        """Whose name is in a check. What ``peer`` sends is for that link from now on, if the check was made with its
        password: the name may be known to anybody on the way, and a forger must not turn an address to another link."""
        message = _parsed(data)
        if message is None or message.message_class is not aioice.stun.Class.REQUEST:
            return None
        sock = self._names.get(str(message.attributes.get("USERNAME", "")).partition(":")[0])
        if sock is not None and message.check_message_integrity(sock.receiver.local_password.encode()):
            self._bind(peer, sock)
        return sock

    def _bind(self, peer: tuple[str, int], sock: _Socket) -> None:
        """What comes from ``peer`` is for ``sock``; of a link's addresses those that checked last count."""
        before = self._peers.get(peer)
        if before is not None:
            del before.peers[peer]
        self._peers[peer] = sock
        sock.peers[peer] = None
        if len(sock.peers) > MAX_PEERS:
            oldest = next(iter(sock.peers))
            del sock.peers[oldest], self._peers[oldest]


class UdpPorts:
    """Where links get their sockets: any free port, one of a range, or one that all share. Made once per server."""

    def __init__(self, first: int = 0, last: int = 0) -> None:
        self._first, self._last = first, last
        self._shared: dict[str, UdpPort] = {}
        self._lock = asyncio.Lock()

    async def open(self, link: IceLink, address: str) -> _Socket:
        """A socket for ``link`` at ``address``. Raises OSError if there is none."""
        if self._first and self._first == self._last:
            async with self._lock:
                if address not in self._shared:
                    _, port = await self._bind(UdpPort, address, self._first)
                    self._shared[address] = port
            return self._shared[address].join(link)
        if not self._first:
            return (await self._bind(lambda: _Socket(link), address, 0))[1]
        ports = list(range(self._first, self._last + 1))
        random.shuffle(ports)
        failure = OSError("no port")
        for number in ports:
            try:
                return (await self._bind(lambda: _Socket(link), address, number))[1]
            except OSError as error:
                failure = error
        raise OSError(f"every port of {self._first}-{self._last} at {address} is taken: {failure}")

    @staticmethod
    async def _bind(factory: Callable[[], Any], address: str, port: int) -> tuple[Any, Any]:
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.create_datagram_endpoint(factory, local_addr=(address, port))
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        return transport, protocol

    def close(self) -> None:
        """Give shared ports back."""
        for port in self._shared.values():
            port.transport.close()
        self._shared.clear()


class IceLink(aioice.Connection):
    """One ICE connection of a call. ``sink`` gets what arrives and is not STUN. ``arrived`` and ``consented`` are when
    something last came, and when the other side last answered a check, on the clock ``time.monotonic``."""

    def __init__(
        self,
        settings: ice.IceSettings,
        ports: UdpPorts,
        sink: Callable[[bytes], None],
        *,
        controlling: bool = False,
        consent: float = CONSENT_S,
    ) -> None:
        relay = aioice.TransportPolicy.RELAY if settings.relay_only else aioice.TransportPolicy.ALL
        super().__init__(
            ice_controlling=controlling,
            transport_policy=relay,
            local_username="".join(secrets.choice(_ALPHABET) for _ in range(8)),
            local_password="".join(secrets.choice(_ALPHABET) for _ in range(24)),
        )
        self._settings = settings
        self._ports = ports
        self._sink = sink
        self._consent_s = consent
        self._gathered = False
        self._probes: set[asyncio.Task[None]] = set()
        self.arrived = self.consented = time.monotonic()
        self.expired: Callable[[], None] = lambda: None
        """Called once when consent is over."""

    # -- what the line calls ------------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """True while there is a pair of addresses to send over."""
        return bool(self._nominated)

    def transmit(self, data: bytes) -> None:
        """Send a datagram; it is lost where there is no way, as datagrams are."""
        pair = self._nominated.get(1)
        if pair is not None:
            pair.protocol.transport.sendto(data, pair.remote_addr)

    def candidates(self) -> list[Candidate]:
        """This side's addresses, as they are told to the other, the public ones of a 1:1 NAT included."""
        told: list[Candidate] = []
        for one in self.local_candidates:
            related = None if one.related_address is None else (one.related_address, one.related_port or 0)
            local = Candidate(
                one.foundation, one.component, one.transport, one.priority, one.host, one.port, one.type, related
            )
            told.append(local)
            if one.type == "host" and not ipaddress.ip_address(one.host).is_loopback:
                told += _public(local, self._settings.public_addresses)
        return told

    async def reach(self, candidates: Sequence[Candidate], ufrag: str, password: str, *, lite: bool) -> None:
        """Take what the other side has told of itself, and connect. Raises ConnectionError."""
        self.remote_username, self.remote_password, self.remote_is_lite = ufrag, password, lite
        for one in candidates:
            await self.add_remote_candidate(
                aioice.Candidate(
                    foundation=one.foundation, component=1, transport=one.transport, priority=one.priority,
                    host=one.host, port=one.port, type=one.kind,
                )
            )  # fmt: skip
        await self.connect()
        self.arrived = self.consented = time.monotonic()

    def probe(self) -> None:
        """Ask the other side whether it is there; what it answers moves :attr:`consented`."""
        pair = self._nominated.get(1)
        if pair is not None and self.remote_password is not None:
            self._start_probe(self._ask(pair, self.remote_password.encode()))

    async def close(self) -> None:
        """Release everything; :attr:`expired` is not called any more."""
        self.expired = lambda: None
        for task in self._probes:
            task.cancel()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await super().close()
        except TimeoutError:
            log.warning("a TURN server does not take back what it lent")

    # -- what aioice calls --------------------------------------------------------------------------------------------

    def data_received(self, data: bytes, component: int) -> None:
        """Something that is not STUN has come."""
        self.arrived = time.monotonic()
        self._sink(data)

    def request_received(
        self, message: aioice.stun.Message, addr: tuple[str, int], protocol: aioice.ice.StunProtocol
    ) -> None:
        """A check has come. One without PRIORITY, which RFC 8445 section 7.1.1 demands, is as good as the lowest."""
        message.attributes.setdefault("PRIORITY", 0)  # aioice takes it for granted; the signature is of what came
        self.arrived = time.monotonic()
        super().request_received(message, addr, protocol)

    def check_incoming(
        self, message: aioice.stun.Message, addr: tuple[str, int], protocol: aioice.ice.StunProtocol
    ) -> None:
        """A check has come that was made with the password. If its sender is being asked already, it is asked again at
        once (RFC 8445 section 7.3.1.4): the first time may have been before it had the answer and could tell who asks.
        """
        asked = [
            pair
            for pair in self._check_list
            if pair.state is aioice.ice.CandidatePair.State.IN_PROGRESS
            and pair.protocol is protocol
            and pair.remote_addr == (addr[0], addr[1])
        ]
        super().check_incoming(message, addr, protocol)
        if not self.ice_controlling:
            for pair in asked:
                self._start_probe(self._ask_again(pair))

    def protocol_lost(self, protocol: aioice.ice.StunProtocol) -> None:
        """A socket is gone. Consent tells whether that matters."""

    async def gather_candidates(self) -> None:
        """Open sockets at the addresses that the settings allow, and ask the servers that they name."""
        if self._gathered:
            return
        self._gathered = self._local_candidates_start = True
        found: list[aioice.Candidate] = []
        if not self._settings.relay_only:
            for address in ice.host_addresses(self._settings):
                try:
                    sock = await self._ports.open(self, address)
                except OSError as error:
                    log.warning("no call can come in at %s: %s", address, error)
                    continue
                self._protocols.append(sock)
                found.append(_as_host(sock))
        found += await self._ask_servers()
        self._local_candidates += found
        self._local_candidates_end = True

    async def query_consent(self) -> None:
        """Started by aioice once connected (RFC 7675): asks every 5 s, and ends the link 30 s after the last answer."""
        while time.monotonic() - self.consented < self._consent_s:
            self.probe()
            left = self.consented + self._consent_s - time.monotonic()
            interval = min(CONSENT_INTERVAL_S, self._consent_s / 3)
            await asyncio.sleep(max(0.05, min(left, interval * random.uniform(0.8, 1.2))))
        self._query_consent_task = None
        expired = self.expired
        await self.close()
        expired()

    async def _ask(self, pair: aioice.ice.CandidatePair, key: bytes) -> None:
        request = self.build_request(pair, nominate=False)
        with contextlib.suppress(aioice.stun.TransactionError):
            await pair.protocol.request(request, pair.remote_addr, integrity_key=key, retransmissions=_PROBE_RETRIES)
            self.arrived = self.consented = time.monotonic()

    async def _ask_again(self, pair: aioice.ice.CandidatePair) -> None:
        """A second check of a pair whose first one is still waited for: whichever is answered counts."""
        key = (self.remote_password or "").encode()
        request = self.build_request(pair, nominate=False)
        with contextlib.suppress(aioice.stun.TransactionError):
            await pair.protocol.request(request, pair.remote_addr, integrity_key=key, retransmissions=0)
            if pair.state is aioice.ice.CandidatePair.State.IN_PROGRESS:
                if pair.task is not None:
                    pair.task.cancel()
                pair.nominated = pair.nominated or pair.remote_nominated
                self.check_state(pair, aioice.ice.CandidatePair.State.SUCCEEDED)
                self.check_complete(pair)

    def _start_probe(self, work: Coroutine[Any, Any, None]) -> None:
        if len(self._probes) > _MAX_PROBES:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._probes.add(task)
        task.add_done_callback(self._probes.discard)

    async def _ask_servers(self) -> list[aioice.Candidate]:
        """Addresses that STUN servers see, and that TURN servers lend."""
        work: list[asyncio.Task[tuple[aioice.Candidate, Any]]] = []
        settings = self._settings
        helpers = [(ice.parse_uri(uri), one) for one in settings.servers for uri in one.urls]
        for place, helper in helpers:
            if place.scheme == "stun":
                for protocol in list(self._protocols):
                    if ipaddress.ip_address(protocol.local_candidate.host).version == 4:
                        asked = aioice.ice.server_reflexive_candidate(protocol, (place.host, place.port))
                        work.append(asyncio.create_task(asked))
            else:
                username, credential = helper.credentials(time.time())
                lent = _lent(self, place, username, credential, hide=settings.relay_only)
                work.append(asyncio.create_task(lent))
        if not work:
            return []
        _, late = await asyncio.wait(work, timeout=GATHER_S)
        for task in late:
            task.cancel()
        results = await asyncio.gather(*work, return_exceptions=True)
        found: list[aioice.Candidate] = []
        for result in results:
            if isinstance(result, BaseException):
                log.warning("a STUN or TURN server gave no address: %s", result or type(result).__name__)
                continue
            candidate, protocol = result
            if protocol is not None:
                self._protocols.append(protocol)
            if all((candidate.host, candidate.port) != (other.host, other.port) for other in found):
                found.append(candidate)
        return found


async def try_turn(url: str, username: str | None, credential: str | None) -> tuple[str, int]:
    """The address that a TURN server lends, given back at once. Raises OSError: no way to it, no TLS, or refused."""
    place = ice.parse_uri(url)
    link = IceLink(ice.IceSettings(), UdpPorts(), lambda _: None)
    try:
        lent, protocol = await _lent(link, place, username, credential, hide=False)
    except aioice.stun.TransactionError as error:
        raise OSError(f"the TURN server refuses: {error}") from None
    await protocol.close()
    return lent.host, lent.port


async def _lent(
    link: IceLink, place: ice.ServerUri, username: str | None, credential: str | None, *, hide: bool
) -> tuple[aioice.Candidate, aioice.ice.StunProtocol]:
    """An address that the TURN server at ``place`` lends to ``link``."""
    return await aioice.ice.relayed_candidate(
        component=1, hide_related_address=hide, protocol_factory=lambda: _Socket(link),
        turn_server=(place.host, place.port), turn_username=username, turn_password=credential,
        turn_ssl=place.scheme == "turns", turn_transport=place.transport,
    )  # fmt: skip


def use_host_addresses(settings: ice.IceSettings) -> None:
    """Make peer connections of aiortc as it comes, in this process, offer what :func:`ice.host_addresses` says: by
    itself it never offers 127.0.0.1. For clients on the server's own machine; calls of a server don't need it."""

    def get_host_addresses(use_ipv4: bool, use_ipv6: bool) -> list[str]:
        versions = {4} if use_ipv4 else set()
        versions |= {6} if use_ipv6 else set()
        return [text for text in ice.host_addresses(settings) if ipaddress.ip_address(text).version in versions]

    aioice.ice.get_host_addresses = get_host_addresses


def _as_host(sock: _Socket) -> aioice.Candidate:
    host, port = sock.transport.get_extra_info("sockname")[:2]
    priority = candidate_priority(1, "host")
    if ipaddress.ip_address(host).is_loopback:
        priority -= 1 << 8
    sock.local_candidate = aioice.Candidate(
        foundation=candidate_foundation("host", "udp", host), component=1, transport="udp", priority=priority,
        host=host, port=port, type="host",
    )  # fmt: skip
    return sock.local_candidate


def _public(local: Candidate, addresses: Sequence[str]) -> list[Candidate]:
    """``local`` as it is seen from outside a 1:1 NAT."""
    version = ipaddress.ip_address(local.host).version
    seen = [text for text in addresses if ipaddress.ip_address(text).version == version and text != local.host]
    return [
        Candidate(
            f"{local.foundation}p", 1, "udp", local.priority - 1, text, local.port, "srflx", (local.host, local.port)
        )
        for text in seen
    ]


def check() -> None:
    """Raises RuntimeError, with what has moved, if this aioice is not the one that this module was written for."""
    lacks = [
        f"aioice.Connection has no {name}"
        for name in (
            "request_received", "data_received", "protocol_lost", "query_consent", "build_request", "gather_candidates",
            "add_remote_candidate", "connect", "close", "check_incoming", "check_state", "check_complete",
        )
        if not hasattr(aioice.Connection, name)
    ]  # fmt: skip
    link = aioice.Connection(ice_controlling=False)
    lacks += [
        f"aioice.Connection keeps no {name}"
        for name in (
            "_nominated", "_protocols", "_local_candidates", "_local_candidates_start", "_local_candidates_end",
            "_query_consent_task", "_check_list",
        )
        if not hasattr(link, name)
    ]  # fmt: skip
    lacks += [
        f"aioice.ice has no {name}"
        for name in (
            "StunProtocol",
            "get_host_addresses",
            "server_reflexive_candidate",
            "relayed_candidate",
            "CandidatePair",
        )
        if not hasattr(aioice.ice, name)
    ]
    if lacks:
        raise RuntimeError(f"this aioice is not 0.13: {'; '.join(lacks)}")
