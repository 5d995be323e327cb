"""``GET /metrics``: every metric of the server, with its unit and its labels; ``docs/operating.md`` lists them.

Names are Prometheus's way: base units, ``_total`` for counters. What the server only looks up when it is asked (slots,
stages, loop lag) comes from a :class:`Status`, collected at each scrape.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from voicechat.faces.keys import face_of
from voicechat.faces.operation import TEXT, Operation, Reply, documented
from voicechat.media.quality import Quality

PREFIX = "voicechat"
LATENCIES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1.0, 1.5, 3.0)
GAPS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


@dataclass(frozen=True, slots=True)
class Status:
    """The server at this moment; ``stages`` say ``up``, ``starting`` or ``down``. Times in seconds, sizes in bytes."""

    ready: bool
    stages: dict[str, str] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    slots: dict[str, int] = field(default_factory=dict)
    """``total``, ``free``, ``waiting``."""
    sessions: int = 0
    pool_bytes: int = 0
    row_faults: int = 0
    loop_lag: dict[str, float] = field(default_factory=dict)
    """By quantile: ``0.5``, ``0.99``."""


class Metrics:
    """All metrics of one application."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, namespace=PREFIX, registry=self.registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(name, text, labels, namespace=PREFIX, registry=self.registry, buckets=buckets)

        self.requests = counter("http_requests", "HTTP requests answered.", "face", "status")
        self.rejections = counter(
            "rejections", "Requests and sessions refused by a limit, or for want of room.", "reason"
        )
        self.responses = counter(
            "responses", "Responses that ended: stop, length, cancelled, or the kind of error.", "face", "outcome"
        )
        self.first_audio = histogram(
            "time_to_first_audio_seconds",
            "From the request's way into the cascade to its first sound.",
            LATENCIES,
            "face",
        )
        self.stage_times = histogram(
            "stage_seconds", "From the request's way into the cascade to a point of a stage.", LATENCIES, "point"
        )
        self.rtf = histogram("response_rtf", "Seconds that a response took for a second of its sound.", SHARES, "face")
        self.underruns = histogram(
            "underrun_seconds",
            "How long a player that began with the first sound would have stood still.",
            GAPS,
            "face",
        )
        self.audio = counter("audio_seconds", "Seconds of sound, heard and said.", "direction")
        self.tokens = counter(
            "tokens", "Tokens: prompt, cached (of these), completion, speech (steps of the Talker).", "kind"
        )
        self.turns = counter("turns", "Turns of users in realtime sessions: committed, or discarded as no turn.", "end")
        self.barge_ins = counter("barge_ins", "Replies that a user interrupted.")
        self.voice_to_voice = histogram(
            "voice_to_voice_seconds", "From a user's last voice to the first sound of the reply.", LATENCIES
        )

    def watch(self, status: Callable[[], Status]) -> None:
        """Show the server's status too, looked up at each scrape."""
        self.registry.register(_StatusCollector(status))

    def watch_calls(self, calls: Callable[[], tuple[Quality, list[Quality]]]) -> None:
        """Show how calls go, too: the counts of all, and each that is live, looked up at each scrape."""
        self.registry.register(_CallsCollector(calls))

    def text(self) -> bytes:
        """All of it in Prometheus's text format."""
        return generate_latest(self.registry)


METRICS = web.AppKey("metrics", Metrics)


def setup(app: web.Application) -> Metrics:
    """Add the route, and the metrics as ``app[METRICS]``."""
    metrics = app[METRICS] = Metrics()

    @documented(Operation("All metrics", {200: Reply("Prometheus's text format.", {CONTENT_TYPE_LATEST: TEXT})}))
    async def scrape(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app.router.add_get("/metrics", scrape)
    return metrics


@web.middleware
async def counting_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Count the request by its face and the status of its reply."""
    status = "aborted"
    try:
        response = await handler(request)
        status = str(response.status)
        return response
    finally:
        request.app[METRICS].requests.labels(face_of(request.path) or "other", status).inc()


class _StatusCollector(Collector):
    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """One family for each field of a status."""
        status = self._status()
        yield _gauge("ready", "1 once every stage is warm and up.", {(): float(status.ready)})
        up: dict[tuple[str, ...], float] = {(name,): float(state == "up") for name, state in status.stages.items()}
        yield _gauge("stage_up", "1 while a stage is up.", up, "stage")
        restarts = CounterMetricFamily(f"{PREFIX}_stage_restarts", "Times that a stage came back.", labels=["stage"])
        for name, count in status.restarts.items():
            restarts.add_metric([name], count)
        yield restarts
        slots: dict[tuple[str, ...], float] = {(state,): float(count) for state, count in status.slots.items()}
        yield _gauge("slots", "Places for responses: total, free; and requests waiting for one.", slots, "state")
        yield _gauge("sessions", "Realtime sessions that are live.", {(): float(status.sessions)})
        yield _gauge("pool_bytes", "Size of the shared pool.", {(): float(status.pool_bytes)})
        faults = CounterMetricFamily(
            f"{PREFIX}_pool_row_faults", "Hidden rows that were read before they were written."
        )
        faults.add_metric([], status.row_faults)
        yield faults
        lag: dict[tuple[str, ...], float] = {(quantile,): seconds for quantile, seconds in status.loop_lag.items()}
        yield _gauge("loop_lag_seconds", "How late the server's event loop runs what is due.", lag, "quantile")


class _CallsCollector(Collector):
    def __init__(self, calls: Callable[[], tuple[Quality, list[Quality]]]) -> None:
        self._calls = calls

    def collect(self) -> Iterator[Metric]:
        """Counts of all calls, and the spread of those that are live."""
        whole, live = self._calls()
        packets = CounterMetricFamily(
            f"{PREFIX}_rtp_packets", "RTP packets of calls' microphones that came, or were lost.", labels=["fate"]
        )
        packets.add_metric(["came"], whole.came)
        packets.add_metric(["lost"], whole.lost)
        yield packets
        for name, text, count in (
            ("playout_slips", "Times that a call's playout was too late to catch up.", whole.slips),
            ("playout_underruns", "Times that a call's playout had too little sound.", whole.underruns),
        ):
            family = CounterMetricFamily(f"{PREFIX}_{name}", text)
            family.add_metric([], count)
            yield family
        jitters = [quality.jitter for quality in live if quality.jitter is not None]
        trips = [quality.round_trip for quality in live if quality.round_trip is not None]
        yield _gauge("rtp_jitter_seconds", "Jitter of what live calls' microphones send.", _spread(jitters), "quantile")
        yield _gauge("rtp_round_trip_seconds", "Round trip of live calls.", _spread(trips), "quantile")


def _spread(values: list[float]) -> dict[tuple[str, ...], float]:
    """The middle and the largest, if there are any."""
    return {("0.5",): statistics.median(values), ("1",): max(values)} if values else {}


def _gauge(name: str, text: str, values: Mapping[tuple[str, ...], float], *labels: str) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=list(labels))
    for words, value in values.items():
        family.add_metric(list(words), value)
    return family
