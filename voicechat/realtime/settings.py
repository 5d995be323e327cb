"""What a client may set of a session and of a single response, and the checks on it. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from voicechat.contract.cascade import ModelInfo
from voicechat.contract.sound import PCM_RATE
from voicechat.realtime.errors import ClientError
from voicechat.realtime.extras import read_kept, read_noise_reduction, read_transcription
from voicechat.realtime.fields import Fields, unsupported, wrong_type
from voicechat.realtime.outbox import AudioFormat
from voicechat.realtime.policy import Eagerness, SegmenterSettings, TurnPolicy
from voicechat.realtime.tools import Tool, parse_tools

MAX_INSTRUCTIONS = 64_000
"""Characters."""

MAX_OUTPUT_TOKENS = 4096
FORMATS: tuple[AudioFormat, ...] = ("audio/pcm", "audio/pcmu", "audio/pcma")
PRESET_VOICES = (
    "alloy", "ash", "ballad", "coral", "echo", "marin", "sage", "shimmer", "verse", "cedar", "fable", "onyx", "nova",
)  # fmt: skip
"""Names that clients send by themselves; each stands for one of the model's own voices."""

MIN_SPEED, MAX_SPEED = 0.25, 1.5
MAX_INPUT_ITEMS = 128
"""Items that one response is given in place of the conversation."""

SESSION_FIELDS = (
    "type", "object", "id", "expires_at", "model", "instructions", "voice", "latency_first", "output_modalities",
    "max_output_tokens", "tools", "tool_choice", "parallel_tool_calls", "tracing", "truncation", "include", "prompt",
    "reasoning", "audio",
)  # fmt: skip
TRANSCRIPTION_FIELDS = ("type", "object", "id", "expires_at", "include", "audio")
RESPONSE_FIELDS = (
    "audio", "conversation", "input", "instructions", "max_output_tokens", "metadata", "output_modalities",
    "parallel_tool_calls", "prompt", "reasoning", "tool_choice", "tools",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TurnDetection:
    """``turn_detection`` of the protocol. For ``semantic_vad`` the silence follows from ``eagerness``, and from what
    is judged of every pause; here is only its limit."""

    kind: Literal["server_vad", "semantic_vad"] = "server_vad"
    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    idle_timeout_ms: int | None = None
    create_response: bool = True
    interrupt_response: bool = True
    eagerness: Eagerness = "auto"

    def segmenter_settings(self, policy: TurnPolicy) -> SegmenterSettings:
        """Those of ``policy`` with this client's times."""
        silence = self.silence_duration_ms
        if self.kind == "semantic_vad":
            silence = policy.endpointing.patience(self.eagerness).limit_ms
        return dataclasses.replace(policy.segmenter, silence_ms=silence, prefix_ms=self.prefix_padding_ms)

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
            "idle_timeout_ms": self.idle_timeout_ms,
            **common,
        }


LISTENING = TurnDetection(create_response=False, interrupt_response=False)
"""Of a transcription session until the client says otherwise."""


@dataclass(frozen=True, slots=True)
class ResponseSpec:
    """What one response is to be. ``input`` None: the conversation; else only these raw items."""

    instructions: str
    voice: str
    audio: bool
    format: AudioFormat
    latency_first: bool
    max_output_tokens: int | None
    tools: tuple[Tool, ...]
    tool_choice: object
    in_conversation: bool = True
    input: list[Any] | None = None
    speed: float = 1.0
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """Everything that a client may set of its session. ``model`` is the name that the client asked for, if any."""

    instructions: str
    voice: str
    model: str | None = None
    audio: bool = True
    latency_first: bool = True
    max_output_tokens: int | None = None
    detection: TurnDetection | None = field(default_factory=TurnDetection)
    input_format: AudioFormat = "audio/pcm"
    output_format: AudioFormat = "audio/pcm"
    noise_reduction: dict[str, Any] | None = None
    transcription: dict[str, Any] | None = field(default_factory=dict)
    speed: float = 1.0
    tools: tuple[Tool, ...] = ()
    tool_choice: object = "auto"
    kind: Literal["realtime", "transcription"] = "realtime"
    begun: bool = False
    """The session lives: its kind can't be changed any more."""
    kept: dict[str, Any] = field(default_factory=dict)
    """Fields that change nothing here, as the client set them: tracing, truncation, include, reasoning, …"""

    @property
    def language(self) -> str | None:
        """The user's language by its tag, if the client has told it."""
        told = self.transcription or {}
        named = told.get("language") or next(iter(told.get("languages") or ()), None)
        return None if named is None else str(named)

    def updated(self, session: object, model: ModelInfo, *, voice_locked: bool = False) -> SessionConfig:
        """This with the fields of a ``session`` object, which may be partial. Raises :class:`ClientError`."""
        fields = Fields(session, "session")
        kind = fields.choice("type", ("realtime", "transcription")) or self.kind
        if kind != self.kind and self.begun:
            message = f"Passing a {kind} session update event to a {self.kind} session is not allowed."
            raise ClientError(message, param="session.type")
        if kind == "transcription":
            return self._transcribing(fields, model)
        fields.only(SESSION_FIELDS)
        changes: dict[str, Any] = {"kind": kind}
        name = fields.string("model", 256)
        if name is not None and name != model.name:
            if self.model is not None and _alias(name) != _alias(self.model):
                message = "The model of a session can't be changed."
                raise ClientError(message, code="cannot_update_model", param="session.model")
            if not served_name(name, model):
                raise _no_such_model(name, "session.model")
            changes["model"] = name
        if fields.has("instructions"):
            changes["instructions"] = fields.string("instructions", MAX_INSTRUCTIONS) or ""
        if fields.get("voice") is not None:
            changes["voice"] = self._voice(fields, "voice", model, voice_locked)
        if (fast := fields.boolean("latency_first")) is not None:
            changes["latency_first"] = fast
        if fields.get("output_modalities") is not None:
            changes["audio"] = _modalities(fields)
        if fields.has("max_output_tokens"):
            changes["max_output_tokens"] = _max_tokens(fields)
        if fields.has("tools"):
            changes["tools"] = parse_tools(fields)
        if fields.get("tool_choice") is not None:
            changes["tool_choice"] = _tool_choice(fields)
        _no_prompt(fields)
        fields.boolean("parallel_tool_calls")
        changes["kept"] = {**self.kept, **read_kept(fields)}
        if (audio := fields.object("audio")) is not None:
            changes |= self._audio(audio, model, voice_locked)
        return dataclasses.replace(self, **changes)

    @classmethod
    def transcription_session(cls, model: ModelInfo, asked: str | None = None) -> SessionConfig:
        """A session that only writes down what is said; ``asked`` is the name of a model that the client gave."""
        told: dict[str, Any] = {}
        if asked is not None and asked != model.name:
            if not served_name(asked, model):
                raise _no_such_model(asked, "model")
            told["model"] = asked
        return cls("", model.default_voice, kind="transcription", audio=False, transcription=told, detection=LISTENING)

    def _transcribing(self, fields: Fields, model: ModelInfo) -> SessionConfig:
        """The same for a session that only writes down what is said."""
        fields.only(TRANSCRIPTION_FIELDS)
        base = self if self.kind == "transcription" else SessionConfig.transcription_session(model)
        changes: dict[str, Any] = {"kept": {**base.kept, **read_kept(fields)}}
        if (audio := fields.object("audio")) is not None:
            audio.only(("input",))
            changes |= base._audio(audio, model, locked=False)
        changed = dataclasses.replace(base, **changes)
        written = {} if changed.transcription is None else changed.transcription
        if (name := written.get("model")) is not None and not served_name(name, model):
            raise _no_such_model(name, "session.audio.input.transcription.model")
        detection = changed.detection
        if detection is not None:
            detection = dataclasses.replace(
                detection, create_response=False, interrupt_response=False, idle_timeout_ms=None
            )
        return dataclasses.replace(changed, transcription=written, detection=detection)

    def response(self, response: object, model: ModelInfo, *, voice_locked: bool = False) -> ResponseSpec:
        """What a ``response.create`` asks for. Raises :class:`ClientError`."""
        spec = ResponseSpec(
            instructions=self.instructions, voice=self.voice, audio=self.audio, format=self.output_format,
            latency_first=self.latency_first, max_output_tokens=self.max_output_tokens, tools=self.tools,
            tool_choice=self.tool_choice, speed=self.speed,
        )  # fmt: skip
        if response is None:
            return spec
        fields = Fields(response, "response")
        fields.only(RESPONSE_FIELDS)
        changes: dict[str, Any] = {}
        if fields.get("conversation") is not None:
            changes["in_conversation"] = fields.choice("conversation", ("auto", "none")) == "auto"
        if fields.get("instructions") is not None:
            changes["instructions"] = fields.string("instructions", MAX_INSTRUCTIONS)
        if fields.get("output_modalities") is not None:
            changes["audio"] = _modalities(fields)
        if fields.get("max_output_tokens") is not None:
            changes["max_output_tokens"] = _max_tokens(fields)
        if fields.get("tools") is not None:
            changes["tools"] = parse_tools(fields)
        if fields.get("tool_choice") is not None:
            changes["tool_choice"] = _tool_choice(fields)
        _no_prompt(fields)
        fields.boolean("parallel_tool_calls")
        changes["input"] = fields.array("input")
        if (metadata := fields.get("metadata")) is not None:
            changes["metadata"] = _metadata(metadata)
        if (audio := fields.object("audio")) is not None:
            audio.only(("output",))
            if (output := audio.object("output")) is not None:
                output.only(("format", "voice"))
                if output.get("format") is not None:
                    changes["format"] = _format(output)
                if output.get("voice") is not None:
                    changes["voice"] = self._voice(output, "voice", model, voice_locked)
        return dataclasses.replace(spec, **changes)

    def _audio(self, audio: Fields, model: ModelInfo, locked: bool) -> dict[str, Any]:
        audio.only(("input", "output"))
        changes: dict[str, Any] = {}
        if (heard := audio.object("input")) is not None:
            heard.only(("format", "noise_reduction", "transcription", "turn_detection"))
            if heard.get("format") is not None:
                changes["input_format"] = _format(heard)
            if heard.has("noise_reduction"):
                changes["noise_reduction"] = read_noise_reduction(heard)
            if heard.has("transcription"):
                changes["transcription"] = read_transcription(heard)
            if heard.has("turn_detection"):
                changes["detection"] = _detection(self.detection, heard.object("turn_detection"))
        if (spoken := audio.object("output")) is not None:
            spoken.only(("format", "voice", "speed"))
            if spoken.get("format") is not None:
                changes["output_format"] = _format(spoken)
            if spoken.get("voice") is not None:
                changes["voice"] = self._voice(spoken, "voice", model, locked)
            if (speed := spoken.number("speed", MIN_SPEED, MAX_SPEED)) is not None:
                changes["speed"] = speed
        return changes

    def _voice(self, fields: Fields, name: str, model: ModelInfo, locked: bool) -> str:
        value = fields.get(name)
        if isinstance(value, dict):
            value = value.get("id")
        param = fields.path(name)
        if not isinstance(value, str):
            raise wrong_type(param, "a string", value)
        voice = served_voice(value, model)
        if voice is None:
            raise ClientError(f"There is no such voice; there are {', '.join(model.voices)}.", param=param)
        if locked and voice != self.voice:
            message = "The voice can't be changed once the session has spoken."
            raise ClientError(message, code="cannot_update_voice", param=param)
        return voice

    def to_dict(self, session_id: str, served: str, expires_at: int) -> dict[str, Any]:
        """The whole session, as ``session.created`` and ``session.updated`` carry it."""
        transcription = None if self.transcription is None else {"model": served, **self.transcription}
        detection = None if self.detection is None else self.detection.to_dict()
        heard = {
            "format": format_object(self.input_format),
            "transcription": transcription,
            "noise_reduction": self.noise_reduction,
            "turn_detection": detection,
        }
        if self.kind == "transcription":
            for name in ("create_response", "interrupt_response", "idle_timeout_ms"):
                (detection or {}).pop(name, None)
            return {
                "type": "transcription",
                "object": "realtime.transcription_session",
                "id": session_id,
                "expires_at": expires_at,
                **{"include": None, **self.kept},
                "audio": {"input": heard},
            }
        return {
            "type": "realtime",
            "object": "realtime.session",
            "id": session_id,
            "model": served,
            "output_modalities": ["audio" if self.audio else "text"],
            "instructions": self.instructions,
            "tools": [tool.to_dict() for tool in self.tools],
            "tool_choice": self.tool_choice,
            "max_output_tokens": "inf" if self.max_output_tokens is None else self.max_output_tokens,
            "tracing": None,
            "truncation": "auto",
            **self.kept,
            "expires_at": expires_at,
            "audio": {
                "input": heard,
                "output": {"format": format_object(self.output_format), "voice": self.voice, "speed": self.speed},
            },
        }


def served_voice(name: str, model: ModelInfo) -> str | None:
    """The voice of ``model`` that ``name`` means, its own or one of :data:`PRESET_VOICES`; None if there is none."""
    if name in model.voices:
        return name
    if name not in PRESET_VOICES:
        return None
    voices = [model.default_voice, *(voice for voice in model.voices if voice != model.default_voice)]
    return voices[PRESET_VOICES.index(name) % len(voices)]


def format_object(audio_format: AudioFormat) -> dict[str, Any]:
    """An audio format as the protocol shows it."""
    return {"type": audio_format, "rate": PCM_RATE} if audio_format == "audio/pcm" else {"type": audio_format}


def _format(fields: Fields) -> AudioFormat:
    if isinstance(fields.get("format"), str):
        raise wrong_type(fields.path("format"), 'an object such as {"type": "audio/pcm", "rate": 24000}', "")
    form = fields.object("format")
    assert form is not None
    form.only(("type", "rate"))
    form.need("type")
    kind = form.choice("type", FORMATS)
    rate = form.get("rate")
    expected = PCM_RATE if kind == "audio/pcm" else 8000
    if rate is not None and rate != expected:
        raise unsupported(form.path("rate"), f"{kind} has a rate of {expected} Hz.")
    return cast(AudioFormat, kind)


def _alias(name: str) -> str:
    """OpenAI's names of realtime models, which clients send by themselves, all mean the model that is served."""
    return "gpt-realtime" if re.fullmatch(r"gpt-(realtime|4o(-mini)?-realtime)\b.*", name) else name


def served_name(name: str, model: ModelInfo) -> bool:
    """Whether ``name`` is the model that is served, or one of OpenAI's names that stand for it: of realtime models, and
    of those that transcribe for the ears."""
    known = r"whisper-1|gpt-4o(-mini)?-transcribe\b.*"
    return (
        name in (model.name, model.ears.name) or _alias(name) == "gpt-realtime" or re.fullmatch(known, name) is not None
    )


def _no_such_model(name: str, param: str) -> ClientError:
    return ClientError(f"The model '{name[:64]}' does not exist.", code="model_not_found", param=param)


def _detection(current: TurnDetection | None, fields: Fields | None) -> TurnDetection | None:
    if fields is None:
        return None
    fields.only((
        "type", "threshold", "prefix_padding_ms", "silence_duration_ms", "idle_timeout_ms", "create_response",
        "interrupt_response", "eagerness",
    ))  # fmt: skip
    kind = fields.choice("type", ("server_vad", "semantic_vad")) or (current or TurnDetection()).kind
    base = current if current is not None and current.kind == kind else TurnDetection(kind=cast(Any, kind))
    read: dict[str, Any] = {
        "threshold": fields.number("threshold", 0.0, 1.0),
        "prefix_padding_ms": fields.integer("prefix_padding_ms", 0, 5000),
        "silence_duration_ms": fields.integer("silence_duration_ms", 20, 10_000),
        "create_response": fields.boolean("create_response"),
        "interrupt_response": fields.boolean("interrupt_response"),
        "eagerness": fields.choice("eagerness", get_args(Eagerness)),
    }
    changes = {name: value for name, value in read.items() if value is not None}
    if fields.has("idle_timeout_ms"):
        changes["idle_timeout_ms"] = fields.integer("idle_timeout_ms", 1000, 600_000)
    return dataclasses.replace(base, **changes)


def _modalities(fields: Fields) -> bool:
    value = fields.array("output_modalities")
    if value not in (["text"], ["audio"]):
        message = "Invalid 'output_modalities': supported are ['text'] and ['audio'] (speech with its transcript)."
        raise ClientError(message, param=fields.path("output_modalities"))
    return value == ["audio"]


def _max_tokens(fields: Fields) -> int | None:
    if fields.get("max_output_tokens") in ("inf", None):
        return None
    return fields.integer("max_output_tokens", 1, MAX_OUTPUT_TOKENS)


def _tool_choice(fields: Fields) -> object:
    value = fields.get("tool_choice")
    if isinstance(value, str):
        return fields.choice("tool_choice", ("auto", "none", "required"))
    choice = Fields(value, fields.path("tool_choice"))
    choice.need("type")
    choice.choice("type", ("function",))
    choice.need_string("name", 64)
    return value


def _no_prompt(fields: Fields) -> None:
    if fields.get("prompt") is not None:
        raise unsupported(fields.path("prompt"), "there are no stored prompts here; send instructions.")


def _metadata(value: object) -> dict[str, str]:
    fields = Fields(value, "response.metadata")
    assert isinstance(value, dict)
    if len(value) > 16:
        raise ClientError("At most 16 pairs of metadata are allowed.", param="response.metadata")
    for name in value:
        if len(name) > 64:
            raise ClientError("Names in metadata have at most 64 characters.", param="response.metadata")
        if fields.string(name, 512) is None:
            raise wrong_type(fields.path(name), "a string", None)
    return dict(value)
