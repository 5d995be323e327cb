"""The server process: one event loop over the cascade and all faces."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop
from aiohttp import web

from voicechat import calls
from voicechat.app import build
from voicechat.assemble import assemble
from voicechat.cascade.coordinator import Coordinator
from voicechat.config import LimitSettings, Settings, resource_dir
from voicechat.contract import logs
from voicechat.contract.errors import CascadeError
from voicechat.contract.provenance import FileSigner
from voicechat.faces import provenance, stats, webrtc
from voicechat.faces.admission import admission
from voicechat.faces.app import KEYS, METERED, FaceSettings, create_app
from voicechat.faces.keys import KeyLimits, KeyRing, KeysError
from voicechat.faces.looplag import LoopLag
from voicechat.faces.metrics import METRICS, Status
from voicechat.faces.tracing import Tracer
from voicechat.faces.transcriptions import FileLimits
from voicechat.marking import keys_to_check
from voicechat.media.detectors import Detectors
from voicechat.media.rtc import PeerSettings
from voicechat.provenance import Checker
from voicechat.realtime.session import SessionLimits
from voicechat.turn_taking import turn_policy, vad_policy
from voicechat.watermark.store import payload_of

if TYPE_CHECKING:
    from voicechat.telemetry import OtelTracer

log = logging.getLogger(__name__)

BREAK_OFF_S = 1.0
"""How long faces may take to tell of the end of replies that are broken off."""


def serve(settings: Settings) -> int:
    """Serve until SIGINT or SIGTERM. Returns the exit code: 1 if a stage could not start or the port is taken."""
    level = logging.getLevelNamesMapping()[settings.server.log_level.upper()]
    logs.share(settings.log.format, content=settings.log.content)
    logs.configure(level)
    logging.getLogger("aiohttp.access").setLevel(max(level, logging.WARNING))
    return uvloop.run(_serve(settings))


async def _serve(settings: Settings) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    hurry = asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    for sign in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sign, on_signal)
    if (refusal := open_to_all(settings)) is not None:
        log.error("%s", refusal)
        return 1
    try:
        sock = _listen(settings.server.host, settings.server.port)
    except OSError as error:
        log.error("can't listen on %s:%d: %s", settings.server.host, settings.server.port, error.strerror or error)
        return 1
    try:
        tls = calls.tls_context(settings)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        log.error("the certificate of server.tls_cert or server.https can't be used: %s", error)
        sock.close()
        return 1
    started = time.monotonic()
    log.info("warming %s up; this takes a while", settings.model.name)
    try:
        paths = assemble(settings)
        detectors = Detectors.load(paths.detectors, vad_policy(settings.turns))
        signer, checker = file_signer(settings), file_checker(settings)
        tracer = span_sender(settings)
        coordinator = build(settings, paths)
    except (OSError, ValueError) as error:
        log.error("%s", getattr(error, "strerror", None) or error)
        sock.close()
        return 1
    lag = LoopLag()
    try:
        app = make_app(coordinator, settings, lag, detectors, checker, signer, tracer)
    except KeysError as error:
        log.error("%s", error)
        sock.close()
        return 1
    loop.add_signal_handler(signal.SIGHUP, _reload_keys, app[KEYS])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=5.0)
    await runner.setup()
    await web.SockSite(runner, sock, ssl_context=tls).start()  # /healthz and /readyz answer from here on
    measuring = loop.create_task(lag.measure(), name="loop-lag")
    code = 0
    try:
        if not await _start(coordinator, stop):
            return 0
        _settle()
        host, port = sock.getsockname()[:2]
        shown, scheme = f"[{host}]" if ":" in host else host, "http" if tls is None else "https"
        print(
            f"{settings.model.name} is ready after {time.monotonic() - started:.0f} s: {scheme}://{shown}:{port}/",
            flush=True,
        )
        await stop.wait()
        await drain(app, settings.server.drain_s, hurry, coordinator.break_off)
    except (RuntimeError, CascadeError) as error:  # a stage that does not start, or dies while it warms up
        log.error("%s", error)
        code = 1
    finally:
        measuring.cancel()
        await runner.cleanup()
        if checker is not None:
            checker.close()
        detectors.close()
        await coordinator.stop()
        if tracer is not None:
            await asyncio.to_thread(tracer.close)
    return code


async def drain(
    app: web.Application, seconds: float, hurry: asyncio.Event, break_off: Callable[[], None] = lambda: None
) -> None:
    """Take nothing new, and let live replies finish: at most ``seconds``, or until ``hurry`` (a second signal).

    What is live then is ended by ``break_off``, each with an error, and has a moment to tell it.
    """
    admission(app).drain()
    metered = app[METERED]
    if metered.live:
        log.info("going down after %d live replies, at most %g s", metered.live, seconds)
    waiting = {asyncio.create_task(metered.idle.wait()), asyncio.create_task(hurry.wait())}
    _, left = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in left:
        task.cancel()
    if metered.live:
        log.warning("%d replies are broken off", metered.live)
        break_off()
        await asyncio.wait([asyncio.create_task(metered.idle.wait())], timeout=BREAK_OFF_S)


def open_to_all(settings: Settings) -> str | None:
    """Why the server does not start: anybody on the network could use it. None if it may."""
    server = settings.server
    if _is_loopback(server.host) or server.anonymous or server.api_keys or keys_file(settings).exists():
        return None
    return (
        f"server.host is {server.host}, so others can reach the server, but no key is needed. Make one "
        "(voicechat keys add NAME), set server.api_keys, or allow it: server.anonymous=true"
    )


def keys_file(settings: Settings) -> Path:
    """Where the file of keys is, or would be."""
    return settings.server.keys_file or settings.data_dir / "keys.yaml"


def _reload_keys(ring: KeyRing) -> None:
    try:
        ring.reload()
    except KeysError as error:
        log.error("the keys stay as they were: %s", error)
    else:
        log.info("the file of keys was read again")


async def _start(coordinator: Coordinator, stop: asyncio.Event) -> bool:
    """Start the cascade, unless told to stop before it is up."""
    starting = asyncio.create_task(coordinator.start(), name="start")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if starting.done():
        starting.result()
        return True
    starting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await starting
    return False


def _settle() -> None:
    """What is there now stays: the collector need not look through it again and again, tens of milliseconds each time
    in which the event loop stands still."""
    gc.collect()
    gc.freeze()


def file_signer(settings: Settings) -> FileSigner | None:
    """What signs files; None without a certificate. Raises OSError and ValueError for one that can't be used."""
    mine = settings.watermark.signature
    if mine.certificate is None or mine.private_key is None:
        return None
    from voicechat.watermark.manifest import Signer

    payload = payload_of(settings.watermark.payload) if settings.watermark.enabled else None
    return Signer.load(
        mine.certificate.expanduser(),
        mine.private_key.expanduser(),
        mine.algorithm,
        model=settings.model.name,
        payload=payload,
    )


def span_sender(settings: Settings) -> OtelTracer | None:
    """What sends traces away; None if nobody wants them. Raises ValueError where the packages are not there."""
    mine = settings.telemetry
    if mine.otlp_endpoint is None:
        return None
    try:
        from voicechat.telemetry import OtelTracer
    except ImportError as error:
        raise ValueError(f"telemetry.otlp_endpoint needs voicechat[otel], which is not installed: {error}") from None
    return OtelTracer(mine.otlp_endpoint, model=settings.model.name, sample=mine.sample)


def file_checker(settings: Settings) -> Checker | None:
    """What looks into files; None if there is no key, which is said in the log.

    Raises OSError and ValueError for keys and authorities that can't be read.
    """
    anchors = settings.watermark.signature.trust_anchors
    trusted = None if anchors is None else anchors.expanduser().read_text(encoding="ascii")
    keys = keys_to_check(settings)
    if not keys:
        return None
    own = payload_of(settings.watermark.payload)
    return Checker(keys, trusted, settings.watermark.max_check_minutes * 60, [own])


def make_app(
    coordinator: Coordinator,
    settings: Settings,
    lag: LoopLag,
    detectors: Detectors,
    checker: Checker | None,
    signer: FileSigner | None = None,
    tracer: Tracer | None = None,
) -> web.Application:
    """The application with every face, by the settings."""
    server = settings.server
    limits = SessionLimits(policy=turn_policy(settings.turns))
    face_settings = FaceSettings(
        api_keys=server.api_keys,
        keys_file=keys_file(settings),
        limits=_key_limits(settings.limits.total),
        key_limits=_key_limits(settings.limits.per_key),
        allowed_origins=server.allowed_origins,
        image_hosts=server.image_hosts,
        web_dir=resource_dir("web"),
        max_audio_seconds=server.max_audio_seconds,
        max_body_bytes=server.max_body_mb << 20,
        max_realtime_sessions=server.max_sessions,
        files=FileLimits(
            max_bytes=settings.ears.max_file_mb << 20,
            max_seconds=settings.ears.max_file_minutes * 60,
            max_files=settings.ears.max_files,
            upload_s=settings.ears.max_upload_s,
        ),
        detectors=detectors,
        realtime_limits=limits,
        signer=signer,
        sign_speech=settings.watermark.signature.speech,
        tracer=tracer,
    )
    checks = provenance.CheckLimits(
        max_bytes=settings.watermark.max_check_mb << 20,
        max_checks=settings.watermark.max_checks,
        upload_s=settings.watermark.max_upload_s,
    )
    rtc = webrtc.RtcSettings(
        peer=PeerSettings(ice=calls.ice_settings(settings, loopback=_is_loopback(server.host))),
        ports=calls.ports(settings),
        limits=limits,
        max_sessions=server.max_sessions,
        detectors=detectors,
    )
    app = create_app(
        coordinator,
        face_settings,
        extensions=[
            lambda app, cascade: webrtc.setup(app, cascade, rtc),
            lambda app, cascade: provenance.setup(app, cascade, checker, checks),
            lambda app, _: stats.setup(app, coordinator, lag, profiling=server.profiling),
        ],
        stage_states=coordinator.stage_states,
    )
    app[METRICS].watch(lambda: _status(app, coordinator, lag))
    return app


def _status(app: web.Application, coordinator: Coordinator, lag: LoopLag) -> Status:
    leases, pool = coordinator.leases, coordinator.pool
    return Status(
        ready=coordinator.ready,
        stages=coordinator.stage_states(),
        restarts=dict(coordinator.restarts),
        slots={"total": leases.total, "free": leases.free, "waiting": leases.waiting},
        sessions=admission(app).live,
        pool_bytes=pool.size,
        row_faults=int(pool.row_faults[0]),
        loop_lag={f"{percent / 100:g}": lag.percentile_ms(percent) / 1000 for percent in (50, 99)},
    )


def _key_limits(limits: LimitSettings) -> KeyLimits:
    return KeyLimits(limits.requests_per_minute, limits.audio_seconds_per_minute, limits.replies, limits.sessions)


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _listen(host: str, port: int) -> socket.socket:
    family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
        0
    ]
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(512)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock
