"""The web application: all faces of the server over one cascade."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from voicechat.contract.cascade import Cascade
from voicechat.contract.provenance import FileSigner
from voicechat.faces import auth, client_secrets, health, metrics, models, openapi, page, realtime_ws, voices
from voicechat.faces.audio_store import MAX_REPLIES, TTL_S, AudioStore
from voicechat.faces.chat import ChatFace, ChatLimits
from voicechat.faces.errors import error_middleware
from voicechat.faces.keys import KeyLimits, KeyRing
from voicechat.faces.limits import Accounts
from voicechat.faces.metered import Metered
from voicechat.faces.speech import SpeechFace
from voicechat.faces.tracing import Tracer, request_middleware
from voicechat.faces.transcriptions import FileLimits, TranscriptionFace
from voicechat.media.decode import MAX_BYTES
from voicechat.media.detectors import Detectors
from voicechat.realtime.session import SessionLimits


@dataclass(frozen=True, slots=True)
class FaceSettings:
    """What the faces need to know beside the cascade."""

    api_keys: tuple[str, ...] = ()
    """Bearer tokens that may call ``/v1/``; empty, and no :attr:`keys_file`: everybody may."""
    keys_file: Path | None = None
    """Further keys, with limits; see :mod:`voicechat.faces.keys`."""
    limits: KeyLimits = field(default_factory=KeyLimits)
    """Of all callers together."""
    key_limits: KeyLimits = field(default_factory=KeyLimits)
    """Of a key that has none of its own."""
    allowed_origins: tuple[str, ...] = ()
    """Other web origins that may call; ``*``: all."""
    image_hosts: tuple[str, ...] = ()
    """Hosts from which images are fetched that requests name by URL."""
    web_dir: Path | None = None
    """Folder of the page; ``None``: no page."""
    max_audio_bytes: int = MAX_BYTES
    """Largest sound file in a request, as bytes of the file."""
    max_audio_seconds: float = 60.0
    """Longest sound in a request."""
    max_body_bytes: int = MAX_BYTES * 4 // 3 + (4 << 20)
    """Largest body: one sound file of :attr:`max_audio_bytes` as base64, and room for text."""
    audio_ttl_s: int = TTL_S
    """How long a spoken reply can be referred to by its id."""
    audio_replies: int = MAX_REPLIES
    """How many spoken replies can be referred to."""
    write_timeout_s: float = 60.0
    """How long the reader of a stream may stand still before it is dropped."""
    max_realtime_sessions: int = 32
    """Most live realtime sessions, those over WebRTC included, for a new one to be taken over WebSocket."""
    files: FileLimits = field(default_factory=FileLimits)
    """Of files that are transcribed."""
    media_threads: int = 2
    """Threads that decode and encode sound."""
    signer: FileSigner | None = None
    """Signs the sound files of whole replies; ``None``: they are not signed."""
    sign_speech: bool = False
    """Sign those of ``/v1/audio/speech`` too, which can't be sent as they are made then."""
    detectors: Detectors | None = None
    """What finds speech and judges turns in realtime sessions; ``None``: by level and words alone."""
    tracer: Tracer | None = None
    """Where traces go; ``None``: there are none."""
    realtime_limits: SessionLimits = field(default_factory=SessionLimits)
    """Bounds of realtime sessions over WebSocket, and how they take turns."""


Extension = Callable[[web.Application, Cascade], object]
"""Adds more routes to the application, as ``voicechat.faces.webrtc.setup`` does once its settings are bound."""

KEYS = web.AppKey("keys", KeyRing)
"""The keys; :meth:`KeyRing.reload` reads their file again."""

METERED = web.AppKey("metered", Metered)
"""The cascade as the faces see it."""

WORKERS = web.AppKey("workers", ThreadPoolExecutor)
"""The threads for sound and large bodies; closed with the application."""


def create_app(
    cascade: Cascade,
    settings: FaceSettings | None = None,
    *,
    extensions: Iterable[Extension] = (),
    stage_states: health.StageStates | None = None,
) -> web.Application:
    """The application with all routes.

    ``extensions`` are called before the page's routes are added. ``stage_states`` lets ``/readyz`` name the stages that
    are not up.
    """
    settings = settings or FaceSettings()
    ring = KeyRing(settings.api_keys, settings.keys_file)
    accounts = Accounts(settings.limits, settings.key_limits)
    app = web.Application(
        client_max_size=settings.max_body_bytes,
        middlewares=[
            request_middleware(settings.tracer),
            metrics.counting_middleware,
            error_middleware,
            auth.cors_middleware(settings.allowed_origins),
            auth.auth_middleware(ring, accounts, lambda: cascade.model.name),
        ],
    )
    app[KEYS] = ring
    cascade = app[METERED] = Metered(cascade, metrics.setup(app), tracer=settings.tracer)

    async def on_prepare(request: web.Request, response: web.StreamResponse) -> None:
        auth.add_request_id(request, response)
        auth.add_rate_limits(request, response)
        auth.add_cors(request, response, settings.allowed_origins)

    async def on_cleanup(app: web.Application) -> None:
        app[WORKERS].shutdown(wait=False, cancel_futures=True)

    app.on_response_prepare.append(on_prepare)
    app.on_cleanup.append(on_cleanup)
    app[WORKERS] = ThreadPoolExecutor(settings.media_threads, thread_name_prefix="media")

    health.setup(app, cascade, stage_states)
    models.setup(app, cascade)
    voices.setup(app, cascade)
    limits = ChatLimits(
        settings.max_audio_bytes,
        settings.max_audio_seconds,
        settings.write_timeout_s,
        image_hosts=frozenset(settings.image_hosts),
    )
    store = AudioStore(settings.audio_ttl_s, settings.audio_replies)
    ChatFace(cascade, store, app[WORKERS], limits, settings.signer).setup(app)
    signer = settings.signer if settings.sign_speech else None
    SpeechFace(cascade, app[WORKERS], write_timeout_s=settings.write_timeout_s, signer=signer).setup(app)
    TranscriptionFace(
        cascade,
        settings.files,
        silero=settings.detectors.silero if settings.detectors is not None else None,
        in_conversation=lambda: accounts.everybody.live_sessions > 0,
        write_timeout_s=settings.write_timeout_s,
    ).setup(app)
    client_secrets.setup(app, cascade)
    realtime = realtime_ws.WsSettings(
        limits=settings.realtime_limits,
        max_sessions=settings.max_realtime_sessions,
        keyed=bool(ring),
        allowed_origins=settings.allowed_origins,
        detectors=settings.detectors,
    )
    realtime_ws.setup(app, cascade, realtime)
    for extend in extensions:
        extend(app, cascade)
    openapi.setup(app, cascade.model, keyed=bool(ring))
    if settings.web_dir is not None:
        page.setup(app, settings.web_dir)
    return app
