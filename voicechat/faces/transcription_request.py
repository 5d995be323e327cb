"""The form of a transcription or translation, field by field; what is wrong is told in OpenAI's words."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from voicechat.contract.cascade import ModelInfo
from voicechat.contract.hearing import HearingOptions
from voicechat.faces.fields import bad_field, unsupported_value
from voicechat.faces.models import no_such_model

Task = Literal["transcribe", "translate"]

FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
OPENAI_MODELS = re.compile(r"whisper-1|gpt-4o(-mini)?-transcribe(-\d{4}-\d{2}-\d{2})?")
"""OpenAI's names of models that transcribe, which clients send by themselves; all mean the ears that are here."""
_BILLED_BY_TOKENS = re.compile(r"gpt-4o.*")
FIELDS = (
    "model", "language", "prompt", "response_format", "temperature", "timestamp_granularities", "include", "stream",
    "chunking_strategy",
)  # fmt: skip
LISTS = ("timestamp_granularities", "include")
MAX_PROMPT = 8_000
_LANGUAGE = re.compile(r"([A-Za-z]{2,3})([-_][A-Za-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class TranscriptionRequest:
    """A checked form."""

    task: Task
    format: str
    granularities: tuple[str, ...]
    logprobs: bool
    stream: bool
    by_tokens: bool
    """Usage is told in tokens, as OpenAI does for its newer models."""
    options: HearingOptions


def parse_form(form: Mapping[str, Sequence[str]], task: Task, model: ModelInfo) -> TranscriptionRequest:
    """Check the fields of a form; those that OpenAI doesn't know are passed over.

    Raises :class:`~voicechat.faces.errors.ApiError` that names the first field that is wrong.
    """
    name = _one(form, "model")
    if name is None:
        raise bad_field("model", "Missing required parameter: 'model'.", "missing_required_parameter")
    if name not in (model.name, model.ears.name) and not OPENAI_MODELS.fullmatch(name):
        raise no_such_model(name[:256])
    wanted = _choice(form, "response_format", FORMATS) or "json"
    granularities = _list(form, "timestamp_granularities", ("word", "segment"))
    if granularities and wanted != "verbose_json":
        message = "'timestamp_granularities' is only supported with response_format 'verbose_json'."
        raise bad_field("timestamp_granularities", message)
    words = "word" in granularities
    if words and not model.ears.words:
        raise unsupported_value("timestamp_granularities", "'word'")
    logprobs = bool(_list(form, "include", ("logprobs",)))
    if logprobs and wanted != "json":
        raise bad_field("include", "'include[]' with 'logprobs' is only supported with response_format 'json'.")
    stream = _choice(form, "stream", ("true", "false")) == "true"
    if stream and (wanted not in ("json", "text") or task == "translate"):
        raise unsupported_value("stream", "true together with this request")
    if task == "translate" and not model.ears.translates:
        message = f"This server's ears ({model.ears.name}) don't translate: they are no multilingual model."
        raise bad_field("model", message, "unsupported_value")
    return TranscriptionRequest(
        task=task,
        format=wanted,
        granularities=granularities or ("segment",),
        logprobs=logprobs,
        stream=stream,
        by_tokens=_BILLED_BY_TOKENS.fullmatch(name) is not None,
        options=HearingOptions(
            language=_language(form, model),
            prompt=_prompt(form),
            temperature=_temperature(form),
            translate=task == "translate",
            words=wanted in ("srt", "vtt", "verbose_json") and model.ears.words,
            tokens=logprobs,
            background=True,
        ),
    )


def _one(form: Mapping[str, Sequence[str]], name: str) -> str | None:
    values = form.get(name, ())
    if len(values) > 1:
        raise bad_field(name, f"Invalid '{name}': given {len(values)} times.")
    return values[0] if values and values[0] != "" else None


def _choice(form: Mapping[str, Sequence[str]], name: str, known: Sequence[str]) -> str | None:
    value = _one(form, name)
    if value is None:
        return None
    value = value.lower() if name == "stream" else value
    if value not in known:
        raise _unknown(name, value, known)
    return value


def _list(form: Mapping[str, Sequence[str]], name: str, known: Sequence[str]) -> tuple[str, ...]:
    for value in form.get(name, ()):
        if value not in known:
            raise _unknown(name, value, known)
    return tuple(dict.fromkeys(form.get(name, ())))


def _unknown(name: str, value: str, known: Sequence[str]) -> Exception:
    listed = ", ".join(f"'{each}'" for each in known)
    return bad_field(name, f"Invalid value: '{value[:64]}'. Supported values are: {listed}.")


def _temperature(form: Mapping[str, Sequence[str]]) -> float:
    value = _one(form, "temperature")
    if value is None:
        return 0.0
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0.0 <= number <= 1.0:
        raise bad_field("temperature", f"Invalid 'temperature': {value[:64]!r}. Expected a number between 0 and 1.")
    return number


def _prompt(form: Mapping[str, Sequence[str]]) -> str:
    value = _one(form, "prompt") or ""
    if len(value) > MAX_PROMPT:
        message = f"Invalid 'prompt': string too long. Expected at most {MAX_PROMPT} characters, got {len(value)}."
        raise bad_field("prompt", message, "string_above_max_length")
    return value


def _language(form: Mapping[str, Sequence[str]], model: ModelInfo) -> str | None:
    """ISO 639-1, of ``en-US`` the first part; one that the ears don't know is refused."""
    value = _one(form, "language")
    if value is None:
        return None
    parts = _LANGUAGE.fullmatch(value)
    code = parts[1].lower() if parts else ""
    known = model.ears.languages
    if not code or (known and code not in known):
        heard = f" The ears here ({model.ears.name}) hear: {', '.join(known)}." if known else ""
        message = f"Invalid language '{value[:64]}'. Language parameter must be specified in ISO-639-1 format.{heard}"
        raise bad_field("language", message, "invalid_language_format")
    return code
