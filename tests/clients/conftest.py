"""A server over the double cascade for clients that other people wrote, used as they come."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.cascade_double import DoubleCascade
from tests.ws_server import Server
from voicechat.faces.app import FaceSettings


@pytest.fixture
async def serve() -> AsyncIterator[Any]:
    """``await serve(cascade, **settings)`` starts one."""
    servers: list[Server] = []

    async def start(cascade: DoubleCascade, **settings: Any) -> Server:
        server = Server(cascade, FaceSettings(**settings))
        await server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        await server.stop()
