"""Calls whose network goes away, comes back or changes, and other ways into a call than its client's."""

from __future__ import annotations

import asyncio
import json
import re
import time

import aiohttp
import pytest
from aiortc import RTCSessionDescription
from openai import AsyncOpenAI

from tests.cascade_double import DoubleCascade
from tests.faces.test_webrtc import LOOPBACK, Server, serve  # noqa: F401
from tests.rtc_client import Client
from tests.speech import rms
from voicechat.bench.relay import Relay, Weather, through
from voicechat.media.rtc import PeerSettings


async def call_through(server: Server, weather: Weather) -> tuple[Client, Relay]:
    """A call whose packets all go through a relay."""
    client = server.client()
    response = await client.post(keep_candidates=False)  # else the server would find the way around the relay
    assert response.status == 201
    client.location = response.headers["Location"]
    answer, relay = await through(await response.text(), weather)
    await client.connection.setRemoteDescription(RTCSessionDescription(sdp=answer, type="answer"))
    await asyncio.wait_for(client.opened.wait(), 20)
    return client, relay


def audible(client: Client) -> float:
    """Seconds of reply that were heard."""
    return sum(len(samples) for _, samples in client.heard if rms(samples) > 0.03) / 48_000


async def until(condition, within: float = 15.0) -> None:
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < within
        await asyncio.sleep(0.02)


def peer_of(server: Server):
    (call,) = server.table._calls.values()
    return call.peer


async def test_a_reply_waits_while_the_network_is_gone_and_goes_on_where_it_was_heard(serve):  # noqa: F811
    server = await serve(DoubleCascade(answer="word " * 20))
    client, relay = await call_through(server, Weather())
    client.ask("hello")
    await client.wait_for("output_audio_buffer.started")
    await asyncio.sleep(1.0)
    relay.blocked = True
    await until(lambda: peer_of(server).away)
    await asyncio.sleep(1.0)
    assert not client.all("output_audio_buffer.stopped")
    relay.blocked = False
    await client.wait_for("output_audio_buffer.stopped")
    await asyncio.sleep(0.5)
    # what is said between the cut and its being noticed is said again; a busy machine notices it later
    assert 20 * 0.3 - 0.5 <= audible(client) <= 20 * 0.3 + 1.5, "all of it was heard, and hardly any of it twice"
    assert [event["response"]["status"] for event in client.all("response.done")] == ["completed"]
    assert len(client.all("output_audio_buffer.started")) == 1
    relay.close()


async def test_the_history_says_what_was_heard_before_the_network_went(serve):  # noqa: F811
    server = await serve(DoubleCascade(answer="word " * 20))
    client, relay = await call_through(server, Weather())
    client.ask("hello")
    await client.wait_for("output_audio_buffer.started")
    await until(lambda: audible(client) > 0.9)
    relay.blocked = True
    await until(lambda: peer_of(server).away)
    async with server.http.ws_connect(f"{server.base}/v1/realtime?call_id={client.location.rsplit('/', 1)[1]}") as ws:
        await ws.send_json({"type": "output_audio_buffer.clear"})
        while (event := await ws.receive_json())["type"] != "conversation.item.truncated":
            pass
    heard = audible(client)
    assert heard - 0.4 <= event["audio_end_ms"] / 1000 <= heard + 0.6
    relay.close()


async def test_a_call_goes_on_over_a_connection_made_anew(serve):  # noqa: F811
    server = await serve(DoubleCascade(answer="word " * 30))
    first = await server.client().connect()
    created = await first.wait_for("session.created")
    first.ask("hello")
    await first.wait_for("output_audio_buffer.started")
    first.vanish()
    second = server.client()
    await second.connection.setLocalDescription(await second.connection.createOffer())
    sdp = second.connection.localDescription.sdp
    headers = {"Content-Type": "application/sdp"}
    async with server.http.post(server.base + first.location, data=sdp, headers=headers) as response:
        assert response.status == 200
        await second.connection.setRemoteDescription(RTCSessionDescription(sdp=await response.text(), type="answer"))
    again = await second.wait_for("session.created")
    assert again["session"]["id"] == created["session"]["id"]
    await second.wait_for("output_audio_buffer.stopped")
    assert audible(second) > 1.0
    assert len(server.table) == 1
    second.tell("conversation.item.retrieve", item_id=first.all("response.output_item.added")[0]["item"]["id"])
    item = (await second.wait_for("conversation.item.retrieved"))["item"]
    assert item["content"][0]["transcript"].count("word") == 30


async def test_what_cannot_renew_a_call(serve):  # noqa: F811
    server = await serve()
    client = await server.client().connect()
    headers = {"Content-Type": "application/sdp"}
    async with server.http.post(server.base + client.location, data="hello", headers=headers) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (400, "invalid_offer")
    async with server.http.post(f"{server.base}/v1/realtime/calls/rtc_no", data="v=0", headers=headers) as response:
        assert response.status in (400, 404)
    offer, statuses = client.connection.localDescription.sdp, []
    for number in range(5):
        sdp = re.sub(r"a=ice-ufrag:\S+", f"a=ice-ufrag:nobody{number}", offer)
        async with server.http.post(server.base + client.location, data=sdp, headers=headers) as response:
            statuses.append(response.status)
            text = await response.text()
    assert statuses == [200] * 4 + [400] and "4 connections in the making" in text
    client.ask("hello")
    await client.wait_for("output_audio_buffer.stopped")


async def test_an_offer_at_the_wrong_address_is_told_the_right_one(serve):  # noqa: F811
    server = await serve()
    async with server.http.post(f"{server.base}/v1/realtime", data="v=0") as response:
        assert response.status == 400
        assert "/v1/realtime/calls" in (await response.json())["error"]["message"]


async def test_a_sideband_sees_and_steers_the_call_and_ends_with_it(serve):  # noqa: F811
    server = await serve()
    client = await server.client().connect()
    created = await client.wait_for("session.created")
    call_id = client.location.rsplit("/", 1)[1]
    async with AsyncOpenAI(base_url=f"{server.base}/v1", api_key="none") as openai:
        async with openai.realtime.connect(call_id=call_id) as side:
            assert (await side.recv()).session.id == created["session"]["id"]
            await side.session.update(session={"type": "realtime", "instructions": "Rhyme."})
            assert (await side.recv()).session.instructions == "Rhyme."
            assert (await client.wait_for("session.updated"))["session"]["instructions"] == "Rhyme."
            client.ask("hello")
            kinds = []
            while "response.done" not in kinds:
                kinds.append((await side.recv()).type)
            assert "response.output_audio_transcript.delta" in kinds
            await side.response.create()
            await client.wait_for("response.done", 2)
        client.tell("session.update", session={"type": "realtime", "instructions": "Sing."})
        await client.wait_for("session.updated", 2)
        async with openai.realtime.connect(call_id=call_id) as side:
            assert (await side.recv()).session.instructions == "Sing."
            await openai.realtime.calls.hangup(call_id)
            with pytest.raises(Exception, match="1000"):
                while True:
                    await side.recv()
    await server.until_empty()


async def test_no_sideband_without_a_call(serve):  # noqa: F811
    server = await serve()
    with pytest.raises(aiohttp.WSServerHandshakeError) as error:
        await server.http.ws_connect(f"{server.base}/v1/realtime?call_id=rtc_no")
    assert error.value.status == 404


async def test_servers_that_help_are_named(serve):  # noqa: F811
    server = await serve(peer=PeerSettings(ice=LOOPBACK))
    async with server.http.get(f"{server.base}/v1/realtime/ice_servers") as response:
        assert json.loads(await response.text())["ice_servers"] == []


@pytest.mark.parametrize("loss", [0.05, 0.15])
async def test_the_encoder_follows_what_the_receiver_reports(serve, loss):  # noqa: F811
    server = await serve()
    _, relay = await call_through(server, Weather(loss=loss, delay_ms=20, jitter_ms=20))
    await until(lambda: (control := peer_of(server).sender.rate).expected_loss > 5 and control.round_trip, 30)
    control = peer_of(server).sender.rate
    assert 0.03 < control.round_trip < 5, "20 ms there, 20 ms back, and more"
    relay.close()
