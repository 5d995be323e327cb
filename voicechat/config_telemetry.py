"""Settings of what operators see: the sections ``log`` and ``telemetry`` of the tree."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from voicechat.config_section import Section, http_address


class LogSettings(Section):
    """The log of all processes, on standard error; ``server.log_level`` says how much of it there is."""

    format: Literal["text", "json"] = Field(default="text", description="json: one object a line")
    content: bool = Field(default=False, description="also log what users said and were told")


class TelemetrySettings(Section):
    """Traces (OpenTelemetry); they need the extra `voicechat[otel]`."""

    otlp_endpoint: str | None = Field(
        default=None, description="collector that takes OTLP over HTTP, such as http://127.0.0.1:4318; unset: no traces"
    )
    sample: float = Field(
        default=1.0, ge=0, le=1, description="share of the turns that are traced, unless the caller has decided"
    )

    @field_validator("otlp_endpoint")
    @classmethod
    def _http(cls, value: str | None) -> str | None:
        return http_address(value, "http://HOST:4318", "/v1/traces")
