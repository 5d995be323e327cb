"""``GET /openapi.json``: every path of the application, made from its routes and what their handlers say of themselves.

https://spec.openapis.org/oas/v3.1.0
"""

from __future__ import annotations

import http
import importlib.metadata
import re
from collections.abc import Iterator
from typing import Any

import msgspec
from aiohttp import web

from voicechat.contract.cascade import ModelInfo
from voicechat.faces.auth import PROTECTED
from voicechat.faces.errors import json_response
from voicechat.faces.keys import face_of
from voicechat.faces.operation import ERROR, JSON, TEXT, Operation, Reply, documented, operation_of

PATH = "/openapi.json"

_HEADERS = {
    "Retry-After": "Seconds after which it may go better.",
    "WWW-Authenticate": "How to prove who you are.",
    "x-request-id": "The name of this request in the server's log, and where traces are kept, of its trace.",
}
_ERROR_HEADERS = {401: ("WWW-Authenticate",), 429: ("Retry-After",), 503: ("Retry-After",)}
_LIMITED = ("limit", "remaining", "reset")


class Undocumented(LookupError):
    """A handler says nothing of itself."""


def routes(app: web.Application, model: ModelInfo) -> Iterator[tuple[str, str, Operation]]:
    """Method, path as OpenAPI writes it, and operation of every route of the API. Raises :class:`Undocumented`."""
    for route in app.router.routes():
        if route.method == "HEAD" or route.resource is None:  # every GET has a HEAD
            continue
        operation = operation_of(route.handler, model)
        if operation is None:
            raise Undocumented(f"{route.method} {route.resource.canonical}: its handler is not documented")
        if operation.api:
            yield route.method, route.resource.canonical, operation


def document(app: web.Application, model: ModelInfo, *, keyed: bool) -> dict[str, Any]:
    """The whole document. ``keyed``: a key is needed."""
    paths: dict[str, dict[str, Any]] = {}
    for method, path, operation in routes(app, model):
        paths.setdefault(path, {})[method.lower()] = _operation(method, path, operation, keyed=keyed)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "voicechat",
            "version": importlib.metadata.version("voicechat"),
            "description": "Spoken conversation, in the shapes of OpenAI's API. The events of /v1/realtime are in "
            "/v1/realtime/schema.",
        },
        "paths": paths,
        "components": {
            "schemas": {"Error": ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(method: str, path: str, operation: Operation, *, keyed: bool) -> dict[str, Any]:
    protected = path.startswith(PROTECTED)
    errors = {*operation.errors, 500}
    if protected and keyed:
        errors |= {401, 403}
    if method == "POST" and face_of(path) is not None:
        errors |= {429, 503}  # of limits, and while the server is going down
    replies = {str(status): _reply(reply) for status, reply in operation.replies.items()}
    for status in sorted(errors):
        replies[str(status)] = _reply(
            Reply(http.HTTPStatus(status).phrase, {JSON: {"$ref": "#/components/schemas/Error"}}),
            *_ERROR_HEADERS.get(status, ()),
        )
    shown: dict[str, Any] = {
        "operationId": _name(method, path),
        "summary": operation.summary,
        "parameters": _parameters(path, operation),
        "responses": replies,
    }
    if operation.description:
        shown["description"] = operation.description
    if operation.body is not None:
        content: dict[str, Any] = {kind: {"schema": schema} for kind, schema in operation.body.items()}
        if operation.examples:
            first = next(iter(operation.body))
            content[first]["examples"] = {name: {"value": value} for name, value in operation.examples.items()}
        shown["requestBody"] = {"required": operation.body_required, "content": content}
    if protected and keyed:
        shown["security"] = [{"key": []}]
    return shown


def _reply(reply: Reply, *headers: str) -> dict[str, Any]:
    described = {name: _HEADERS[name] for name in (*headers, "x-request-id")} | dict(reply.headers)
    return {
        "description": reply.text,
        "headers": {name: {"description": text, "schema": TEXT} for name, text in described.items()},
        **({"content": {kind: {"schema": schema} for kind, schema in reply.media.items()}} if reply.media else {}),
    }


def _parameters(path: str, operation: Operation) -> list[dict[str, Any]]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"{(\w+)}", path)
    ]
    in_query = [
        {"name": name, "in": "query", "required": name in operation.required_query, "schema": schema}
        for name, schema in operation.query.items()
    ]
    return in_path + in_query


def _name(method: str, path: str) -> str:
    words = re.findall(r"\w+", path.removeprefix("/v1"))
    return "_".join([method.lower(), *words]).replace(".", "_")


def setup(app: web.Application, model: ModelInfo, *, keyed: bool) -> None:
    """Add the route; the document is made when it is first asked for, once all other routes are there."""
    made: list[bytes] = []

    @documented(Operation("This document", {200: Reply("The document.", {JSON: {"type": "object"}})}))
    async def serve(_: web.Request) -> web.Response:
        if not made:
            made.append(msgspec.json.encode(document(app, model, keyed=keyed)))
        return json_response(made[0])

    app.router.add_get(PATH, serve)
