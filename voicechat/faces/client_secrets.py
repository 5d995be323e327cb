"""``POST /v1/realtime/client_secrets``: short-lived keys that a server hands to its browsers, each with a session."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from voicechat.contract.cascade import Cascade, ModelInfo
from voicechat.faces.errors import ApiError, json_response
from voicechat.faces.keys import KEY, Key
from voicechat.faces.operation import JSON, TEXT, Operation, Reply, documented, nullable, one_of, struct, whole
from voicechat.realtime.client_events import load_json
from voicechat.realtime.errors import ClientError
from voicechat.realtime.fields import Fields
from voicechat.realtime.session_schema import session_schema
from voicechat.realtime.settings import SessionConfig

PREFIX = "ek_"
DEFAULT_SECONDS, MIN_SECONDS, MAX_SECONDS = 600, 10, 7200
MAX_SECRETS = 10_000
MAX_BODY_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class ClientSecret:
    """One key: until when it opens sessions, and what these are to be like."""

    value: str
    expires_at: float
    config: SessionConfig
    owner: Key | None = None
    """The key that it was made with, if any was needed."""


class ClientSecrets:
    """All keys that may still be valid. ``clock`` gives Unix time."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._secrets: dict[str, ClientSecret] = {}

    def __len__(self) -> int:
        return len(self._secrets)

    def create(self, config: SessionConfig, seconds: int, owner: Key | None = None) -> ClientSecret:
        """A new key, valid for ``seconds``. The oldest are forgotten if there are too many."""
        now = self._clock()
        for value in [value for value, secret in self._secrets.items() if secret.expires_at <= now]:
            del self._secrets[value]
        while len(self._secrets) >= MAX_SECRETS:
            del self._secrets[next(iter(self._secrets))]
        secret = ClientSecret(f"{PREFIX}{secrets.token_hex(24)}", now + seconds, config, owner)
        self._secrets[secret.value] = secret
        return secret

    def find(self, value: str | None) -> ClientSecret | None:
        """The key if it is known and valid now."""
        secret = self._secrets.get(value or "")
        return secret if secret is not None and self._clock() < secret.expires_at else None


def _operation(model: ModelInfo) -> Operation:
    seconds = {"type": "integer", "minimum": MIN_SECONDS, "maximum": MAX_SECONDS}
    after = struct({"anchor": nullable(one_of(("created_at",))), "seconds": nullable(seconds)})
    asked = struct({"expires_after": nullable(after), "session": nullable(session_schema(model))})
    made = whole({"value": TEXT, "expires_at": {"type": "integer"}, "session": {"type": "object"}})
    return Operation(
        "A short-lived key for a realtime session, which is to be as `session` says",
        {200: Reply("The key.", {JSON: made})},
        errors=(400, 404, 413),
        body={JSON: asked},
        body_required=False,
        examples={"a minute": {"expires_after": {"anchor": "created_at", "seconds": 60}}},
    )


SECRETS = web.AppKey("client_secrets", ClientSecrets)


def setup(app: web.Application, cascade: Cascade, instructions: str = "") -> ClientSecrets:
    """Add the route, and the store as ``app[SECRETS]``."""
    store = app[SECRETS] = ClientSecrets()

    @documented(_operation)
    async def create(request: web.Request) -> web.Response:
        body = await _read_json(request)
        model = cascade.model
        try:
            fields = Fields(body)
            fields.only(("expires_after", "session"))
            seconds = DEFAULT_SECONDS
            if (after := fields.object("expires_after")) is not None:
                after.only(("anchor", "seconds"))
                after.choice("anchor", ("created_at",))
                seconds = after.integer("seconds", MIN_SECONDS, MAX_SECONDS) or DEFAULT_SECONDS
            config = SessionConfig(instructions, model.default_voice)
            if fields.get("session") is not None:
                config = config.updated(fields.get("session"), model)
        except ClientError as error:
            status = 404 if error.code == "model_not_found" else 400
            raise ApiError(status, error.message, param=error.param, code=error.code) from None
        secret = store.create(config, seconds, request.get(KEY))
        expires = int(secret.expires_at)
        session = config.to_dict(f"sess_{secrets.token_hex(12)}", model.name, expires)
        return json_response({"value": secret.value, "expires_at": expires, "session": session})

    app.router.add_post("/v1/realtime/client_secrets", create)
    return store


async def _read_json(request: web.Request) -> object:
    data = await request.content.read(MAX_BODY_BYTES + 1)
    while not request.content.at_eof() and len(data) <= MAX_BODY_BYTES:
        data += await request.content.read(MAX_BODY_BYTES + 1)
    if len(data) > MAX_BODY_BYTES:
        raise ApiError(413, "The request body is too large.", code="request_too_large")
    if not data.strip():
        return {}
    try:
        return load_json(data)
    except (ValueError, RecursionError):
        raise ApiError(400, "The body is not JSON.", code="invalid_json") from None
