"""Fields of a session that are accepted, kept and shown, but change nothing here. Checked all the same. Pure."""

from __future__ import annotations

from typing import Any

from voicechat.realtime.errors import ClientError
from voicechat.realtime.fields import Fields, wrong_type

KEPT = ("tracing", "truncation", "include", "reasoning")
INCLUDED = "item.input_audio_transcription.logprobs"
EFFORTS = ("minimal", "low", "medium", "high", "xhigh")
DELAYS = ("minimal", "low", "medium", "high", "xhigh")
MAX_TEXT = 4000


def read_kept(fields: Fields) -> dict[str, Any]:
    """Those of :data:`KEPT` that are given. Raises :class:`ClientError`."""
    if fields.get("tracing") not in (None, "auto"):
        tracing = Fields(fields.get("tracing"), fields.path("tracing"))
        tracing.only(("workflow_name", "group_id", "metadata"))
        tracing.string("workflow_name", MAX_TEXT)
        tracing.string("group_id", MAX_TEXT)
        tracing.object("metadata")
    if fields.get("truncation") not in (None, "auto", "disabled"):
        truncation = Fields(fields.get("truncation"), fields.path("truncation"))
        truncation.only(("type", "retention_ratio", "token_limits"))
        truncation.need_string("type")
        truncation.choice("type", ("retention_ratio",))
        truncation.need("retention_ratio")
        truncation.number("retention_ratio", 0.0, 1.0)
        if (limits := truncation.object("token_limits")) is not None:
            limits.only(("post_instructions",))
            limits.integer("post_instructions", 0, 1 << 30)
    for index, name in enumerate(fields.array("include") or []):
        if name != INCLUDED:
            param = f"{fields.path('include')}[{index}]"
            raise ClientError(f"Invalid value for '{param}': only '{INCLUDED}' is known.", param=param)
    if (reasoning := fields.object("reasoning")) is not None:
        reasoning.only(("effort",))
        reasoning.choice("effort", EFFORTS)
    return {name: fields.get(name) for name in KEPT if fields.has(name)}


def read_noise_reduction(fields: Fields) -> dict[str, Any] | None:
    """Field ``noise_reduction``. Raises :class:`ClientError`."""
    value = fields.object("noise_reduction")
    if value is not None:
        value.only(("type", "strength"))
        value.choice("type", ("near_field", "far_field"))
        value.number("strength", 0.0, 1.0)
    return fields.get("noise_reduction")


def read_transcription(fields: Fields) -> dict[str, Any] | None:
    """Field ``transcription``. Raises :class:`ClientError`."""
    value = fields.object("transcription")
    if value is not None:
        value.only(("model", "language", "languages", "prompt", "keywords", "delay"))
        for name in ("model", "language", "prompt"):
            value.string(name, MAX_TEXT)
        for name in ("languages", "keywords"):
            for index, word in enumerate(value.array(name) or []):
                if not isinstance(word, str):
                    raise wrong_type(f"{value.path(name)}[{index}]", "a string", word)
        value.choice("delay", DELAYS)
    return fields.get("transcription")
