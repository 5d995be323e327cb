"""Which network addresses a peer connection may use, and the answers' SDP. The only place that reaches into aioice."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

import aioice.ice
import ifaddr
from aiortc import RTCConfiguration, RTCIceServer


@dataclass(frozen=True, slots=True)
class IceServer:
    """A STUN or TURN server, as in WebRTC's RTCIceServer."""

    urls: tuple[str, ...]
    username: str | None = None
    credential: str | None = None


@dataclass(frozen=True, slots=True)
class IceSettings:
    """How peers find each other.

    ``servers`` is empty unless configured: aiortc would ask a public STUN server, and wait 5 s for it where there is
    no way out. ``interfaces`` are names (``eth0``), addresses or networks (``10.0.0.0/8``) that may be used, all if it
    is empty. ``loopback`` offers 127.0.0.1 too, for clients on the same machine. ``public_ip`` is offered beside the
    machine's own IPv4 addresses, for machines behind a 1:1 NAT.
    """

    servers: tuple[IceServer, ...] = ()
    interfaces: tuple[str, ...] = ()
    loopback: bool = False
    ipv6: bool = True
    public_ip: str | None = None

    def __post_init__(self) -> None:
        if self.public_ip is not None:
            ipaddress.IPv4Address(self.public_ip)


def configuration(settings: IceSettings) -> RTCConfiguration:
    """The configuration of one peer connection; never with aiortc's public default server."""
    return RTCConfiguration(
        iceServers=[
            RTCIceServer(urls=list(server.urls), username=server.username, credential=server.credential)
            for server in settings.servers
        ]
    )


def host_addresses(settings: IceSettings) -> list[str]:
    """This machine's addresses that may be offered, loopback last. Link-local addresses are left out."""
    found: list[str] = []
    for adapter in ifaddr.get_adapters():
        for entry in adapter.ips:
            text = entry.ip if isinstance(entry.ip, str) else entry.ip[0]
            address = ipaddress.ip_address(text)
            if address.version == 6 and not settings.ipv6:
                continue
            if address.is_loopback and (not settings.loopback or address.version == 6):
                continue
            if address.is_link_local or not _allowed(address, {adapter.name, entry.nice_name}, settings.interfaces):
                continue
            found.append(text)
    return sorted(dict.fromkeys(found), key=lambda text: ipaddress.ip_address(text).is_loopback)


def use_host_addresses(settings: IceSettings) -> None:
    """Make every later peer connection of this process offer :func:`host_addresses` and nothing else.

    aioice has no option for it: it lists all addresses but 127.0.0.1.
    """

    def get_host_addresses(use_ipv4: bool, use_ipv6: bool) -> list[str]:
        versions = {4} if use_ipv4 else set()
        versions |= {6} if use_ipv6 else set()
        return [text for text in host_addresses(settings) if ipaddress.ip_address(text).version in versions]

    aioice.ice.get_host_addresses = get_host_addresses


def prepare_offer(sdp: str) -> str:
    """The offer without ``.local`` candidates, which would take seconds to look up, and without the word that no more
    candidates will come: the client's first packet tells its address, and aiortc shall wait for it."""
    sdp = re.sub(r"^a=candidate:\S+ \d+ \S+ \d+ \S+\.local .*\r?\n", "", sdp, flags=re.MULTILINE)
    return re.sub(r"^a=end-of-candidates\r?\n", "", sdp, flags=re.MULTILINE)


def finish_answer(sdp: str, *, public_ip: str | None = None) -> str:
    """aiortc's answer, completed: asks for mono Opus with in-band FEC, and offers ``public_ip`` if there is one."""
    lines: list[str] = []
    for line in sdp.splitlines():
        lines.append(line)
        if match := re.match(r"a=rtpmap:(\d+) opus/", line, flags=re.IGNORECASE):
            lines.append(f"a=fmtp:{match[1]} minptime=10;useinbandfec=1;stereo=0;sprop-stereo=0")
        if public_ip and (match := re.match(r"a=candidate:(\S+) (\d+ udp) (\d+) (\S+) (\d+) typ host", line)):
            address = ipaddress.ip_address(match[4])
            if address.version == 4 and not address.is_loopback:
                lines.append(
                    f"a=candidate:{match[1]}p {match[2]} {int(match[3]) - 1} {public_ip} {match[5]} typ srflx"
                    f" raddr {match[4]} rport {match[5]}"
                )
    return "\r\n".join(lines) + "\r\n"


def _allowed(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address, names: set[str], interfaces: Sequence[str]
) -> bool:
    if not interfaces or address.is_loopback:
        return True
    for interface in interfaces:
        if interface in names:
            return True
        try:
            network = ipaddress.ip_network(interface, strict=False)
        except ValueError:
            continue
        if address.version == network.version and address in network:
            return True
    return False
