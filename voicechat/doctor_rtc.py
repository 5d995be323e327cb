"""``voicechat doctor --rtc``: what a client outside will meet when it calls."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import time
from collections.abc import Generator, Iterator

from voicechat.calls import ice_settings, ports, tls_context
from voicechat.config import Settings
from voicechat.doctor_findings import Finding, Level
from voicechat.media import ice, stun
from voicechat.media.aioice_adapter import try_turn
from voicechat.media.ice import IceServer

_TURN_S = 5.0


def examine(settings: Settings) -> Iterator[Finding]:
    """The findings, in the order in which they should be read."""
    host = settings.server.host
    local = host in ("localhost", "::1") or host.startswith("127.")
    used = ice_settings(settings, loopback=local, public=())
    addresses = [] if used.relay_only else ice.host_addresses(used)
    yield from _addresses(settings, addresses)
    yield from _ports(settings, addresses)
    seen = list(_seen(settings))
    for _, finding in seen:
        yield finding
    public = {text for text, _ in seen if text} | set(used.public_addresses)
    relays = yield from _turn(used.servers)
    yield from _tls(settings, local=local)
    yield _outside(addresses, public, relays=relays, local=local, announced=bool(settings.rtc.public_address))


def _addresses(settings: Settings, addresses: list[str]) -> Iterator[Finding]:
    if settings.rtc.relay_only:
        yield Finding("addresses", Level.OK, "only those that TURN servers lend (rtc.relay_only)")
    elif addresses:
        yield Finding("addresses", Level.OK, f"calls are offered {', '.join(addresses)}")
    else:
        advice = "check rtc.interfaces and rtc.ipv6"
        yield Finding("addresses", Level.FAIL, "no network address can be offered to a client", advice)


def _ports(settings: Settings, addresses: list[str]) -> Iterator[Finding]:
    first, last = ports(settings)
    if not first or not addresses:
        return
    taken = [port for port in range(first, min(last, first + 499) + 1) if not _free(addresses[0], port)]
    text = f"UDP {settings.rtc.ports}"
    if first != last:
        text += f": room for {last - first + 1 - len(taken)} calls"
    if taken and len(taken) == last - first + 1:
        yield Finding("udp", Level.FAIL, f"{text}: taken", "stop the program that has it, or change rtc.ports")
    elif last > first and last - first + 1 < settings.server.max_sessions:
        advice = f"server.max_sessions is {settings.server.max_sessions}: widen rtc.ports, or let all share one port"
        yield Finding("udp", Level.WARN, text, advice)
    else:
        yield Finding("udp", Level.OK, f"{text}: open it in the firewall")


def _free(address: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind((address, port))
        except OSError:
            return False
    return True


def _seen(settings: Settings) -> Iterator[tuple[str | None, Finding]]:
    """What each STUN server says of one and the same socket."""
    if not settings.rtc.stun:
        return
    mapped: list[tuple[str, int]] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("", 0))
        own = sock.getsockname()[1]
        for server in settings.rtc.stun:
            place = ice.parse_uri(server)
            try:
                found = stun.ask(sock, place.host, place.port)
            except OSError as error:
                yield None, Finding("stun", Level.WARN, f"{server}: {error}", "check rtc.stun, and that UDP may go out")
                continue
            mapped.append(found)
            kept = "the same port" if found[1] == own else f"port {found[1]} for {own}"
            yield found[0], Finding("stun", Level.OK, f"{server} sees {found[0]}, {kept}")
    if len(set(mapped)) > 1:
        advice = "the NAT gives every destination another port: direct calls fail for many; set rtc.turn"
        yield None, Finding("nat", Level.WARN, "STUN servers see different ports of one socket", advice)


def _turn(servers: tuple[IceServer, ...]) -> Generator[Finding, None, bool]:
    """True in the end if one lends addresses."""
    relays = False
    for server in servers:
        for url in (url for url in server.urls if url.startswith("turn")):
            username, credential = server.credentials(time.time())
            try:
                lent = asyncio.run(asyncio.wait_for(try_turn(url, username, credential), _TURN_S))
            except TimeoutError:
                yield Finding("turn", Level.FAIL, f"{url} does not answer within {_TURN_S:g} s", "check rtc.turn")
            except OSError as error:
                yield Finding("turn", Level.FAIL, f"{url}: {error}", "check rtc.turn and its credentials")
            else:
                relays = True
                yield Finding("turn", Level.OK, f"{url} lends {lent[0]}")
    return relays


def _tls(settings: Settings, *, local: bool) -> Iterator[Finding]:
    try:
        context = tls_context(settings)
    except (OSError, ssl.SSLError, ValueError) as error:
        yield Finding("tls", Level.FAIL, f"the certificate can't be used: {error}", "check server.tls_cert and tls_key")
        return
    if context is not None:
        own = settings.server.tls_cert is None
        text = "a certificate made here: browsers ask once whether to trust it" if own else "server.tls_cert is used"
        yield Finding("tls", Level.OK, text)
    elif local:
        yield Finding("tls", Level.OK, "none is needed: browsers trust this machine's own pages")
    else:
        advice = "--https, server.tls_cert and tls_key, or a proxy with TLS before the server"
        yield Finding("tls", Level.WARN, "without TLS browsers give the page no microphone", advice)


def _outside(addresses: list[str], public: set[str], *, relays: bool, local: bool, announced: bool) -> Finding:
    if local and not relays:
        advice = "" if not public else "set server.host to let others in"
        return Finding("outside", Level.OK, "the server is for this machine only (server.host)", advice)
    open_to_all = [text for text in addresses if ipaddress.ip_address(text).is_global]
    if open_to_all:
        return Finding("outside", Level.OK, f"clients reach {open_to_all[0]} directly, if the firewall lets UDP in")
    if public and announced:
        return Finding("outside", Level.OK, f"clients are told {', '.join(sorted(public))} (rtc.public_address)")
    if relays:
        return Finding("outside", Level.OK, "clients from elsewhere come by way of the TURN server")
    if public:
        seen = ", ".join(sorted(public))
        advice = f"behind a 1:1 NAT: --set rtc.public_address={seen}; else forward rtc.ports, or set rtc.turn"
        return Finding("outside", Level.WARN, f"the machine is behind a NAT, seen as {seen}", advice)
    advice = "for the internet: rtc.public_address behind a 1:1 NAT, rtc.stun, or rtc.turn (docs/calls.md)"
    return Finding("outside", Level.WARN, "only clients of the same network reach this machine's addresses", advice)
