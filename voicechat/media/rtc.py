"""One WebRTC peer behind aiortc's transport, with a media path of our own on both sides.

aiortc does ICE, DTLS, SRTP, RTCP and SCTP. Its jitter buffer (80 ms, and 320 ms more for every lost packet), its Opus
decoder without concealment and its 96 kb/s stereo encoder are not used: received packets go to
:class:`~voicechat.media.jitter.MicrophoneStream` as they arrive, and the sender's track hands out ready packets.
"""

from __future__ import annotations

import asyncio
import fractions
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiortc.rtcsctptransport
from aiortc import MediaStreamTrack, RTCDataChannel, RTCPeerConnection, RTCRtpReceiver, RTCSessionDescription
from aiortc.codecs import get_capabilities
from aiortc.exceptions import InternalError, InvalidAccessError, InvalidStateError, OperationError
from aiortc.mediastreams import MediaStreamError
from aiortc.sdp import SessionDescription
from av.packet import Packet

from voicechat.contract.sound import EarsPcm
from voicechat.media import ice
from voicechat.media.jitter import RTP_CLOCK, MicrophoneStream, RtpAudio
from voicechat.media.opus import OpusEncoder
from voicechat.media.playout import FRAME_MS, Playout, PlayoutClock, PlayoutFrame

log = logging.getLogger(__name__)

CHANNEL = "oai-events"
"""Label of the data channel that carries the events."""

MAX_OFFER_BYTES = 64 * 1024
MAX_BUFFERED_BYTES = 1024 * 1024
"""A client that leaves this much unread in the data channel is given up."""

SCTP_CHUNK = 1100
"""aiortc's 1,200 bytes don't fit through a path with an MTU of 1,280, and stall there without a word."""

_TICK = 0.05
_ASLEEP = 1.0
"""When this process itself did not run for so long, what came meanwhile is still to be read."""
_PARSE_ERRORS = (ValueError, IndexError, KeyError, AttributeError, AssertionError, TypeError)
"""What aiortc raises, as they come, on SDP that it does not expect."""

_FRAME_CLOCK = RTP_CLOCK * FRAME_MS // 1000
_TIME_BASE = fractions.Fraction(1, RTP_CLOCK)


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """Bounds of one peer, in seconds. ``rtp_silence``: a microphone that stops sending this long is a closed tab; 0
    turns that off. ``lost``: so is a client, with a microphone or without, from which nothing at all comes this long;
    browsers check a connection every 2.5 s, and nobody less often than every 6 s. ``connect``: how long the client has
    from the answer until media and data flow."""

    ice: ice.IceSettings = field(default_factory=ice.IceSettings)
    connect: float = 20.0
    rtp_silence: float = 6.0
    lost: float = 8.0
    bitrate: int = 32_000


class BadOffer(ValueError):
    """The SDP offer can't be answered; ``str()`` says why."""


class PeerHandler(Protocol):
    """What a peer tells its owner. All calls come on the event loop."""

    def on_open(self) -> None:
        """The event channel is open."""

    def on_message(self, text: str) -> None:
        """A message came over the event channel."""

    def on_audio(self, frame: EarsPcm) -> None:
        """20 ms from the microphone: float32, shape ``[320]``."""

    def on_starved(self, frames: int) -> None:
        """Time went by without sound from the microphone: this many frames of 20 ms."""

    def on_played(self, frame: PlayoutFrame) -> None:
        """A frame has left for the client."""

    def on_closed(self, reason: str) -> None:
        """The peer has ended; called once."""


class PlayoutTrack(MediaStreamTrack):
    """The outgoing track: every 20 ms the playout's next frame, as an Opus packet."""

    kind = "audio"

    def __init__(self, playout: Playout, on_played: Callable[[PlayoutFrame], None], bitrate: int) -> None:
        super().__init__()
        self._playout = playout
        self._on_played = on_played
        self._encoder = OpusEncoder(bitrate=bitrate)
        self.clock = PlayoutClock()

    async def recv(self) -> Packet[Any]:
        """The next packet, when it is due. Raises MediaStreamError once the track has ended."""
        pts = self.clock.ticks * _FRAME_CLOCK
        if (wait := self.clock.wait(time.monotonic())) > 0:
            await asyncio.sleep(wait)
        if self.readyState != "live":
            raise MediaStreamError
        frame = self._playout.next_frame()
        packet = Packet(self._encoder.encode(frame.pcm))
        packet.pts = pts
        packet.time_base = _TIME_BASE
        self._on_played(frame)
        return packet


class PacketTap:
    """Stands where aiortc's jitter buffer would: takes every packet, gives no frame to aiortc's decoder."""

    def __init__(self, sink: Callable[[RtpAudio], None]) -> None:
        self._sink = sink

    def add(self, packet: aiortc.rtp.RtpPacket) -> tuple[bool, None]:
        """Called by aiortc's receiver for each packet, after its statistics."""
        if packet.payload:
            self._sink(RtpAudio(packet.sequence_number, packet.timestamp, packet.payload))
        return False, None


def tap(receiver: RTCRtpReceiver, sink: Callable[[RtpAudio], None]) -> None:
    """Send the packets of ``receiver`` to ``sink`` as they arrive. Raises RuntimeError if this aiortc can't do it."""
    attribute = "_RTCRtpReceiver__jitter_buffer"
    if not hasattr(receiver, attribute):
        raise RuntimeError(f"aiortc {aiortc.__version__} keeps its jitter buffer elsewhere; use 1.16")
    setattr(receiver, attribute, PacketTap(sink))


def watch_arrivals(receiver: RTCRtpReceiver, sink: Callable[[], None]) -> None:
    """Call ``sink`` for everything that arrives on the connection of ``receiver``, the other side's checks included."""
    connection = receiver.transport.transport._connection

    def noticed(pass_on: Callable[..., None]) -> Callable[..., None]:
        def arrived(*given: Any) -> None:
            sink()
            pass_on(*given)

        return arrived

    for name in ("data_received", "request_received"):
        setattr(connection, name, noticed(getattr(connection, name)))


class Peer:
    """A connected client: its microphone, its loudspeaker (``playout``) and its event channel."""

    def __init__(self, handler: PeerHandler, playout: Playout, settings: PeerSettings) -> None:
        aiortc.rtcsctptransport.USERDATA_MAX_LENGTH = min(aiortc.rtcsctptransport.USERDATA_MAX_LENGTH, SCTP_CHUNK)
        self._handler = handler
        self._settings = settings
        self._microphone = MicrophoneStream()
        self._track = PlayoutTrack(playout, handler.on_played, settings.bitrate)
        self._channel: RTCDataChannel | None = None
        self._watch: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._arrived: float | None = None
        self._connection = RTCPeerConnection(ice.configuration(settings.ice))
        self._connection.on("datachannel", self._on_channel)
        self._connection.on("connectionstatechange", self._on_state)

    @property
    def microphone(self) -> MicrophoneStream:
        """The stream from the client, with its counts."""
        return self._microphone

    async def answer(self, offer: str) -> str:
        """The SDP answer to ``offer``; from then on the peer is live. Raises :class:`BadOffer` (the peer is closed)."""
        try:
            self._check(offer)
            transceiver = self._connection.addTransceiver(self._track, direction="sendrecv")
            opus = [codec for codec in get_capabilities("audio").codecs if codec.name.lower() == "opus"]
            transceiver.setCodecPreferences(opus)
            tap(transceiver.receiver, self._on_packet)
            await self._connection.setRemoteDescription(
                RTCSessionDescription(sdp=ice.prepare_offer(offer), type="offer")
            )
            await self._connection.setLocalDescription(await self._connection.createAnswer())
            watch_arrivals(transceiver.receiver, self._on_arrival)
        except BadOffer:
            await self.close("bad offer")
            raise
        except OperationError:
            await self.close("bad offer")
            raise BadOffer("the offer has no Opus audio") from None
        except (InvalidAccessError, InvalidStateError, InternalError, *_PARSE_ERRORS) as error:
            await self.close("bad offer")
            raise BadOffer(f"the offer can't be used: {error}") from None
        if self._closing is not None:
            raise BadOffer("the connection failed while it was being made")
        answer: str = self._connection.localDescription.sdp
        if "a=candidate:" not in answer:
            await self.close("no address")
            raise RuntimeError("no network interface can be offered to the client: see the ICE settings")
        self._watch = asyncio.create_task(self._run_watch())
        return ice.finish_answer(answer, public_ip=self._settings.ice.public_ip)

    def send(self, text: str) -> bool:
        """Send a message over the event channel; False if it is not open (yet, or any more)."""
        channel = self._channel
        if channel is None or channel.readyState != "open":
            return False
        if channel.bufferedAmount > MAX_BUFFERED_BYTES:
            self.end("the client does not read its events")
            return False
        channel.send(text)
        return True

    def end(self, reason: str) -> asyncio.Task[None]:
        """Begin to close, once; ``on_closed`` is called before this returns."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
            self._handler.on_closed(reason)
        return self._closing

    async def close(self, reason: str) -> None:
        """Close and wait until everything is released. May be called any number of times."""
        await asyncio.shield(self.end(reason))

    async def _close(self) -> None:
        self._track.stop()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        await self._connection.close()

    @staticmethod
    def _check(offer: str) -> None:
        if len(offer.encode()) > MAX_OFFER_BYTES:
            raise BadOffer(f"the offer is longer than {MAX_OFFER_BYTES} bytes")
        try:
            description = SessionDescription.parse(offer)
        except _PARSE_ERRORS as error:
            raise BadOffer(f"the body is no SDP offer: {error}") from None
        kinds = [media.kind for media in description.media]
        if sorted(kinds) not in (["audio"], ["application", "audio"]):
            raise BadOffer("the offer must have one audio section, at most one data section, and nothing else")
        mids = [media.rtp.muxId for media in description.media]
        bundles = [group.items for group in description.group if group.semantic == "BUNDLE"]
        if not all(mids) or len(set(mids)) != len(mids) or [sorted(items) for items in bundles] != [sorted(mids)]:
            raise BadOffer("the offer must bundle all of its sections")
        for media in description.media:
            if media.dtls is None or not media.dtls.fingerprints or media.dtls.role not in ("auto", "client", "server"):
                raise BadOffer("the offer lacks DTLS parameters")
            if not media.ice.usernameFragment or not media.ice.password:
                raise BadOffer("the offer lacks ICE parameters")

    def _on_channel(self, channel: RTCDataChannel) -> None:
        if channel.label != CHANNEL or self._channel is not None:
            channel.close()
            return
        self._channel = channel
        channel.on("message", self._on_message)
        channel.on("close", lambda: self.end("the client closed the event channel"))
        self._handler.on_open()

    def _on_message(self, message: str | bytes) -> None:
        self._handler.on_message(message if isinstance(message, str) else message.decode("utf-8", "replace"))

    def _on_state(self) -> None:
        if self._connection.connectionState in ("failed", "closed"):
            self.end("the connection was lost")

    def _on_packet(self, packet: RtpAudio) -> None:
        for frame in self._microphone.push(packet, time.monotonic()):
            self._handler.on_audio(frame)

    def _on_arrival(self) -> None:
        self._arrived = time.monotonic()

    async def _run_watch(self) -> None:
        """Look after what no packet tells: overdue packets, a microphone that stopped, a client that never came."""
        begun = awake = now = time.monotonic()
        while self._closing is None:
            await asyncio.sleep(_TICK)
            last, now = now, time.monotonic()
            if now - last > _ASLEEP:
                awake = now
            for frame in self._microphone.tick(now):
                self._handler.on_audio(frame)
            if frames := self._microphone.starve(now):
                self._handler.on_starved(frames)
            heard, arrived, settings = self._microphone.last_arrival, self._arrived, self._settings
            if self._channel is None and heard is None:
                if now - begun > settings.connect:
                    self.end("the client did not connect in time")
            elif settings.rtp_silence and heard is not None and now - max(heard, awake) > settings.rtp_silence:
                self.end("the client's microphone went silent")
            if arrived is not None and now - max(arrived, awake) > settings.lost:
                self.end("nothing comes from the client any more")
