"""API keys, request ids and other web origins: what every request passes before its handler."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from voicechat.faces.client_secrets import PREFIX, SECRETS
from voicechat.faces.errors import ApiError

REQUEST_ID = web.RequestKey("request_id", str)
"""The ``x-request-id`` of a request."""

PROTECTED = "/v1/"

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


def auth_middleware(api_keys: Sequence[str]) -> Middleware:
    """Let only bearers of one of ``api_keys`` into ``/v1/``; everybody if there are none.

    A client secret opens realtime sessions; one that has expired does not, even where no key is needed.
    """
    keys = [key.encode() for key in api_keys]

    def known(token: str) -> bool:
        return any(hmac.compare_digest(token.encode(errors="surrogateescape"), key) for key in keys)

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if _takes_secret(request.path) and (token := credential(request)) is not None and token.startswith(PREFIX):
            if SECRETS not in request.app or request.app[SECRETS].find(token) is None:
                message = "The client secret is not known, or has expired."
                raise ApiError(401, message, code="invalid_client_secret", headers={"WWW-Authenticate": "Bearer"})
            return await handler(request)
        if keys and request.path.startswith(PROTECTED) and request.method != "OPTIONS":
            token = credential(request)
            challenge = {"WWW-Authenticate": "Bearer"}
            if token is None:
                raise ApiError(
                    401,
                    "You didn't provide an API key. Send it in a header: 'Authorization: Bearer KEY'.",
                    headers=challenge,
                )
            if not known(token):
                raise ApiError(401, "Incorrect API key provided.", code="invalid_api_key", headers=challenge)
        return await handler(request)

    return middleware


@web.middleware
async def request_id_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Name the request; :func:`add_request_id` puts the name on its reply."""
    request[REQUEST_ID] = f"req_{secrets.token_hex(16)}"
    return await handler(request)


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
        response.headers["Access-Control-Expose-Headers"] = "x-request-id, Location"
        response.headers.add("Vary", "Origin")
