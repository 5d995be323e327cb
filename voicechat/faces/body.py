"""Reading the JSON body of a request."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

import msgspec
from aiohttp import web

from voicechat.faces.errors import ApiError

SMALL_BODY = 1 << 16
"""Bodies up to this many bytes are parsed on the event loop at once, larger ones in a worker thread."""


async def read_json(request: web.Request, workers: Executor) -> object:
    """The body of ``request``. Raises :class:`ApiError` if it is not said to be JSON, or is none."""
    if request.content_type != "application/json" and not request.content_type.endswith("+json"):
        message = (
            f"Unsupported content type: '{request.content_type}'. This API method only accepts 'application/json'."
        )
        raise ApiError(415, message, code="unsupported_content_type")
    data = await request.read()
    try:
        if len(data) <= SMALL_BODY:
            return msgspec.json.decode(data)
        return await asyncio.get_running_loop().run_in_executor(workers, msgspec.json.decode, data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ApiError(
            400, f"We could not parse the JSON body of your request: {error}.", code="invalid_json"
        ) from None
