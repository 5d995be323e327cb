"""The realtime face over WebRTC: calls are made and hung up over HTTP, everything else goes over the connection.

``POST /v1/realtime/calls`` takes an SDP offer (``application/sdp``, or multipart with ``sdp`` and ``session``) and
answers 201 with the SDP answer and the call's ``Location``. ``POST`` of another offer to that location renews the call:
an ICE restart when the network has changed, other directions, or a connection made anew; session and reply go on.
``POST /v1/realtime/calls/{id}/hangup`` ends it. ``GET /v1/realtime/ice_servers`` names STUN and TURN servers to use.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from aiohttp import BodyPartReader, web

from voicechat.contract.cascade import Cascade, ModelInfo
from voicechat.faces.admission import Admission, admission
from voicechat.faces.auth import credential
from voicechat.faces.client_secrets import SECRETS
from voicechat.faces.errors import SERVER, ApiError, json_response
from voicechat.faces.metrics import METRICS
from voicechat.faces.operation import JSON, TEXT, Operation, Reply, Schema, array, documented, one_of, struct
from voicechat.faces.realtime_share import LoopShare, loop_share
from voicechat.faces.realtime_shell import detecting, new_id
from voicechat.faces.sideband import CALLS
from voicechat.faces.webrtc_session import VoiceSession
from voicechat.media import ice
from voicechat.media.aioice_adapter import UdpPorts
from voicechat.media.detectors import Detectors
from voicechat.media.playout import Playout
from voicechat.media.quality import Quality
from voicechat.media.rtc import MAX_OFFER_BYTES, BadOffer, NoAddress, Peer, PeerSettings
from voicechat.realtime.client_events import load_json
from voicechat.realtime.errors import ClientError
from voicechat.realtime.session import SessionLimits
from voicechat.realtime.session_schema import session_schema
from voicechat.realtime.settings import SessionConfig

MAX_SESSION_BYTES = 64 * 1024
"""Longest ``session`` part."""


@dataclass(frozen=True, slots=True)
class RtcSettings:
    """Settings of this face. ``max_sessions`` counts those of the other realtime faces too. A session lives at most
    ``max_seconds``, and is warned ``warn_seconds`` before; these stand in for those of ``limits``.
    ``detectors`` as in :class:`voicechat.faces.realtime_ws.WsSettings`."""

    peer: PeerSettings = field(default_factory=PeerSettings)
    limits: SessionLimits = field(default_factory=SessionLimits)
    max_sessions: int = 8
    max_seconds: float = 3600.0
    warn_seconds: float = 60.0
    instructions: str = ""
    detectors: Detectors | None = None
    ports: tuple[int, int] = (0, 0)
    """First and last UDP port of calls; if they are one, all calls share it; 0: any."""


@dataclass(slots=True)
class Call:
    """One live call."""

    peer: Peer
    session: VoiceSession


class CallTable:
    """All calls of the process: admission, and one way to end for every cause."""

    def __init__(self, cascade: Cascade, settings: RtcSettings, admitted: Admission, share: LoopShare) -> None:
        self._cascade = cascade
        self._settings = settings
        self._admitted = admitted
        self._share = share
        self._ports = UdpPorts(*settings.ports)
        admitted.tell(self._going_down)
        admitted.add(self.__len__)
        self._calls: dict[str, Call] = {}
        self._closed: dict[str, Callable[[], None]] = {}
        self._past = Quality()
        self._ending: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._calls)

    def qualities(self) -> tuple[Quality, list[Quality]]:
        """The counts of all calls that there were and are, and how each live one goes."""
        live = [call.peer.quality for call in self._calls.values()]
        whole = self._past
        for quality in live:
            whole = quality.after(whole)
        return whole, live

    def check(self) -> None:
        """Raise :class:`ApiError` if no further call is admitted now."""
        self._admitted.check(self._settings.max_sessions, ready=self._cascade.ready)

    def config(self, session: object, base: SessionConfig | None = None, intent: str | None = None) -> SessionConfig:
        """The settings of a new call: ``base``, if there is one, with a client's ``session``. Raises
        :class:`ClientError`."""
        model = self._cascade.model
        if base is None and intent == "transcription":
            base = SessionConfig.transcription_session(model)
        config = base or SessionConfig(self._settings.instructions, model.default_voice)
        return config if session is None else config.updated(session, model)

    async def open(self, offer: str, config: SessionConfig) -> tuple[str, str]:
        """Begin a call: its identifier and the SDP answer. Raises :class:`BadOffer`."""
        settings = self._settings
        call_id = new_id("rtc")
        playout = Playout()

        def send(text: str) -> None:
            call.peer.send(text)

        def end(reason: str) -> None:
            call.peer.end(reason)

        limits = dataclasses.replace(
            settings.limits, server_plays=True, max_seconds=settings.max_seconds, warn_seconds=settings.warn_seconds
        )
        voice_session = VoiceSession(
            call_id.replace("rtc_", "sess_"),
            self._cascade,
            config,
            detecting(limits, settings.detectors),
            playout,
            send,
            end,
            expires_at=int(time.time() + settings.max_seconds),
            detectors=settings.detectors,
            share=self._share,
        )
        handler = _Handler(voice_session, lambda: self._forget(call_id))
        self._closed[call_id] = self._admitted.opened()
        call = Call(Peer(handler, playout, settings.peer, self._ports), voice_session)
        self._calls[call_id] = call
        answer = None
        try:
            answer = await call.peer.answer(offer)
        finally:
            if answer is None:  # refused, failed, or the caller went away
                call.peer.end("it was never answered")
        return call_id, answer

    async def renew(self, call_id: str, offer: str) -> str | None:
        """The SDP answer to a later offer of a call; None if there is no such call. Raises :class:`BadOffer`."""
        call = self._calls.get(call_id)
        return None if call is None else await call.peer.renew(offer)

    def session(self, call_id: str) -> VoiceSession | None:
        """The session of a live call."""
        call = self._calls.get(call_id)
        return None if call is None else call.session

    def hang_up(self, call_id: str) -> bool:
        """End a call; False if there is no such call."""
        call = self._calls.get(call_id)
        if call is None:
            return False
        call.peer.end("the client hung up")
        return True

    async def close(self) -> None:
        """End all calls and wait until everything of them is released."""
        for call in list(self._calls.values()):
            call.peer.end("the server is going down")
        while self._ending:
            await asyncio.wait(self._ending)
        self._ports.close()

    def _going_down(self) -> None:
        for call in self._calls.values():
            call.session.going_down()

    def _forget(self, call_id: str) -> None:
        call = self._calls.pop(call_id, None)
        if call is None:
            return
        self._closed.pop(call_id)()
        self._past = call.peer.quality.after(self._past)
        task = asyncio.get_running_loop().create_task(self._finish(call))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    @staticmethod
    async def _finish(call: Call) -> None:
        await call.peer.close("closed")
        await call.session.wait_closed()


class _Handler:
    """Passes everything on to the session; the end also to the table."""

    def __init__(self, session: VoiceSession, forget: Callable[[], None]) -> None:
        self._session = session
        self._forget = forget
        self.on_open = session.on_open
        self.on_message = session.on_message
        self.on_audio = session.on_audio
        self.on_starved = session.on_starved
        self.on_played = session.on_played
        self.on_rewound = session.on_rewound

    def on_closed(self, reason: str) -> None:
        """The peer has ended."""
        self._session.on_closed(reason)
        self._forget()


_SDP = "application/sdp"


def _offers(session: Schema | None) -> dict[str, Schema]:
    """The bodies that an offer may come in; ``session`` where one may come with it."""
    parts = {"sdp": TEXT} | ({} if session is None else {"session": session})
    return {_SDP: TEXT, "multipart/form-data": struct(parts, ("sdp",), more=True)}


def _create_operation(model: ModelInfo) -> Operation:
    return Operation(
        "A call over WebRTC, by an SDP offer",
        {201: Reply("The SDP answer.", {_SDP: TEXT}, {"Location": "Path of the call."})},
        errors=(400, 401, 404, 413, 415),
        body=_offers(session_schema(model)),
        query={"intent": TEXT},
    )


_RENEW = Operation(
    "A later offer of a live call: an ICE restart, other directions, or a connection made anew",
    {200: Reply("The SDP answer.", {_SDP: TEXT})},
    errors=(400, 401, 404, 413, 415, 429, 503),
    body=_offers(None),
)
_MISPLACED = Operation("Nothing: offers are posted to /v1/realtime/calls", {}, errors=(400, 401))
_ICE_SERVERS = Operation(
    "STUN and TURN servers to use",
    {
        200: Reply(
            "The servers, for an RTCPeerConnection.",
            {
                JSON: struct(
                    {
                        "ice_servers": array(
                            struct({"urls": array(TEXT), "username": TEXT, "credential": TEXT}, ("urls",))
                        ),
                        "ice_transport_policy": one_of(("relay", "all")),
                        "ttl": {"type": "integer"},
                    },
                    ("ice_servers", "ice_transport_policy", "ttl"),
                )
            },
        )
    },
    errors=(401,),
)
_HANG_UP = Operation("The end of a call", {200: Reply("It has ended.")}, errors=(401, 404))


def setup(app: web.Application, cascade: Cascade, settings: RtcSettings) -> CallTable:
    """Add this face's routes to ``app``; its calls end when the application shuts down."""
    table = CallTable(cascade, settings, admission(app), loop_share(app))
    app[CALLS] = table.session
    if METRICS in app:
        app[METRICS].watch_calls(table.qualities)

    @documented(_create_operation)
    async def create(request: web.Request) -> web.Response:
        offer, session = await _read_offer(request)
        table.check()
        secret = app[SECRETS].find(credential(request)) if SECRETS in app else None
        try:
            config = table.config(session, None if secret is None else secret.config, request.query.get("intent"))
            call_id, answer = await table.open(offer, config)
        except BadOffer as error:
            raise ApiError(400, str(error), code="invalid_offer", param="sdp") from None
        except NoAddress as error:
            raise ApiError(503, f"{str(error).capitalize()}.", kind=SERVER, code="no_address") from None
        except ClientError as error:
            status = 404 if error.code == "model_not_found" else 400
            raise ApiError(status, error.message, code=error.code, param=error.param) from None
        location = {"Location": f"/v1/realtime/calls/{call_id}"}
        return web.Response(status=201, text=answer, content_type="application/sdp", headers=location)

    @documented(_RENEW)
    async def renew(request: web.Request) -> web.Response:
        offer, session = await _read_offer(request)
        if session is not None:
            message = "The session of a live call is changed by session.update, over its event channel."
            raise ApiError(400, message, code="unsupported_value", param="session")
        try:
            answer = await table.renew(request.match_info["call_id"], offer)
        except BadOffer as error:
            raise ApiError(400, str(error), code="invalid_offer", param="sdp") from None
        except NoAddress as error:
            raise ApiError(503, f"{str(error).capitalize()}.", kind=SERVER, code="no_address") from None
        if answer is None:
            raise ApiError(404, "There is no such call.", code="call_not_found", param="call_id")
        return web.Response(text=answer, content_type="application/sdp")

    @documented(_MISPLACED)
    async def misplaced(request: web.Request) -> web.Response:
        message = "Offers are posted to /v1/realtime/calls; /v1/realtime itself speaks WebSocket."
        raise ApiError(400, message, code="wrong_url")

    @documented(_ICE_SERVERS)
    async def ice_servers(_: web.Request) -> web.Response:
        now = time.time()
        servers = [server.to_dict(now) for server in settings.peer.ice.servers]
        policy = "relay" if settings.peer.ice.relay_only else "all"
        found = {"ice_servers": servers, "ice_transport_policy": policy, "ttl": ice.TTL_S}
        return json_response(found, headers={"Cache-Control": "no-store"})

    @documented(_HANG_UP)
    async def hang_up(request: web.Request) -> web.Response:
        if not table.hang_up(request.match_info["call_id"]):
            raise ApiError(404, "There is no such call.", code="call_not_found", param="call_id")
        return web.Response(status=200)

    async def on_shutdown(_: web.Application) -> None:
        await table.close()

    app.router.add_post("/v1/realtime/calls", create)
    app.router.add_post("/v1/realtime/calls/{call_id}", renew)
    app.router.add_post("/v1/realtime/calls/{call_id}/hangup", hang_up)
    app.router.add_post("/v1/realtime", misplaced)
    app.router.add_get("/v1/realtime/ice_servers", ice_servers)
    app.on_shutdown.append(on_shutdown)
    return table


async def _read_offer(request: web.Request) -> tuple[str, object]:
    """The SDP offer, and the session object if one came. Raises :class:`ApiError`."""
    if request.content_type == "application/sdp":
        return (await _read(request.content.read, MAX_OFFER_BYTES, "sdp")).decode("utf-8", "replace"), None
    if request.content_type != "multipart/form-data":
        raise ApiError(415, "Send the offer as application/sdp or multipart/form-data.", code="unsupported_media_type")
    parts: dict[str, bytes] = {}
    try:
        async for part in await request.multipart():
            if isinstance(part, BodyPartReader) and part.name in ("sdp", "session"):
                limit = MAX_OFFER_BYTES if part.name == "sdp" else MAX_SESSION_BYTES
                parts[part.name] = await _read(part.read_chunk, limit, part.name)
    except ValueError as error:
        raise ApiError(400, f"The multipart body is malformed: {error}", code="invalid_body") from None
    if "sdp" not in parts:
        raise ApiError(400, "The part 'sdp' is missing.", code="missing_required_parameter", param="sdp")
    offer = parts["sdp"].decode("utf-8", "replace")
    if "session" not in parts:
        return offer, None
    try:
        return offer, load_json(parts["session"])
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"The part 'session' is not JSON: {error}", code="invalid_json", param="session") from None


async def _read(read: Callable[[int], Awaitable[bytes]], limit: int, name: str) -> bytes:
    data = bytearray()
    while chunk := await read(16 * 1024):
        data += chunk
        if len(data) > limit:
            raise ApiError(413, f"{name} is longer than {limit} bytes.", code="too_long", param=name)
    return bytes(data)
