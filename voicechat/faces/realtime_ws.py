"""The realtime face over WebSocket: ``GET /v1/realtime?model=…``, events as JSON text in both directions."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec
from aiohttp import WSCloseCode, WSMsgType, web

from voicechat.contract.cascade import Cascade
from voicechat.contract.sound import Pcm
from voicechat.faces import sideband
from voicechat.faces.admission import Admission, admission
from voicechat.faces.auth import allowed_origin, credential
from voicechat.faces.client_secrets import SECRETS, ClientSecrets
from voicechat.faces.errors import ApiError, json_response
from voicechat.faces.operation import JSON, TEXT, Operation, Reply, documented
from voicechat.faces.realtime_share import LoopShare, loop_share
from voicechat.faces.realtime_shell import Shell, detecting, new_id
from voicechat.media.detectors import Detectors
from voicechat.media.wire import WireDecoder, WireEncoder
from voicechat.realtime.client_events import AudioAppend, ClientEvent, parse_event
from voicechat.realtime.errors import ClientError
from voicechat.realtime.event_schema import protocol_schema
from voicechat.realtime.outbox import BeginAudio, Event, Place
from voicechat.realtime.session import Session, SessionLimits
from voicechat.realtime.settings import SessionConfig

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 16 << 20
"""Longer messages are answered with an error."""

MAX_FRAME_BYTES = 24 << 20
"""Still longer ones close the connection with code 1009, unread."""

PROTOCOL = "realtime"
BETA_PROTOCOL = "openai-beta.realtime-v1"

CLOSE_GOING_AWAY, CLOSE_POLICY, CLOSE_INTERNAL = 1001, 1008, 1011

_SHUTDOWN_S = 5.0
_HIGH_WATER = 1 << 20
"""Bytes that may wait to be sent before the cascade, and the reading of events, wait for the client."""

_PARSE_ON_LOOP = 256 << 10
"""Longer messages are parsed by a worker thread."""

_DECODE_AT_ONCE = 64_000
"""Bytes of sound that are decoded and listened to before others may run."""


@dataclass(frozen=True, slots=True)
class WsSettings:
    """Settings of this face. ``max_sessions`` counts those of the other realtime faces too. A client that reads nothing
    for ``write_timeout`` seconds is given up. ``detectors`` find speech and judge turns; see
    :class:`voicechat.faces.realtime_shell.Shell` for what is done without.

    Browsers let every page open a WebSocket to every address. Unless the server is ``keyed``, only pages of its own and
    of ``allowed_origins`` may; programs, which send no origin, always.
    """

    limits: SessionLimits = field(default_factory=SessionLimits)
    max_sessions: int = 32
    keyed: bool = False
    allowed_origins: tuple[str, ...] = ()
    instructions: str = ""
    heartbeat: float = 20.0
    write_timeout: float = 30.0
    detectors: Detectors | None = None


class WsTransport:
    """One connection: events out in order through one writer, so that nothing that sends has to wait."""

    carries_audio = True

    def __init__(self, ws: web.WebSocketResponse, request: web.Request, write_timeout: float, share: LoopShare) -> None:
        self._ws = ws
        self._request = request
        self._timeout = write_timeout
        self._share = share
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._news = asyncio.Event()
        self._space = asyncio.Event()
        self._space.set()
        self._closing: tuple[int, str] | None = None
        self._encoder: WireEncoder | None = None
        self.code = CLOSE_GOING_AWAY

    # -- what the shell calls -----------------------------------------------------------------------------------------

    def send(self, event: Event) -> None:
        """Queue an event."""
        if self._closing is not None:
            return
        text = _json(event)
        self._queue.append(text)
        self._queued += len(text)
        if self._queued > _HIGH_WATER:
            self._space.clear()
        self._news.set()

    def begin_audio(self, begin: BeginAudio) -> None:
        """A part begins: its sound is encoded as one stream."""
        self._encoder = WireEncoder(begin.format)

    def play(self, place: Place, pcm: Pcm) -> None:
        """Send sound as a ``response.output_audio.delta``."""
        if self._encoder is not None:
            self._send_audio(place, self._encoder.push(pcm))

    def end_audio(self, place: Place) -> None:
        """Send what the encoder still holds."""
        if self._encoder is not None:
            self._send_audio(place, self._encoder.flush())
            self._encoder = None

    def clear_audio(self) -> None:
        """The client plays, and stops by itself."""

    def hold_audio(self, held: bool) -> None:
        """The client plays; it decides by itself."""

    def close(self, code: int, reason: str) -> None:
        """Close once all that is queued has been sent."""
        if self._closing is None:
            self._closing = (code, reason)
            self._news.set()
            self._space.set()

    async def room(self) -> None:
        """Wait until the client has taken most of what was sent."""
        await self._space.wait()

    # -- what the face calls ------------------------------------------------------------------------------------------

    async def write(self) -> None:
        """Send what is queued until :meth:`close`; gives a client up that does not read."""
        try:
            while True:
                while self._queue:
                    await self._share.turn()
                    text = self._queue.popleft()
                    async with asyncio.timeout(self._timeout):
                        await self._ws.send_frame(text, WSMsgType.TEXT)
                    self._queued -= len(text)
                    if self._queued <= _HIGH_WATER // 2:
                        self._space.set()
                if self._closing is not None:
                    code, reason = self._closing
                    self.code = code
                    async with asyncio.timeout(self._timeout):
                        await self._ws.close(code=code, message=reason.encode()[:120])
                    return
                self._news.clear()
                await self._news.wait()
        except TimeoutError:
            log.warning("a realtime client does not read its events: dropped")
            self.abort()
        except ConnectionError:
            pass  # the reader sees the end too
        finally:
            self._closing = self._closing or (CLOSE_GOING_AWAY, "")
            self._space.set()

    def abort(self) -> None:
        """Drop the connection, and what waits in it to be sent."""
        if self._request.transport is not None:
            self._request.transport.abort()

    def _send_audio(self, place: Place, data: bytes) -> None:
        if data:
            kind = "response.output_audio.delta"
            self.send({"type": kind, "event_id": new_id("event"), **place.fields(), "delta": data})


_OPERATION = Operation(
    "A realtime session, or with `call_id` a second way into a live call, over WebSocket",
    {101: Reply("The WebSocket: events as JSON texts in both directions, by /v1/realtime/schema.")},
    errors=(400, 401, 403, 404, 426, 429, 503),
    query={"model": TEXT, "intent": TEXT, "call_id": TEXT},
)


class WsFace:
    """All WebSocket sessions of the process."""

    def __init__(
        self,
        cascade: Cascade,
        settings: WsSettings,
        secrets: ClientSecrets,
        admitted: Admission,
        share: LoopShare,
    ) -> None:
        self._cascade = cascade
        self._settings = settings
        self._secrets = secrets
        self._share = share
        self._live: set[WsTransport] = set()
        self._aside = 0  # of them, those that only join a call
        self._admitted = admitted
        admitted.add(self.__len__)
        admitted.tell(self._going_down)
        self._shells: set[Shell] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._live) - self._aside

    @documented(_OPERATION)
    async def handle(self, request: web.Request) -> web.StreamResponse:
        """One session, from handshake to close."""
        await self._share.turn()
        call_id = request.query.get("call_id")
        joined = self._joined(request, call_id) if call_id else self._config(request)
        settings = self._settings
        ws = web.WebSocketResponse(
            protocols=(PROTOCOL,),
            max_msg_size=MAX_FRAME_BYTES,
            heartbeat=settings.heartbeat,
            compress=False,
            timeout=5.0,
        )
        if not ws.can_prepare(request).ok:
            message = "This address speaks WebSocket; over HTTP there is /v1/realtime/calls."
            raise ApiError(426, message, code="upgrade_required", headers={"Upgrade": "websocket"})
        transport = WsTransport(ws, request, settings.write_timeout, self._share)
        aside = not isinstance(joined, SessionConfig)
        self._live.add(transport)
        self._aside += aside
        self._empty.clear()
        closed = (lambda: None) if aside else self._admitted.opened()
        try:
            await ws.prepare(request)
            if _is_beta(request):
                await self._refuse_beta(ws)
                return ws
            await self._share.turn()
            if isinstance(joined, SessionConfig):
                await self._serve(ws, transport, joined)
            else:
                await sideband.serve(ws, transport, joined, _parse)
        finally:
            self._live.discard(transport)
            self._aside -= aside
            closed()
            if not self._live:
                self._empty.set()
        return ws

    def _going_down(self) -> None:
        for shell in list(self._shells):
            shell.going_down()

    async def close(self) -> None:
        """End all sessions."""
        for transport in list(self._live):
            transport.close(CLOSE_GOING_AWAY, "the server is going down")
        try:
            async with asyncio.timeout(_SHUTDOWN_S):
                await self._empty.wait()
        except TimeoutError:
            log.warning("%d realtime sessions did not end in time", len(self._live))

    def _config(self, request: web.Request) -> SessionConfig:
        """The settings of a new session; refuses what can't be served before the handshake."""
        query = request.query
        intent, name = query.get("intent", "conversation"), query.get("model")
        if intent not in ("conversation", "transcription"):
            message = f"Invalid intent: '{intent[:64]}'. It is 'conversation' or 'transcription'."
            raise ApiError(400, message, code="invalid_value", param="intent")
        self._admitted.check(self._settings.max_sessions, ready=self._cascade.ready)
        model = self._cascade.model
        secret = self._secrets.find(credential(request))
        self._check_origin(request, secret is not None)
        try:
            if secret is None and intent == "transcription":
                return SessionConfig.transcription_session(model, name or None)
            config = (
                SessionConfig(self._settings.instructions, model.default_voice) if secret is None else secret.config
            )
            if config.kind == "transcription":
                return config
            return config.updated({"model": name}, model) if name else config
        except ClientError as error:
            status = 404 if error.code == "model_not_found" else 400
            raise ApiError(status, error.message, code=error.code, param="model") from None

    def _joined(self, request: web.Request, call_id: str) -> sideband.Joinable:
        self._check_origin(request, self._secrets.find(credential(request)) is not None)
        return sideband.find(request, call_id)

    def _check_origin(self, request: web.Request, known: bool) -> None:
        if not known and not self._settings.keyed and self._is_foreign(request):
            message = "Pages of this origin may not connect; see the server's setting allowed_origins."
            raise ApiError(403, message, code="origin_not_allowed")

    def _is_foreign(self, request: web.Request) -> bool:
        """True if a page of another site asks."""
        origin = request.headers.get("Origin")
        if origin is None or allowed_origin(request, self._settings.allowed_origins) is not None:
            return False
        return urlsplit(origin).netloc != request.host

    async def _refuse_beta(self, ws: web.WebSocketResponse) -> None:
        message = (
            "The Realtime Beta API is not supported. Connect without the 'OpenAI-Beta: realtime=v1' header and without "
            f"the subprotocol '{BETA_PROTOCOL}', and use the events of the GA API."
        )
        inner = {
            "type": "invalid_request_error", "code": "beta_api_shape_disabled", "message": message, "param": None,
            "event_id": None,
        }  # fmt: skip
        await ws.send_json({"type": "error", "event_id": new_id("event"), "error": inner})
        await ws.close(code=CLOSE_POLICY, message=b"beta_api_shape_disabled")

    async def _serve(self, ws: web.WebSocketResponse, transport: WsTransport, config: SessionConfig) -> None:
        detectors = self._settings.detectors
        limits = detecting(self._settings.limits, detectors)
        expires_at = int(time.time() + limits.max_seconds)
        session = Session(new_id("sess"), self._cascade.model, config, limits, new_id, expires_at=expires_at)
        shell = Shell(session, self._cascade, transport, detectors=detectors, share=self._share)
        writer = asyncio.create_task(transport.write(), name=f"write-{session.id}")
        writer.add_done_callback(lambda _: None)
        self._shells.add(shell)
        try:
            shell.open()
            await self._read(ws, transport, shell)
            await self._share.turn()
        except Exception:
            # The outermost frame of a session: a bug ends this session, and says so, but no other.
            log.exception("session %s failed", session.id)
            transport.close(CLOSE_INTERNAL, "internal error")
        finally:
            if ws.close_code == WSCloseCode.ABNORMAL_CLOSURE:
                transport.abort()  # nobody is there: a writer that waits for the client would wait for long
            self._shells.discard(shell)
            shell.close("the connection was closed")
            transport.close(transport.code, "")
            await shell.wait_closed()
            await asyncio.wait([writer])

    async def _read(self, ws: web.WebSocketResponse, transport: WsTransport, shell: Shell) -> None:
        decoder: WireDecoder | None = None
        async for message in ws:
            if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                return
            await self._share.turn()
            event = await _parse(message.data)
            match event:
                case ClientEvent(_, AudioAppend(audio), None):
                    wanted = shell.session.config.input_format
                    if decoder is None or decoder.format != wanted:
                        decoder = WireDecoder(wanted)
                    for start in range(0, len(audio), _DECODE_AT_ONCE):
                        await shell.on_samples(decoder.push(audio[start : start + _DECODE_AT_ONCE]))
                case _:
                    shell.on_event(event)
            await transport.room()


_encoder = msgspec.json.Encoder()


def _json(event: Event) -> bytes:
    """An event as JSON; bytes in it become base64."""
    try:
        return _encoder.encode(event)
    except (OverflowError, TypeError):  # clients get back what they gave, be it a number of hundred digits
        return json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()


async def _parse(data: Any) -> ClientEvent:
    if len(data) > MAX_MESSAGE_BYTES:
        message = f"The message is longer than {MAX_MESSAGE_BYTES} bytes; send sound in pieces."
        return ClientEvent(None, None, ClientError(message, code="message_too_long"))
    if len(data) <= _PARSE_ON_LOOP:
        return parse_event(data)
    return await asyncio.to_thread(parse_event, data)


def _is_beta(request: web.Request) -> bool:
    offered = request.headers.get("Sec-WebSocket-Protocol", "")
    beta = ",".join(request.headers.getall("OpenAI-Beta", []))
    return "realtime=v1" in beta or BETA_PROTOCOL in [name.strip() for name in offered.split(",")]


WS_FACE = web.AppKey("realtime_ws", WsFace)


def setup(app: web.Application, cascade: Cascade, settings: WsSettings | None = None) -> WsFace:
    """Add the route to ``app``, which must have :data:`SECRETS`; sessions end when the application shuts down."""
    face = app[WS_FACE] = WsFace(cascade, settings or WsSettings(), app[SECRETS], admission(app), loop_share(app))

    async def on_shutdown(_: web.Application) -> None:
        await face.close()

    schema = _encoder.encode(protocol_schema(cascade.model))

    @documented(Operation("A JSON Schema of all realtime events", {200: Reply("It.", {JSON: {"type": "object"}})}))
    async def events(_: web.Request) -> web.Response:
        return json_response(schema)

    app.router.add_get("/v1/realtime", face.handle)
    app.router.add_get("/v1/realtime/schema", events)
    app.on_shutdown.append(on_shutdown)
    return face
