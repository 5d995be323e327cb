"""Servers for clients that other people wrote."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.clients.recordings import listen, questions, spoken_answers  # noqa: F401
from tests.ws_server import Server, serving
from voicechat.contract.cascade import Cascade
from voicechat.faces import webrtc
from voicechat.faces.app import FaceSettings
from voicechat.media.ice import IceSettings
from voicechat.media.rtc import PeerSettings


@pytest.fixture
async def serve() -> AsyncIterator[Any]:
    """``await serve(cascade, **settings)`` starts one."""
    async with serving() as start:

        async def begin(cascade: Cascade, **settings: Any) -> Server:
            peer = PeerSettings(ice=IceSettings(interfaces=("none",), loopback=True))
            calls = functools.partial(webrtc.setup, settings=webrtc.RtcSettings(peer=peer))
            return await start(cascade, FaceSettings(**settings), [calls])

        yield begin
