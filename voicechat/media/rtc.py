"""One WebRTC peer: its microphone, its loudspeaker and its event channel, over whatever network it comes by.

The connection is made by :mod:`voicechat.media.aiortc_adapter` and :mod:`voicechat.media.aioice_adapter`, the answer to
an offer by :mod:`voicechat.media.sdp`. Received packets go to
:class:`~voicechat.media.jitter.MicrophoneStream` as they arrive; one timer of 20 ms sends, reports and looks after the
rest.

A client lives as long as it answers checks (RFC 7675), heard or not. While nothing at all comes from it, the playout
waits at the last sample that it can have heard, and goes on from there when the network is back, over the old addresses
or over new ones (:meth:`Peer.renew`).
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from aiortc import RTCDataChannel

from voicechat.contract.sound import PCM_RATE, EarsPcm
from voicechat.media import aiortc_adapter, codecs, ice, sdp
from voicechat.media.aioice_adapter import CONSENT_S, IceLink, UdpPorts
from voicechat.media.aiortc_adapter import Line
from voicechat.media.jitter import MicrophoneStream, RtpAudio
from voicechat.media.playout import Playout, PlayoutFrame
from voicechat.media.quality import Quality
from voicechat.media.rtp import RtpReader, parse_rtp
from voicechat.media.sdp import MAX_OFFER_BYTES, BadOffer, Offer
from voicechat.media.sender import Sender

__all__ = ["CHANNEL", "MAX_OFFER_BYTES", "BadOffer", "NoAddress", "Peer", "PeerHandler", "PeerSettings"]

log = logging.getLogger(__name__)

CHANNEL = "oai-events"
"""Label of the data channel that carries the events."""

MAX_BUFFERED_BYTES = 1024 * 1024
"""A client that leaves this much unread in the data channel is given up."""

MAX_MAKING = 4
"""A client can't have more connections in the making at once."""

DOUBT_S = 0.4
"""While sound is played to a client from which nothing came for so long, it is asked whether it is there."""

AWAY_S = 0.8
"""A client that has not answered for so long after that is away."""

_ASK_S = 0.25
_ASLEEP_S = 0.5
"""When this process itself did not run for so long, what came meanwhile is still to be read."""


class NoAddress(RuntimeError):
    """This machine has no network address that the settings let a client use."""


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """Bounds of one peer, in seconds. ``connect``: how long the client has from an answer until media and data flow.
    ``consent``: how long it may leave checks unanswered. ``bitrate`` is what is sent at first, in bits per second."""

    ice: ice.IceSettings = field(default_factory=ice.IceSettings)
    connect: float = 20.0
    consent: float = CONSENT_S
    bitrate: int = 32_000


class PeerHandler(Protocol):
    """What a peer tells its owner. All calls come on the event loop."""

    def on_open(self) -> None:
        """The event channel is open; again if the client has made its connection anew."""

    def on_message(self, text: str) -> None:
        """A message came over the event channel."""

    def on_audio(self, frame: EarsPcm) -> None:
        """20 ms from the microphone: float32, shape ``[320]``."""

    def on_starved(self, frames: int) -> None:
        """Time went by without sound from the microphone: this many frames of 20 ms."""

    def on_played(self, frame: PlayoutFrame) -> None:
        """A frame has left for the client."""

    def on_rewound(self) -> None:
        """The client is away; what it can't have heard is still to be played."""

    def on_closed(self, reason: str) -> None:
        """The peer has ended; called once."""


@dataclass(slots=True, eq=False)
class _Way:
    """A connection of the client, made or in the making: ``link`` carries ``line`` as ``offer`` says."""

    link: IceLink
    line: Line
    offer: Offer
    made: bool = False


class Peer:
    """A connected client: its microphone, its loudspeaker (``playout``) and its event channel. ``ports`` are where its
    sockets come from; peers of one server share them."""

    def __init__(
        self, handler: PeerHandler, playout: Playout, settings: PeerSettings, ports: UdpPorts | None = None
    ) -> None:
        self._handler = handler
        self._playout = playout
        self._settings = settings
        self._ports = ports or UdpPorts()
        self._microphone = MicrophoneStream()
        self._reader = RtpReader(codecs.OPUS_CLOCK)
        self._offer: Offer | None = None
        self._answers = 0
        self._ssrc = random.randrange(1, 1 << 32)
        self._cname = secrets.token_hex(8)
        self._number = random.getrandbits(62)
        self._sender: Sender | None = None
        self._line: Line | None = None
        self._ways: list[_Way] = []
        self._gathering = 0  # ways that have no addresses yet
        self._channel: RTCDataChannel | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None
        self._ticked = 0.0
        self._judged_from = 0.0
        self._asked = 0.0
        self._doubted: float | None = None
        self._away = False

    @property
    def microphone(self) -> MicrophoneStream:
        """The stream from the client, with its counts."""
        return self._microphone

    @property
    def sender(self) -> Sender | None:
        """The stream to the client, once it has been answered."""
        return self._sender

    @property
    def quality(self) -> Quality:
        """How the call goes."""
        heard, sender = self._microphone.stats, self._sender
        return Quality(
            came=heard.packets,
            lost=heard.lost,
            slips=0 if sender is None else sender.clock.slips,
            underruns=self._playout.underruns,
            jitter=self._reader.jitter / codecs.OPUS_CLOCK if heard.packets else None,
            round_trip=None if sender is None else sender.rate.round_trip,
        )

    @property
    def away(self) -> bool:
        """True while nothing comes from the client."""
        return self._away

    async def answer(self, offer: str) -> str:
        """The SDP answer to the first offer; from then on the peer is live. Raises :class:`BadOffer` (the peer is
        closed), :class:`NoAddress`."""
        try:
            text = await self._answer(sdp.parse(offer))
        except BaseException as error:
            await self.close("bad offer" if isinstance(error, BadOffer) else "it could not be answered")
            raise
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self._settings.connect, self._check_connected)
        return text

    async def renew(self, offer: str) -> str:
        """The SDP answer to a later offer: other directions, new addresses (an ICE restart, RFC 8445 section 9), or a
        connection made anew by the same client. The peer goes on as before until that is there, and if it never is.
        Raises :class:`BadOffer`, also with ``MAX_MAKING`` in the making, and :class:`NoAddress`."""
        return await self._answer(sdp.parse(offer))

    def send(self, text: str) -> bool:
        """Send a message over the event channel; False if it is not open (yet, or any more)."""
        channel = self._channel
        if channel is None or channel.readyState != "open":
            return False
        if channel.bufferedAmount > MAX_BUFFERED_BYTES and not self._away:
            self.end("the client does not read its events")
            return False
        channel.send(text)
        return True

    def end(self, reason: str) -> asyncio.Task[None]:
        """Begin to close, once; ``on_closed`` is called before this returns."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
            self._handler.on_closed(reason)
        return self._closing

    async def close(self, reason: str) -> None:
        """Close and wait until everything is released. May be called any number of times."""
        await asyncio.shield(self.end(reason))

    # -- what the line calls ------------------------------------------------------------------------------------------

    def on_rtp(self, data: bytes) -> None:
        """A packet of sound has come."""
        packet = parse_rtp(data)
        if packet is None or self._offer is None or packet.payload_type != self._offer.codec.payload_type:
            return
        now = time.monotonic()
        if self._reader.take(packet, now):
            self._microphone.restart()
        if packet.payload:
            for frame in self._microphone.push(RtpAudio(packet.sequence, packet.timestamp, packet.payload), now):
                self._handler.on_audio(frame)

    def on_rtcp(self, data: bytes) -> None:
        """A control packet has come."""
        now = time.monotonic()
        self._reader.heard_report(data, now)
        if self._sender is not None:
            self._sender.heed(data, now)

    def on_channel(self, channel: RTCDataChannel) -> None:
        """The client has opened a data channel."""
        if channel.label != CHANNEL or self._channel is not None:
            channel.close()
            return
        self._channel = channel
        channel.on("message", self._on_message)
        channel.on("close", lambda: self._on_channel_closed(channel))
        self._handler.on_open()

    def on_line_up(self) -> None:
        """Sound can flow."""
        if self._closing is None and self._timer is None:
            self._ticked = time.monotonic()
            self._tick()
            if self._offer is not None and self._offer.data is None:
                self._handler.on_open()  # there will be no channel: events go nowhere, or to who joins the call

    def on_line_down(self, reason: str) -> None:
        """The connection is over."""
        self.end(reason)

    # -- the connection -----------------------------------------------------------------------------------------------

    async def _answer(self, offer: Offer) -> str:
        if self._closing is not None:
            raise BadOffer("the call has ended")
        way = self._way_of(offer)
        if way is None:
            way = await self._new_way(offer)
        way.offer = offer
        if way.made or self._offer is None:
            self._take_offer(offer)
        self._answers += 1
        return sdp.answer(
            offer,
            sdp.Local(
                ufrag=way.link.local_username,
                password=way.link.local_password,
                fingerprints=aiortc_adapter.fingerprints(way.line.certificate),
                active=way.line.active,
                candidates=way.link.candidates(),
                ssrc=self._ssrc,
                cname=self._cname,
                session=self._number,
                max_message=aiortc_adapter.MAX_MESSAGE,
                version=self._answers,
            ),
        )

    def _way_of(self, offer: Offer) -> _Way | None:
        """The last way that ``offer`` is of, if it is of none that is new."""
        theirs = offer.transport
        for way in reversed(self._ways):
            if way.line.prints == theirs.fingerprints and way.offer.transport.ufrag == theirs.ufrag:
                return way
        return None

    async def _new_way(self, offer: Offer) -> _Way:
        """Begin to connect as ``offer`` says. Raises :class:`BadOffer`, :class:`NoAddress`."""
        making = self._gathering + sum(not way.made for way in self._ways)
        if making >= MAX_MAKING:
            limit = self._settings.connect
            raise BadOffer(
                f"this call has {making} connections in the making: offer another when one is made, or was given up, "
                f"which each is after {limit:g} s"
            )
        theirs = offer.transport
        link = IceLink(
            self._settings.ice, self._ports, self._take, controlling=theirs.lite, consent=self._settings.consent
        )
        self._gathering += 1
        try:
            await link.gather_candidates()
            if self._closing is not None:
                raise BadOffer("the call ended while it was being answered")
            if not link.candidates():
                raise NoAddress("no network address can be offered to the client: see the settings rtc.*")
        except BaseException:
            await link.close()
            raise
        finally:
            self._gathering -= 1
        lines = [self._line, *(way.line for way in reversed(self._ways))]
        line = next((one for one in lines if one is not None and one.prints == theirs.fingerprints), None)
        way = _Way(link, line or self._new_line(offer), offer)
        self._ways.append(way)
        if self._line is None:
            self._line = way.line
        self._start(self._connect(way))
        return way

    def _new_line(self, offer: Offer) -> Line:
        """A line for ``offer``; the one before, if there is one, goes on until this one is made."""
        data = offer.data
        return Line(
            self,
            active=offer.transport.setup != "active",
            prints=offer.transport.fingerprints,
            sctp_port=None if data is None else data.sctp_port,
            max_message=65_536 if data is None else data.max_message,
        )

    def _take_offer(self, offer: Offer) -> None:
        """Go by ``offer`` from now on: send and receive, code and decode as it says."""
        before, self._offer = self._offer, offer
        if before is not None and before.codec == offer.codec:
            return
        self._microphone = MicrophoneStream(codecs.decoder(offer.codec.name))
        self._reader = RtpReader(offer.codec.clock)
        clock = None if self._sender is None else self._sender.clock
        self._sender = Sender(
            offer.codec, self._ssrc, self._cname, self._settings.bitrate, self._send_rtp, self._send_rtcp
        )
        if clock is not None:
            self._sender.clock = clock

    async def _connect(self, way: _Way) -> None:
        """Make the connection, in the time that there is; what comes of it is the peer's, or is released."""
        theirs, late = way.offer.transport, "the client did not connect in time"
        try:
            async with asyncio.timeout(self._settings.connect):  # aioice goes on for ever: more candidates may come
                await way.link.reach(theirs.candidates, theirs.ufrag, theirs.password, lite=theirs.lite)
        except (ConnectionError, TimeoutError) as error:
            await self._drop(way)
            if not self._ways:
                self.end(late if isinstance(error, TimeoutError) else "no connection to the client could be made")
            return
        if self._closing is not None or way not in self._ways:
            return
        await self._switch(way)
        try:
            async with asyncio.timeout(self._settings.connect):
                await way.line.start()
        except TimeoutError:
            self.end(late)

    async def _switch(self, way: _Way) -> None:
        """``way`` is made: all goes over it."""
        way.made = True
        way.link.expired = lambda: self._on_expired(way)
        way.line.use(way.link)
        self._take_offer(way.offer)
        if way.line is not self._line:
            before, self._line, self._channel = self._line, way.line, None
            if before is not None:
                await before.close()
        for old in self._ways[: self._ways.index(way)]:
            await self._drop(old)

    async def _drop(self, way: _Way) -> None:
        """Release a way, and its line if nothing else goes over it."""
        if way in self._ways:
            self._ways.remove(way)
        await way.link.close()
        if way.line is not self._line and all(way.line is not other.line for other in self._ways):
            await way.line.close()

    def _on_expired(self, way: _Way) -> None:
        if way in self._ways:
            self._ways.remove(way)
        if not self._ways:
            self.end("nothing comes from the client any more")

    def _check_connected(self) -> None:
        up = self._line is not None and self._line.secured
        wants_channel = self._offer is not None and self._offer.data is not None
        heard = self._microphone.last_arrival is not None
        if not up or (wants_channel and self._channel is None and not heard):
            self.end("the client did not connect in time")

    async def _close(self) -> None:
        for timer in (self._timer, self._deadline):
            if timer is not None:
                timer.cancel()
        for line in {self._line, *(way.line for way in self._ways)}:
            if line is not None:
                await line.close()
        for way in list(self._ways):
            await way.link.close()
        others = self._tasks - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a connection could not be made", exc_info=error)
            self.end("the connection could not be made")

    def _take(self, data: bytes) -> None:
        if self._line is not None:
            self._line.take(data)

    def _send_rtp(self, packet: bytes) -> None:
        if self._line is not None:
            self._line.send_rtp(packet)

    def _send_rtcp(self, packet: bytes) -> None:
        if self._line is not None:
            self._line.send_rtcp(packet)

    def _on_message(self, message: str | bytes) -> None:
        self._handler.on_message(message if isinstance(message, str) else message.decode("utf-8", "replace"))

    def _on_channel_closed(self, channel: RTCDataChannel) -> None:
        if channel is self._channel:
            self.end("the client closed the event channel")

    # -- every 20 ms --------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self._closing is not None or self._sender is None or self._offer is None:
            return
        now = time.monotonic()
        sender = self._sender
        if now - self._ticked > _ASLEEP_S:
            self._judged_from = now + _ASLEEP_S
        self._ticked = now
        self._timer = asyncio.get_running_loop().call_later(sender.wait(now), self._tick)
        for heard in self._microphone.tick(now):
            self._handler.on_audio(heard)
        if frames := self._microphone.starve(now):
            self._handler.on_starved(frames)
        self._look_for_client(now)
        if not self._away:
            frame = self._playout.next_frame()
            if self._offer.answered in ("sendrecv", "sendonly"):
                sender.frame(frame.pcm, now)
            self._handler.on_played(frame)
        sender.report(self._reader, now)

    def _look_for_client(self, now: float) -> None:
        """Notice that the network is gone while something is played, and that it is back."""
        line = self._line
        link = None if line is None else line.link
        if line is None or link is None or now < self._judged_from:
            return
        quiet = now - link.arrived
        if quiet < DOUBT_S:
            self._doubted = None
            if self._away:
                self._away = False
                line.hurry()
            return
        if not self._away and not self._playout.active:
            self._doubted = None
            return
        if now - self._asked >= _ASK_S:
            self._asked = now
            link.probe()
        if self._doubted is None:
            self._doubted = now
        elif not self._away and now - self._doubted >= AWAY_S:
            self._away = True
            self._playout.rewind(int(quiet * PCM_RATE))
            self._handler.on_rewound()
