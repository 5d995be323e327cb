"""``GET /v1/realtime?call_id=…``: a second way into a live call, for a server that watches and steers it.

It sees every event of the call's session, may send every client event, and ends with the call; the call does not end
with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from aiohttp import WSMsgType, web

from voicechat.faces.errors import ApiError
from voicechat.realtime.client_events import ClientEvent
from voicechat.realtime.outbox import Event


class Listener(Protocol):
    """Who is told what the client of a call is told."""

    def send(self, event: Event) -> None:
        """An event; it is shared with others, and not to be changed."""

    def close(self, code: int, reason: str) -> None:
        """The call is over."""


class Joinable(Protocol):
    """A live call."""

    def attach(self, listener: Listener) -> None:
        """Tell ``listener`` of the session as it is, and of all that follows."""

    def detach(self, listener: Listener) -> None:
        """Tell it no more."""

    def on_event(self, event: ClientEvent) -> None:
        """A client event, as if the client had sent it."""


CALLS: web.AppKey[Callable[[str], Joinable | None]] = web.AppKey("calls", Callable)  # type: ignore[arg-type]
"""Finds a live call by its identifier."""


class SidebandTransport(Listener, Protocol):
    """The WebSocket's way out."""

    async def write(self) -> None:
        """Send what is queued until it is closed."""

    def abort(self) -> None:
        """Drop the connection."""


def find(request: web.Request, call_id: str) -> Joinable:
    """The call. Raises :class:`ApiError` if there is none."""
    call = request.app[CALLS](call_id) if CALLS in request.app else None
    if call is None:
        raise ApiError(404, "There is no such call.", code="call_not_found", param="call_id")
    return call


async def serve(
    ws: web.WebSocketResponse,
    transport: SidebandTransport,
    call: Joinable,
    parse: Callable[[Any], Awaitable[ClientEvent]],
) -> None:
    """Until either side closes, or the call ends."""
    writer = asyncio.create_task(transport.write(), name="write-sideband")
    call.attach(transport)
    try:
        async for message in ws:
            if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                break
            call.on_event(await parse(message.data))
    finally:
        call.detach(transport)
        transport.close(1000, "")
        if not ws.closed:
            transport.abort()
        await asyncio.wait([writer])
