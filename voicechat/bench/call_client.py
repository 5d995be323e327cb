"""A client of calls that costs little, so that many of them fit beside the server that is measured.

It does what a browser does on the wire (full ICE with consent checks, DTLS, SRTP, a data channel, receiver reports),
but its sound was coded beforehand, and of what it hears it notes only when each packet came: the moment is the
kernel's, so that a client that is late itself does not blame the server.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import secrets
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pylibsrtp
from aiortc import RTCDataChannel
from aiortc.rtcdatachannel import RTCDataChannelParameters

from voicechat.bench.realtime_trace import LineError
from voicechat.bench.relay import Path, Weather
from voicechat.media import aiortc_adapter, ice_checks, sdp
from voicechat.media.aiortc_adapter import Line
from voicechat.media.rtp import RtpReader, RtpWriter, parse_rtp

CLOCK = 48_000
FRAME = CLOCK // 50
CHECK_S = 2.5
"""Between two checks of the connection, as Chromium makes them."""
REPORT_S = 1.0
_ANSWER_S = 20.0
_AGAIN_S = 0.1
_PAYLOAD_TYPE = 111
_SO_TIMESTAMPNS = 35  # Linux; the socket module has no name for it
_TIMESPEC = struct.Struct("@ll")


@dataclass(frozen=True, slots=True)
class Packet:
    """One that came: when (Unix time), and what its header says."""

    at: float
    sequence: int
    timestamp: int


@dataclass(slots=True)
class CallRecord:
    """What a call was like. ``posted`` and the packets' times are Unix time; ``error`` says why it failed, if it did.
    ``replies``: those that were played to their end."""

    posted: float = 0.0
    packets: list[Packet] = field(default_factory=list)
    replies: int = 0
    error: str | None = None


async def post_offer(
    http: aiohttp.ClientSession, base: str, headers: dict[str, str], offer: str, session: dict[str, Any]
) -> str:
    """Post an SDP offer with its session; the answer. Raises :class:`LineError`."""
    form = aiohttp.FormData(default_to_multipart=True)
    form.add_field("sdp", offer, content_type="application/sdp")
    form.add_field("session", json.dumps(session), content_type="application/json")
    try:
        async with http.post(f"{base}/v1/realtime/calls", data=form, headers=headers) as response:
            answer = await response.text()
            if response.status != 201:
                raise LineError(f"the call was refused: HTTP {response.status} {answer[:300]}")
    except aiohttp.ClientError as error:
        raise LineError(f"{base} can't be reached: {error}") from None
    return answer


class CallLink:
    """ICE of one call over one socket, for a server whose address is reached directly; ``sink`` gets what is not STUN.

    ``weather`` comes over both directions.
    """

    def __init__(self, address: str, weather: Weather, seed: int, sink: Callable[[bytes, float], None]) -> None:
        self.ufrag, self.password = secrets.token_hex(4), secrets.token_hex(12)
        self._sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
        self._sock.bind((address, 0))
        self._sock.setblocking(False)
        self._sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._sink = sink
        fair = weather == Weather()
        self._up = None if fair else Path(weather, 2 * seed)
        self._down = None if fair else Path(weather, 2 * seed + 1)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._sock, self._on_readable)
        self._remote: tuple[str, int] | None = None
        self._theirs = ("", "")
        self._connected = asyncio.Event()

    @property
    def address(self) -> tuple[str, int]:
        """This side's address."""
        host, port = self._sock.getsockname()[:2]
        return str(host), int(port)

    async def reach(self, remote: tuple[str, int], ufrag: str, password: str) -> None:
        """Check ``remote`` until it answers, and use it."""
        self._remote, self._theirs = remote, (ufrag, password)
        while not self._connected.is_set():
            self.check()
            try:
                async with asyncio.timeout(_AGAIN_S):
                    await self._connected.wait()
            except TimeoutError:
                continue

    def check(self) -> None:
        """Ask the other side whether it is there."""
        self.transmit(ice_checks.check(f"{self._theirs[0]}:{self.ufrag}", self._theirs[1]))

    def transmit(self, data: bytes, to: tuple[str, int] | None = None) -> None:
        """Send a datagram, to the other side or where else it is said."""
        if self._up is None:
            self._send(data, to)
            return
        now = self._loop.time()
        for due in self._up.fates(now):
            self._loop.call_at(due, self._send, data, to)

    def close(self) -> None:
        """Release the socket."""
        self._loop.remove_reader(self._sock)
        self._remote = None
        self._sock.close()

    def _send(self, data: bytes, to: tuple[str, int] | None) -> None:
        remote = to or self._remote
        if remote is not None and self._sock.fileno() >= 0:
            try:
                self._sock.sendto(data, remote)
            except OSError:  # a full buffer, or the server's socket is gone: datagrams get lost
                return

    def _on_readable(self) -> None:
        while True:
            try:
                data, more, _, sender = self._sock.recvmsg(2048, 64)
            except (BlockingIOError, ConnectionRefusedError):
                return
            seconds, nanoseconds = _TIMESPEC.unpack(more[0][2])
            at = seconds + nanoseconds / 1e9
            if self._down is None:
                self._take(data, at, sender)
                continue
            now = self._loop.time()
            for due in self._down.fates(now):
                self._loop.call_at(due, self._take, data, at + due - now, sender)

    def _take(self, data: bytes, at: float, sender: tuple[Any, ...]) -> None:
        if data[0] > 3:
            self._sink(data, at)
            return
        answer = ice_checks.read(data, (sender[0], sender[1]), self.password)
        if answer is None:
            self._connected.set()
        else:
            self.transmit(answer, (sender[0], sender[1]))  # as browsers do, also before they have the server's answer


class CallClient:
    """One call. ``packets`` are the microphone's, 20 ms each, again and again from number ``first`` on."""

    def __init__(self, packets: Sequence[bytes], first: int, weather: Weather, seed: int, address: str) -> None:
        self.record = CallRecord()
        self._packets = packets
        self._next = first
        self._arrived = 0.0
        self._link = CallLink(address, weather, seed, self._on_datagram)
        self._line: Line | None = None
        self._reader = RtpReader(CLOCK)
        self._writer = RtpWriter(random.getrandbits(32), secrets.token_hex(8), _PAYLOAD_TYPE, CLOCK, 0, 0)
        self._sent = 0
        self._up = self._down = False
        self._heard = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._checked = self._reported = 0.0
        self._channel: RTCDataChannel | None = None

    async def open(self, http: aiohttp.ClientSession, base: str, headers: dict[str, str], session: Any) -> None:
        """Call, and wait for the first packet of sound. Raises :class:`LineError`."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                await self._open(http, base, headers, session)
        except TimeoutError:
            raise LineError(f"the call did not come about within {_ANSWER_S:g} s") from None

    async def _open(self, http: aiohttp.ClientSession, base: str, headers: dict[str, str], session: Any) -> None:
        self.record.posted = time.time()
        answer = await post_offer(http, base, headers, self._offer(), session)
        theirs = sdp.parse(answer).transport
        remote = next((one for one in theirs.candidates if (":" in one.host) == (":" in self._link.address[0])), None)
        if remote is None:
            raise LineError("the answer has no address that this client can reach")
        self._line = Line(self, active=theirs.setup == "passive", prints=theirs.fingerprints, sctp_port=5000)
        link: Any = self._link
        self._line.use(link)
        await self._link.reach((remote.host, remote.port), theirs.ufrag, theirs.password)
        await self._line.start()
        if not self._up or self._line.sctp is None:
            raise LineError("the secure connection could not be made")
        self._channel = RTCDataChannel(self._line.sctp, RTCDataChannelParameters(label="oai-events"))
        self._channel.on("message", self._on_message)
        await self._heard.wait()

    async def close(self) -> None:
        """Hang up."""
        self._up = False
        if self._timer is not None:
            self._timer.cancel()
        if self._line is not None:
            await self._line.close()
        self._link.close()

    def on_rtp(self, data: bytes) -> None:
        """Called by the line."""
        packet = parse_rtp(data)
        if packet is not None:
            self._reader.take(packet, self._arrived)
            self.record.packets.append(Packet(self._arrived, packet.sequence, packet.timestamp))
            self._heard.set()

    def on_rtcp(self, data: bytes) -> None:
        """Called by the line."""
        self._reader.heard_report(data, self._arrived)

    def on_channel(self, channel: RTCDataChannel) -> None:
        """Called by the line; servers open none."""

    def on_line_up(self) -> None:
        """Called by the line: the microphone is open."""
        self._up = True
        self._send(asyncio.get_running_loop().time())

    def on_line_down(self, reason: str) -> None:
        """Called by the line."""
        if self._up:
            self._up = False
            self.record.error = f"the call was cut off: {reason}"

    def _on_message(self, message: str) -> None:
        if re.match(r'\{"type":"output_audio_buffer.stopped"', message):
            self.record.replies += 1

    def _on_datagram(self, data: bytes, at: float) -> None:
        self._arrived = at
        if self._line is not None:
            self._line.take(data)

    def _send(self, due: float) -> None:
        """Every 20 ms of an absolute clock."""
        if not self._up or self._line is None:
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(due + 0.02, self._send, due + 0.02)
        now = time.time()
        payload = self._packets[self._next % len(self._packets)]
        self._next += 1
        try:
            self._line.send_rtp(self._writer.packet(payload, self._sent * FRAME, now, marker=not self._sent))
            self._sent += 1
            if now - self._reported >= REPORT_S:
                self._reported = now
                self._line.send_rtcp(self._writer.report(now, now, self._reader.report(now)))
        except pylibsrtp.Error as error:
            self.on_line_down(str(error))
        if now - self._checked >= CHECK_S:
            self._checked = now
            self._link.check()

    def _offer(self) -> str:
        """As Chromium writes it, without what is not needed."""
        host, port = self._link.address
        ((_, print_),) = aiortc_adapter.fingerprints(aiortc_adapter.certificate())
        transport = [
            "c=IN IP4 0.0.0.0",
            f"a=candidate:1 1 udp 2122063615 {host} {port} typ host",
            f"a=ice-ufrag:{self._link.ufrag}",
            f"a=ice-pwd:{self._link.password}",
            f"a=fingerprint:sha-256 {print_}",
            "a=setup:actpass",
        ]
        lines = ["v=0", "o=- 1 2 IN IP4 127.0.0.1", "s=-", "t=0 0", "a=group:BUNDLE 0 1"]
        lines += [f"m=audio 9 UDP/TLS/RTP/SAVPF {_PAYLOAD_TYPE}", *transport, "a=mid:0", "a=sendrecv", "a=rtcp-mux"]
        lines += [f"a=rtpmap:{_PAYLOAD_TYPE} opus/48000/2", f"a=fmtp:{_PAYLOAD_TYPE} minptime=10;useinbandfec=1"]
        lines += ["m=application 9 UDP/DTLS/SCTP webrtc-datachannel", *transport, "a=mid:1", "a=sctp-port:5000"]
        return "\r\n".join([*lines, "a=max-message-size:262144"]) + "\r\n"
