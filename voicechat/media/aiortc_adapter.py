"""DTLS, SRTP and data channels by way of aiortc, and all that is used of aiortc's insides.

A :class:`Line` is one secured connection of a call. RTP and RTCP go past aiortc's own senders and receivers: a packet
is a few calls, without a task or a queue on its way. The ICE link under a line can be replaced (an ICE restart) while
DTLS, SRTP and SCTP go on. :func:`check` tells what of aiortc has moved when another version is installed.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Sequence
from typing import Any, Protocol

import aiortc
import aiortc.rtcdtlstransport
import aiortc.rtcsctptransport
import pylibsrtp
from aiortc import (
    RTCCertificate,
    RTCDataChannel,
    RTCDtlsFingerprint,
    RTCDtlsParameters,
    RTCDtlsTransport,
    RTCSctpCapabilities,
    RTCSctpTransport,
)
from OpenSSL import SSL

from voicechat.media.aioice_adapter import IceLink
from voicechat.media.rtp import is_rtcp

log = logging.getLogger(__name__)

SCTP_CHUNK = 1100
"""Bytes of a message in one packet: with all headers they fit through a path with an MTU of 1,280 (that of IPv6 at
least), where longer ones stall without a word, as the 1,200 of older aiortc did."""

MAX_MESSAGE = aiortc.rtcsctptransport.LOCAL_MAX_MESSAGE_SIZE
"""Longest message of a data channel, in bytes."""

CERTIFICATE_S = 86_400.0
"""How long calls are given the same certificate."""

_CIPHERS = (
    b"ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384"
    b":ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305"
    b":ECDHE-ECDSA-AES128-SHA:ECDHE-RSA-AES128-SHA:ECDHE-ECDSA-AES256-SHA:ECDHE-RSA-AES256-SHA"
)
_INBOX = 256


class LineHandler(Protocol):
    """What a line tells its owner. All calls come on the event loop."""

    def on_rtp(self, data: bytes) -> None:
        """A packet of sound, decrypted."""

    def on_rtcp(self, data: bytes) -> None:
        """A control packet, decrypted."""

    def on_channel(self, channel: RTCDataChannel) -> None:
        """The client has opened a data channel."""

    def on_line_up(self) -> None:
        """Sound can flow."""

    def on_line_down(self, reason: str) -> None:
        """The line is over; called once, unless :meth:`Line.close` came first."""


class Certificate(RTCCertificate):
    """A certificate that also talks to those who have RSA keys (RFC 8827 section 6.5)."""

    def _create_ssl_context(self, srtp_profiles: list[Any]) -> SSL.Context:
        context = super()._create_ssl_context(srtp_profiles)
        context.set_cipher_list(_CIPHERS)
        return context


_certificate: tuple[float, Certificate] | None = None


def certificate() -> Certificate:
    """This process's certificate, a new one every day."""
    global _certificate
    now = time.monotonic()
    if _certificate is None or now - _certificate[0] > CERTIFICATE_S:
        _certificate = (now, Certificate.generateCertificate())
    return _certificate[1]


def fingerprints(of: Certificate) -> list[tuple[str, str]]:
    """Those that are told in an answer: sha-256, which everybody knows."""
    return [(one.algorithm, one.value) for one in of.getFingerprints() if one.algorithm == "sha-256"]


class _Wire:
    """What aiortc's DTLS transport needs of an ICE transport."""

    state = "completed"
    role = "controlled"

    def __init__(self) -> None:
        self.link: IceLink | None = None
        self._inbox: asyncio.Queue[bytes | None] = asyncio.Queue()

    def put(self, data: bytes | None) -> None:
        """Something for DTLS has come; None: nothing more will."""
        if data is None or self._inbox.qsize() < _INBOX:
            self._inbox.put_nowait(data)

    async def _recv(self) -> bytes:
        data = await self._inbox.get()
        if data is None:
            self._inbox.put_nowait(None)
            raise ConnectionError("the line is closed")
        return data

    async def _send(self, data: bytes) -> None:
        if self.link is not None:
            self.link.transmit(data)


class Line:
    """DTLS, SRTP and SCTP over an ICE link. ``active``: this side opens DTLS. ``sctp_port`` and ``max_message`` are the
    client's, None without a data section."""

    def __init__(
        self,
        handler: LineHandler,
        *,
        active: bool,
        prints: Sequence[tuple[str, str]],
        sctp_port: int | None,
        max_message: int = 65_536,
    ) -> None:
        aiortc.rtcsctptransport.USERDATA_MAX_LENGTH = min(aiortc.rtcsctptransport.USERDATA_MAX_LENGTH, SCTP_CHUNK)
        self.active = active
        self.prints = tuple(prints)
        self.certificate = certificate()
        self.link: IceLink | None = None
        self._handler = handler
        self._sctp_port = sctp_port
        self._max_message = max_message
        self._wire = _Wire()
        wire: Any = self._wire
        self._dtls = RTCDtlsTransport(wire, [self.certificate])
        self._dtls._set_role("client" if active else "server")
        self._dtls.on("statechange", self._on_dtls)
        self._sctp: RTCSctpTransport | None = None
        if sctp_port is not None:
            self._sctp = RTCSctpTransport(self._dtls)
            self._sctp.on("datachannel", handler.on_channel)
        self._receive: pylibsrtp.Session | None = None
        self._send: pylibsrtp.Session | None = None
        self._started = self._over = False

    @property
    def secured(self) -> bool:
        """True once sound can flow."""
        return self._send is not None

    @property
    def sctp(self) -> RTCSctpTransport | None:
        """What data channels are made on, once :meth:`start` is over; None without a data section."""
        return self._sctp

    def use(self, link: IceLink) -> None:
        """Send over ``link`` from now on."""
        self.link = self._wire.link = link

    async def start(self) -> None:
        """Make DTLS and SCTP over the link, which must be connected. Ends with ``on_line_up`` or ``on_line_down``."""
        if self._started or self._over:
            return
        self._started = True
        prints = [RTCDtlsFingerprint(algorithm=name, value=value) for name, value in self.prints]
        await self._dtls.start(RTCDtlsParameters(fingerprints=prints))
        if self._dtls.state != "connected" or self._over:
            return
        self._receive, self._send = self._dtls._rx_srtp, self._dtls._tx_srtp
        self._handler.on_line_up()
        if self._sctp is not None and self._sctp_port is not None:
            most = self._max_message or MAX_MESSAGE
            await self._sctp.start(RTCSctpCapabilities(maxMessageSize=most), self._sctp_port)

    def take(self, data: bytes) -> None:
        """A datagram has come that is not STUN (RFC 7983)."""
        first = data[0]
        if 127 < first < 192:
            if (session := self._receive) is None:
                return
            try:
                if is_rtcp(data):
                    self._handler.on_rtcp(session.unprotect_rtcp(data))
                else:
                    self._handler.on_rtp(session.unprotect(data))
            except pylibsrtp.Error:
                pass  # forged, garbled, or a copy of one that came before
        elif 19 < first < 64:
            self._wire.put(data)

    def send_rtp(self, packet: bytes) -> int:
        """Encrypt and send a packet of sound; the bytes that went out, 0 if the line is not up."""
        if self._send is None or self.link is None:
            return 0
        data = self._send.protect(packet)
        self.link.transmit(data)
        return len(data)

    def send_rtcp(self, packet: bytes) -> None:
        """Encrypt and send a control packet."""
        if self._send is not None and self.link is not None:
            self.link.transmit(self._send.protect_rtcp(packet))

    def hurry(self) -> None:
        """The way is open again: send at once what the data channels have waiting, rather than when a timer says so."""
        sctp = self._sctp
        if sctp is not None and sctp._t3_handle is not None:
            sctp._t3_cancel()
            sctp._t3_expired()

    async def close(self) -> None:
        """Release everything but the link. ``on_line_down`` is not called any more."""
        self._over = True
        if self._sctp is not None and self._started:
            await self._sctp.stop()
        await self._dtls.stop()
        self._wire.put(None)
        self._dtls.remove_all_listeners()
        self._receive = self._send = None

    def _on_dtls(self) -> None:
        if self._over:
            return
        if self._dtls.state == "failed":
            self._end("the secure connection could not be made: DTLS failed")
        elif self._dtls.state == "closed":
            self._end("the client closed the connection")

    def _end(self, reason: str) -> None:
        self._over = True
        self._handler.on_line_down(reason)


def check() -> None:
    """Raises RuntimeError, with what has moved, if this aiortc is not the one that this module was written for."""
    line = Line(_Nobody(), active=True, prints=(), sctp_port=5000)
    assert line._sctp is not None
    lacks = [
        f"RTCDtlsTransport keeps no {name}"
        for name in ("_rx_srtp", "_tx_srtp", "_set_role", "_ssl")
        if not hasattr(line._dtls, name)
    ]
    lacks += [
        f"RTCSctpTransport has no {name}"
        for name in ("_t3_handle", "_t3_cancel", "_t3_expired", "start", "stop")
        if not hasattr(line._sctp, name)
    ]
    if not hasattr(aiortc.rtcsctptransport, "USERDATA_MAX_LENGTH"):
        lacks.append("aiortc.rtcsctptransport has no USERDATA_MAX_LENGTH")
    if "_create_ssl_context" not in vars(RTCCertificate):
        lacks.append("RTCCertificate makes its SSL context elsewhere than in _create_ssl_context")
    source = inspect.getsource(RTCDtlsTransport)
    lacks += [
        f"RTCDtlsTransport uses {name} of its ICE transport no more"
        for name in ("transport._recv(", "transport._send(")
        if name not in source
    ]
    if lacks:
        raise RuntimeError(f"aiortc {aiortc.__version__} is not 1.16: {'; '.join(lacks)}")


class _Nobody:
    """Hears nothing."""

    def on_rtp(self, data: bytes) -> None:
        """Nothing."""

    def on_rtcp(self, data: bytes) -> None:
        """Nothing."""

    def on_channel(self, channel: RTCDataChannel) -> None:
        """Nothing."""

    def on_line_up(self) -> None:
        """Nothing."""

    def on_line_down(self, reason: str) -> None:
        """Nothing."""
