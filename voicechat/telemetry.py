"""Traces over OpenTelemetry: spans that the faces begin, sent to a collector as OTLP over HTTP.

Needs ``voicechat[otel]``; imported only where a collector is named.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from voicechat.faces.tracing import Attributes, Span

_PROPAGATOR = TraceContextTextMapPropagator()


class OtelSpan:
    """A :class:`~voicechat.faces.tracing.Span`."""

    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self._span = span

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits."""
        return trace.format_trace_id(self._span.get_span_context().trace_id)

    @property
    def span_id(self) -> str:
        """16 hexadecimal digits."""
        return trace.format_span_id(self._span.get_span_context().span_id)

    def child(self, name: str, start: int | None = None, attributes: Attributes | None = None) -> Span:
        """A piece of this piece."""
        parent = trace.set_span_in_context(self._span, otel_context.Context())
        return OtelSpan(
            self._tracer, self._tracer.start_span(name, parent, start_time=start, attributes=dict(attributes or {}))
        )

    def note(self, name: str, at: int | None = None) -> None:
        """Something happened in it."""
        self._span.add_event(name, timestamp=at)

    def end(self, at: int | None = None, attributes: Attributes | None = None, error: str | None = None) -> None:
        """It is over."""
        self._span.set_attributes(dict(attributes or {}))
        if error is not None:
            self._span.set_status(trace.StatusCode.ERROR, error)
        self._span.end(at)


class OtelTracer:
    """A :class:`~voicechat.faces.tracing.Tracer` that sends its spans to ``endpoint`` from a thread of its own."""

    def __init__(self, endpoint: str, *, model: str, sample: float = 1.0) -> None:
        about = {
            "service.name": "voicechat",
            "service.version": importlib.metadata.version("voicechat"),
            "voicechat.model": model,
        }
        sampler = ParentBased(TraceIdRatioBased(sample))
        self._provider = TracerProvider(sampler=sampler, resource=Resource.create(about), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces")))
        self._tracer = self._provider.get_tracer("voicechat")

    def begin(self, name: str, attributes: Attributes, carrier: Mapping[str, str] | None = None) -> Span:
        """A span on top, or below the one that ``carrier`` names by its ``traceparent``."""
        context, kind = otel_context.Context(), trace.SpanKind.INTERNAL
        if carrier is not None:
            headers = {name.lower(): value for name, value in carrier.items()}
            context, kind = _PROPAGATOR.extract(headers, context), trace.SpanKind.SERVER
        return OtelSpan(self._tracer, self._tracer.start_span(name, context, kind=kind, attributes=dict(attributes)))

    def close(self) -> None:
        """Send what is left. Blocks, for some seconds if the collector does not answer."""
        self._provider.shutdown()
