"""What a client may set of a WebRTC session, and the checks on it. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from voicechat.cascade.api import ModelInfo
from voicechat.media.turns import TurnSettings

MAX_INSTRUCTIONS = 16_000
"""Characters."""

MAX_OUTPUT_TOKENS = 4096

MAX_ID = 64

MAX_TEXT = 4_000
"""Characters of a part of a message that the client writes."""

_SEMANTIC_SILENCE_MS = {"low": 900, "medium": 500, "auto": 500, "high": 300}
_IGNORED = {"type", "object", "id", "expires_at", "tracing", "include", "truncation", "tool_choice", "model"}
_IGNORED_INPUT = {"format", "transcription", "noise_reduction"}
_IGNORED_OUTPUT = {"format"}


class RequestError(ValueError):
    """A client asked for something that can't be; ``code`` and ``param`` as in the protocol's errors."""

    def __init__(self, message: str, *, code: str = "invalid_value", param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


@dataclass(frozen=True, slots=True)
class TurnDetection:
    """``turn_detection`` of the protocol. For ``semantic_vad`` the silence follows from ``eagerness``."""

    kind: Literal["server_vad", "semantic_vad"] = "server_vad"
    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    create_response: bool = True
    interrupt_response: bool = True
    eagerness: str = "auto"

    def turn_settings(self, base: TurnSettings) -> TurnSettings:
        """``base`` with this client's times."""
        silence = self.silence_duration_ms
        if self.kind == "semantic_vad":
            silence = _SEMANTIC_SILENCE_MS[self.eagerness]
        return dataclasses.replace(base, silence_ms=silence, prefix_ms=self.prefix_padding_ms)

    def to_dict(self) -> dict[str, Any]:
        """As the protocol shows it."""
        common = {"create_response": self.create_response, "interrupt_response": self.interrupt_response}
        if self.kind == "semantic_vad":
            return {"type": self.kind, "eagerness": self.eagerness, **common}
        return {
            "type": self.kind,
            "threshold": self.threshold,
            "prefix_padding_ms": self.prefix_padding_ms,
            "silence_duration_ms": self.silence_duration_ms,
            "idle_timeout_ms": None,
            **common,
        }


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """Everything that a client may set of its session."""

    instructions: str
    voice: str
    latency_first: bool = True
    max_output_tokens: int | None = None
    detection: TurnDetection = field(default_factory=TurnDetection)

    def updated(self, session: object, model: ModelInfo, *, voice_locked: bool = False) -> SessionConfig:
        """This with the fields of a ``session`` object, which may be partial. Raises :class:`RequestError`."""
        if not isinstance(session, Mapping):
            raise RequestError("session must be an object", param="session")
        config = self
        for key, value in session.items():
            param = f"session.{key}"
            if key == "type":
                _expect(value == "realtime", "the session type must be 'realtime'", param)
            elif key == "instructions":
                _expect(isinstance(value, str), "instructions must be a string", param)
                _expect(len(value) <= MAX_INSTRUCTIONS, f"longer than {MAX_INSTRUCTIONS} characters", param)
                config = dataclasses.replace(config, instructions=value)
            elif key == "voice":
                config = config._with_voice(value, model, voice_locked, param)
            elif key == "latency_first":
                _expect(isinstance(value, bool), "latency_first must be true or false", param)
                config = dataclasses.replace(config, latency_first=value)
            elif key == "max_output_tokens":
                config = dataclasses.replace(config, max_output_tokens=_max_tokens(value, param))
            elif key == "output_modalities":
                _expect(value == ["audio"], 'output_modalities must be ["audio"]', param, "unsupported_value")
            elif key == "tools":
                _expect(value in ([], None), "tools are not supported yet", param, "unsupported_value")
            elif key == "audio":
                config = config._with_audio(value, model, voice_locked)
            elif key not in _IGNORED:
                raise RequestError(f"unknown field {param}", code="unknown_parameter", param=param)
        return config

    def _with_audio(self, audio: object, model: ModelInfo, voice_locked: bool) -> SessionConfig:
        config = self
        for direction, fields in _mapping(audio, "session.audio").items():
            _expect(
                direction in ("input", "output"), "unknown field", f"session.audio.{direction}", "unknown_parameter"
            )
            for key, value in _mapping(fields, f"session.audio.{direction}").items():
                param = f"session.audio.{direction}.{key}"
                if direction == "input" and key == "turn_detection":
                    config = dataclasses.replace(config, detection=_detection(config.detection, value, param))
                elif direction == "output" and key == "voice":
                    config = config._with_voice(value, model, voice_locked, param)
                elif direction == "output" and key == "speed":
                    _expect(value in (1, None), "speed can't be changed", param, "unsupported_value")
                elif key not in (_IGNORED_INPUT if direction == "input" else _IGNORED_OUTPUT):
                    raise RequestError(f"unknown field {param}", code="unknown_parameter", param=param)
        return config

    def _with_voice(self, voice: object, model: ModelInfo, locked: bool, param: str) -> SessionConfig:
        if isinstance(voice, Mapping):
            voice = voice.get("id")
        if voice not in model.voices or not isinstance(voice, str):
            raise RequestError(f"no such voice; there are {', '.join(model.voices)}", param=param)
        if locked and voice != self.voice:
            raise RequestError(
                "the voice can't be changed after the first reply", code="cannot_update_voice", param=param
            )
        return dataclasses.replace(self, voice=voice)


def user_message(item: object) -> tuple[str | None, list[str]]:
    """Identifier, if one is given, and texts of a message that the client adds. Raises :class:`RequestError`."""
    if not isinstance(item, Mapping) or item.get("type") != "message" or item.get("role") != "user":
        raise RequestError("only messages of the user can be added", code="unsupported_value", param="item")
    content = item.get("content")
    if not isinstance(content, list) or not content:
        raise RequestError("content must be a list of parts", param="item.content")
    texts = []
    for index, part in enumerate(content):
        param = f"item.content[{index}]"
        if not isinstance(part, Mapping) or part.get("type") != "input_text":
            raise RequestError("only input_text can be added", code="unsupported_value", param=f"{param}.type")
        text = part.get("text")
        if not isinstance(text, str) or not text.strip() or len(text) > MAX_TEXT:
            raise RequestError(f"text must have 1 to {MAX_TEXT} characters", param=f"{param}.text")
        texts.append(text)
    item_id = item.get("id")
    if item_id is not None and (not isinstance(item_id, str) or not 0 < len(item_id) <= MAX_ID):
        raise RequestError(f"id must have 1 to {MAX_ID} characters", param="item.id")
    return item_id, texts


def _detection(current: TurnDetection, value: object, param: str) -> TurnDetection:
    if value is None:
        raise RequestError("turn detection can't be turned off yet", code="unsupported_value", param=param)
    fields = dict(_mapping(value, param))
    kind = fields.pop("type", current.kind)
    _expect(kind in ("server_vad", "semantic_vad"), "must be 'server_vad' or 'semantic_vad'", f"{param}.type")
    changes: dict[str, Any] = {"kind": kind}
    for key, item in fields.items():
        name = f"{param}.{key}"
        if key in ("create_response", "interrupt_response"):
            _expect(isinstance(item, bool), f"{key} must be true or false", name)
        elif key == "eagerness":
            _expect(item in _SEMANTIC_SILENCE_MS, f"must be one of {', '.join(_SEMANTIC_SILENCE_MS)}", name)
        elif key == "threshold":
            _expect(_number(item) and 0 <= item <= 1, "threshold must be between 0 and 1", name)
        elif key == "prefix_padding_ms":
            _expect(_number(item) and 0 <= item <= 2000, "must be between 0 and 2000", name)
            item = int(item)
        elif key == "silence_duration_ms":
            _expect(_number(item) and 100 <= item <= 5000, "must be between 100 and 5000", name)
            item = int(item)
        elif key == "idle_timeout_ms":
            _expect(item is None, "idle_timeout_ms is not supported yet", name, "unsupported_value")
            continue
        else:
            raise RequestError(f"unknown field {name}", code="unknown_parameter", param=name)
        changes[key] = item
    return dataclasses.replace(current, **changes)


def _max_tokens(value: object, param: str) -> int | None:
    if value in ("inf", None):
        return None
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_OUTPUT_TOKENS:
        return value
    raise RequestError(f"must be 'inf' or between 1 and {MAX_OUTPUT_TOKENS}", param=param)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _mapping(value: object, param: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise RequestError(f"{param} must be an object", param=param)
    return value


def _expect(condition: bool, message: str, param: str, code: str = "invalid_value") -> None:
    if not condition:
        raise RequestError(f"{param}: {message}", code=code, param=param)
