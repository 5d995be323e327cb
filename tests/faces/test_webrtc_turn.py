"""Calls by way of Debian's coturn, on loopback: credentials for a time, over UDP and TCP, nothing but the relay."""

from __future__ import annotations

import asyncio
import re
import socket
import time

import pytest

from tests import needed
from tests.faces.test_webrtc import Server, serve  # noqa: F401
from voicechat.media.aioice_adapter import try_turn
from voicechat.media.ice import IceServer, IceSettings
from voicechat.media.rtc import PeerSettings


@pytest.fixture
async def turn():
    """The port of a TURN server that knows the secret ``north``."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["-n", "--listening-ip=127.0.0.1", "--relay-ip=127.0.0.1", "-p", str(port), "--use-auth-secret"]
    options += ["--static-auth-secret=north", "--realm=test", "--allow-loopback-peers"]
    options += ["--no-cli", "--no-tls", "--no-dtls", "--log-file=stdout", "--pidfile=/dev/null"]
    quiet = asyncio.subprocess.DEVNULL
    program = needed.program("turnserver")
    process = await asyncio.create_subprocess_exec(program, *options, stdout=quiet, stderr=quiet)
    begun = time.monotonic()
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            break
        except OSError:
            assert process.returncode is None and time.monotonic() - begun < 30, "coturn does not start"
            await asyncio.sleep(0.1)
    yield port
    process.kill()  # asked to end, it waits for its allocations
    await process.wait()


@pytest.mark.parametrize("transport", ["udp", "tcp"])
async def test_a_call_by_way_of_the_relay_alone(serve, turn, transport):  # noqa: F811
    helper = IceServer((f"turn:127.0.0.1:{turn}?transport={transport}",), secret="north")
    ice = IceSettings(interfaces=("none",), loopback=True, servers=(helper,), relay_only=True)
    server: Server = await serve(peer=PeerSettings(ice=ice))
    client = await server.client().connect()
    kinds = set(re.findall(r"a=candidate:.* typ (\w+)", client.answer))
    assert kinds == {"relay"}
    client.ask("hello")
    await client.wait_for("output_audio_buffer.stopped")
    assert len(client.heard) > 20
    async with server.http.get(f"{server.base}/v1/realtime/ice_servers") as response:
        told = await response.json()
    assert told["ice_transport_policy"] == "relay"
    (named,) = told["ice_servers"]
    lent = await try_turn(named["urls"][0], named["username"], named["credential"])
    assert lent[0] == "127.0.0.1"


async def test_wrong_credentials_are_refused(turn):
    with pytest.raises(OSError, match="refuses"):
        await try_turn(f"turn:127.0.0.1:{turn}", "me", "wrong")
