"""Clients that go away, politely or not, in the middle of a reply: then their session's place, reply, tasks and memory
are gone within two seconds of when the server can know."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from tests.gone import WITHIN, assert_gone, left
from tests.netns import Namespace
from tests.rtc_client import Client
from tests.web.conftest import DoubleServers
from tests.ws_server import Raw

HEARTBEAT = 1.0
LONG = ("--answer", "word " * 400, "--max-sessions", "1", "--heartbeat", str(HEARTBEAT))


@pytest.fixture
def double() -> Iterator[DoubleServers]:
    """Starts servers over the double cascade in processes of their own."""
    servers = DoubleServers(Namespace(None))
    yield servers
    servers.stop()


class Proxy:
    """Forwards TCP connections to ``url``, until it is :meth:`frozen <freeze>`: then nothing goes through any more, and
    neither side is told, as when a cable is pulled."""

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        self._upstream = (host, int(port))
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Proxy]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = "http://{}:{}".format(*server.sockets[0].getsockname()[:2])
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def freeze(self) -> None:
        """From now on nothing goes through."""
        self._thawed.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other_reader, other_writer = await asyncio.open_connection(*self._upstream)
        for source, sink in ((reader, other_writer), (other_reader, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._tasks.add(task)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            await self._thawed.wait()
            sink.write(data)
            await sink.drain()


def session() -> aiohttp.ClientSession:
    """Leaves no idle connection at the server."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))


@contextlib.asynccontextmanager
async def speaking(base: str) -> AsyncIterator[Raw]:
    """A session over WebSocket that is being answered."""
    async with session() as http:
        ws = await http.ws_connect(f"{base}/v1/realtime", max_msg_size=0)
        raw = Raw(ws)
        await raw.ask()
        await raw.until("response.output_audio.delta")
        yield raw


def wire(raw: Raw) -> asyncio.Transport:
    """What is under the WebSocket."""
    return raw.ws._response.connection.transport


async def close(raw: Raw) -> None:
    await raw.ws.close()


async def end_of_stream(raw: Raw) -> None:
    """FIN without a close frame: the client's process has ended."""
    wire(raw).get_extra_info("socket").shutdown(socket.SHUT_RDWR)


async def reset(raw: Raw) -> None:
    """RST: the client's machine knows nothing of the connection any more."""
    wire(raw).get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire(raw).abort()


async def half_a_message(raw: Raw) -> None:
    """The stream ends within a frame."""
    wire(raw).write(b"\x81\xfe\x10\x00\x01\x02\x03\x04half")
    wire(raw).write_eof()


async def no_frame(raw: Raw) -> None:
    """Bytes that are no WebSocket frame."""
    wire(raw).write(b"\xff" * 64)


@pytest.mark.parametrize("leave", [close, end_of_stream, reset, half_a_message, no_frame])
async def test_a_websocket_that_ends(double, leave):
    url = double(*LONG)
    before = left(url)
    async with speaking(url) as raw:
        assert left(url)["places"] == 1
        await leave(raw)
        await asyncio.to_thread(assert_gone, url, before)
    async with speaking(url):
        """The place can be taken again."""


@pytest.mark.parametrize("word_delay", [0.1, 0.0], ids=["while little is sent", "while the pipe is full"])
async def test_a_websocket_whose_cable_is_pulled(double, word_delay):
    url = double(*LONG, "--word-delay", str(word_delay))
    before = left(url)
    async with Proxy(url).running() as proxy, speaking(proxy.url):
        assert left(url)["places"] == 1
        proxy.freeze()
        await asyncio.sleep(1.5 * HEARTBEAT)  # a ping goes out after one, its answer is missed after half of one
        await asyncio.to_thread(assert_gone, url, before)


@pytest.mark.parametrize("way", ["channel", "connection"])
async def test_a_call_that_ends(double, way):
    url = double(*LONG)
    before = left(url)
    async with session() as http:
        client = await Client(http, url).connect()
        client.ask("hello")
        await client.wait_for("output_audio_buffer.started")
        assert left(url)["places"] == 1
        if way == "channel":
            client.channel.close()  # the peer itself lives on
        else:
            await client.connection.close()
        await asyncio.to_thread(assert_gone, url, before)
        if way == "channel":
            await asyncio.wait_for(client.closed.wait(), WITHIN)
        await client.close()
