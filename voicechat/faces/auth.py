"""API keys, request ids and other web origins: what every request passes before its handler."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from voicechat.faces.admission import admission, draining
from voicechat.faces.client_secrets import PREFIX, SECRETS
from voicechat.faces.errors import ApiError, too_many
from voicechat.faces.keys import KEY, Key, KeyRing, face_of
from voicechat.faces.limits import Accounts
from voicechat.faces.metered import calling
from voicechat.faces.metrics import METRICS
from voicechat.faces.tracing import REQUEST_ID

ACCOUNTS = web.RequestKey("accounts", list)
"""Whose limits a request counts against."""

PROTECTED = ("/v1/", "/metrics")

_KEY_PROTOCOL = "openai-insecure-api-key."
_REALTIME, _CALLS, _ICE_SERVERS = "/v1/realtime", "/v1/realtime/calls", "/v1/realtime/ice_servers"


def bearer_token(request: web.Request) -> str | None:
    """The token of ``Authorization: Bearer …``, or ``None``."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


def credential(request: web.Request) -> str | None:
    """The bearer token or, as a browser's WebSocket can send no headers, the key among its subprotocols."""
    if (token := bearer_token(request)) is not None or request.path != _REALTIME:
        return token
    for name in request.headers.get("Sec-WebSocket-Protocol", "").split(","):
        if name.strip().startswith(_KEY_PROTOCOL):
            return name.strip().removeprefix(_KEY_PROTOCOL) or None
    return None


def _takes_secret(path: str) -> bool:
    """True where a client secret opens the door: realtime sessions, and nothing else."""
    return path in (_REALTIME, _CALLS, _ICE_SERVERS) or path.startswith(f"{_CALLS}/")


def auth_middleware(ring: KeyRing, accounts: Accounts, served: Callable[[], str]) -> Middleware:
    """Let only bearers of a key of ``ring`` into ``/v1/``; everybody if it has none. ``served`` is the model's name.

    A client secret opens realtime sessions, on the account of the key that made it; one that has expired does not, even
    where no key is needed. What costs something is counted: 429 beyond the limits, decided before the body is read.
    """

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        face = face_of(request.path)
        key: Key | None = None
        token = credential(request)
        if _takes_secret(request.path) and token is not None and token.startswith(PREFIX):
            secret = request.app[SECRETS].find(token) if SECRETS in request.app else None
            key = None if secret is None or secret.owner is None else ring.current(secret.owner.digest)
            if secret is None or (secret.owner is not None and key is None):
                message = "The client secret is not known, or it has expired, or its key has."
                raise ApiError(401, message, code="invalid_client_secret", headers={"WWW-Authenticate": "Bearer"})
        elif ring and request.path.startswith(PROTECTED) and request.method != "OPTIONS":
            key = _required(ring, token)
        if key is not None:
            request[KEY] = key
            _check_scope(key, face, served())
        account = None if key is None else accounts.of(key.name, key.limits)
        everybody = (accounts.everybody,) if account is None else (accounts.everybody, account)
        calling(face or "other", everybody)
        request[ACCOUNTS] = [*everybody]
        if face is not None and _begins(request):
            if admission(request.app).draining:
                raise draining()
            for one in reversed(everybody):  # its own limits first: who is beyond them takes nothing from the others
                if (refusal := one.request(time.monotonic())) is not None:
                    request.app[METRICS].rejections.labels(refusal.what).inc()
                    raise too_many(refusal.message, refusal.wait, what=refusal.what)
        return await handler(request)

    return middleware


def _begins(request: web.Request) -> bool:
    """True if something new is asked for, and not a word about a call that is live."""
    if request.path == _REALTIME:
        return not request.query.get("call_id")
    return request.method == "POST" and not request.path.startswith(f"{_CALLS}/")


def _required(ring: KeyRing, token: str | None) -> Key:
    challenge = {"WWW-Authenticate": "Bearer"}
    if token is None:
        message = "You didn't provide an API key. Send it in a header: 'Authorization: Bearer KEY'."
        raise ApiError(401, message, headers=challenge)
    key = ring.find(token)
    if key is None:
        raise ApiError(401, "Incorrect API key provided.", code="invalid_api_key", headers=challenge)
    return key


def _check_scope(key: Key, face: str | None, served: str) -> None:
    if not key.opens(face):
        message = f"This API key may not use this address; it is for: {', '.join(key.faces)}."
        raise ApiError(403, message, code="insufficient_permissions")
    if face is not None and key.models and served not in key.models:
        message = f"This API key may not use the model '{served}'; it is for: {', '.join(key.models)}."
        raise ApiError(403, message, code="insufficient_permissions", param="model")


def add_rate_limits(request: web.Request, response: web.StreamResponse) -> None:
    """Say what is left of the caller's limits; of its own before those of everybody."""
    for account in request.get(ACCOUNTS, ()):
        response.headers.update(account.headers(time.monotonic()))


def add_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """Put the name on a reply that is about to be sent."""
    response.headers["x-request-id"] = request.get(REQUEST_ID) or f"req_{secrets.token_hex(16)}"


def cors_middleware(origins: Sequence[str]) -> Middleware:
    """Answer preflight requests of ``origins`` (``*``: of all). The headers come from :func:`add_cors`."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        asked = request.headers.get("Access-Control-Request-Method")
        if request.method != "OPTIONS" or not asked or allowed_origin(request, origins) is None:
            return await handler(request)
        headers = {
            "Access-Control-Allow-Methods": "GET, POST, DELETE",
            "Access-Control-Allow-Headers": request.headers.get("Access-Control-Request-Headers", "*"),
            "Access-Control-Max-Age": "600",
        }
        return web.Response(status=204, headers=headers)

    return middleware


def allowed_origin(request: web.Request, origins: Sequence[str]) -> str | None:
    """The request's origin if it is one of ``origins``."""
    origin = request.headers.get("Origin")
    return origin if origin and ("*" in origins or origin in origins) else None


def add_cors(request: web.Request, response: web.StreamResponse, origins: Sequence[str]) -> None:
    """Tell the browser that the request's origin may read the reply, if it may."""
    origin = allowed_origin(request, origins)
    if origin is not None:
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Access-Control-Expose-Headers"] = "x-request-id, Location, Retry-After"
        response.headers.add("Vary", "Origin")
