"""Which network addresses a call may use, and which STUN and TURN servers help."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

import ifaddr

TTL_S = 86_400
"""How long a credential made from a secret is good for."""

_LOOK_AGAIN_S = 2.0


@dataclass(frozen=True, slots=True)
class IceServer:
    """A STUN or TURN server, as in WebRTC's RTCIceServer. With ``secret``, name and credential are made for a time, as
    coturn's ``use-auth-secret`` checks them (draft-uberti-behave-turn-rest)."""

    urls: tuple[str, ...]
    username: str | None = None
    credential: str | None = None
    secret: str | None = None

    def __post_init__(self) -> None:
        for url in self.urls:
            parse_uri(url)

    def credentials(self, now: float, ttl: float = TTL_S) -> tuple[str | None, str | None]:
        """Name and credential for a user who comes at ``now`` (Unix time)."""
        if self.secret is None:
            return self.username, self.credential
        name = f"{int(now + ttl)}:{self.username or 'voicechat'}"
        digest = hmac.new(self.secret.encode(), name.encode(), hashlib.sha1).digest()
        return name, base64.b64encode(digest).decode()

    def to_dict(self, now: float) -> dict[str, object]:
        """As a browser's RTCPeerConnection takes it."""
        username, credential = self.credentials(now)
        told: dict[str, object] = {"urls": list(self.urls)}
        if username is not None and any(url.startswith("turn") for url in self.urls):
            told |= {"username": username, "credential": credential}
        return told


@dataclass(frozen=True, slots=True)
class ServerUri:
    """A STUN or TURN server's place: ``scheme`` is stun, turn or turns; ``transport`` udp or tcp."""

    scheme: str
    host: str
    port: int
    transport: str


def parse_uri(text: str) -> ServerUri:
    """``stun:host[:port]`` (RFC 7064), ``turn[s]:host[:port][?transport=udp|tcp]`` (RFC 7065). Raises ValueError."""
    match = re.fullmatch(
        r"(stun|turns?):(\[[0-9a-fA-F:.]+\]|[^\[\]:?/@\s]+)(?::(\d{1,5}))?(?:\?transport=(udp|tcp))?", text
    )
    if match is None or int(match[3] or 1) > 65_535 or (match[1] == "stun" and match[4]):
        raise ValueError(f"{text!r} is no address like stun:HOST, turn:HOST:3478?transport=udp or turns:HOST:5349")
    if match[1] == "turns" and match[4] == "udp":
        raise ValueError(f"{text!r}: TURN over DTLS is not supported; write ?transport=tcp, or turn:")
    port = int(match[3]) if match[3] else 5349 if match[1] == "turns" else 3478
    return ServerUri(match[1], match[2].strip("[]"), port, match[4] or ("tcp" if match[1] == "turns" else "udp"))


@dataclass(frozen=True, slots=True)
class IceSettings:
    """How peers find each other.

    ``servers`` is empty unless configured. ``interfaces`` are names (``eth0``), addresses or networks (``10.0.0.0/8``)
    that may be used, all if it is empty. ``loopback`` offers 127.0.0.1 too, for clients on the same machine.
    ``public_addresses`` are offered beside the machine's own, for machines behind a 1:1 NAT. ``relay_only``: only
    addresses that TURN servers lend.
    """

    servers: tuple[IceServer, ...] = ()
    interfaces: tuple[str, ...] = ()
    loopback: bool = False
    ipv6: bool = True
    public_addresses: tuple[str, ...] = ()
    relay_only: bool = False

    def __post_init__(self) -> None:
        for text in self.public_addresses:
            ipaddress.ip_address(text)


_known: dict[IceSettings, tuple[float, list[str]]] = {}


def host_addresses(settings: IceSettings) -> list[str]:
    """This machine's addresses that may be offered, loopback last. Link-local addresses are left out. Looked up again
    after 2 s."""
    now = time.monotonic()
    at, found = _known.get(settings, (0.0, []))
    if not at or now - at > _LOOK_AGAIN_S:
        found = _look(settings)
        while len(_known) >= 16:
            del _known[next(iter(_known))]
        _known[settings] = (now, found)
    return list(found)


def _look(settings: IceSettings) -> list[str]:
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
