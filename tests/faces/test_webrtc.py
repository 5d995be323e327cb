"""Calls over a real connection: aiortc as the client, loopback only, a cascade without models."""

import asyncio
import contextlib
import gc
import json
import re

import aiohttp
import numpy as np
import pytest
from aiohttp import web
from aiortc import RTCSessionDescription
from openai import AsyncOpenAI
from prometheus_client.parser import text_string_to_metric_families

from tests.cascade_double import TONE_HZ, TONE_LEVEL, DoubleCascade
from tests.protocol import check_server_event
from tests.rtc_client import Client
from tests.speech import rms, silence, voice
from voicechat.faces import client_secrets, metrics, realtime_ws, webrtc
from voicechat.faces.errors import error_middleware
from voicechat.media.ice import IceSettings
from voicechat.media.rtc import PeerSettings

LOOPBACK = IceSettings(interfaces=("none",), loopback=True)


class Server:
    """The face alone, on a free port."""

    def __init__(self, cascade: DoubleCascade, **settings) -> None:
        self.cascade = cascade
        self.settings = webrtc.RtcSettings(**{"peer": PeerSettings(ice=LOOPBACK), **settings})
        self.clients: list[Client] = []

    async def __aenter__(self) -> "Server":
        app = web.Application(middlewares=[error_middleware])
        metrics.setup(app)
        client_secrets.setup(app, self.cascade)
        realtime_ws.setup(app, self.cascade)
        self.table = webrtc.setup(app, self.cascade, self.settings)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.base = f"http://127.0.0.1:{self.runner.addresses[0][1]}"
        self.http = aiohttp.ClientSession()
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self.clients:
            await client.close()
            for event in client.events:
                check_server_event(event)
        await self.runner.cleanup()
        await self.http.close()
        assert len(self.table) == 0
        assert all(response.cancelled.is_set() or response.ended for response in self.cascade.responses)

    def client(self) -> Client:
        self.clients.append(Client(self.http, self.base))
        return self.clients[-1]

    async def post(self, data: object, content_type: str = "application/sdp") -> tuple[int, dict, dict]:
        async with self.http.post(
            f"{self.base}/v1/realtime/calls", data=data, headers={"Content-Type": content_type}
        ) as response:
            return response.status, (await response.json())["error"], dict(response.headers)

    async def until_empty(self) -> None:
        """Until the last call has been forgotten; 10 s at most."""
        for _ in range(500):
            if not len(self.table):
                return
            await asyncio.sleep(0.02)
        raise AssertionError("a call is still there")


@pytest.fixture
async def serve():
    async with contextlib.AsyncExitStack() as stack:

        async def start(cascade: DoubleCascade | None = None, **settings) -> Server:
            return await stack.enter_async_context(Server(cascade or DoubleCascade(), **settings))

        yield start


def say(seconds: float = 0.8) -> np.ndarray:
    return np.concatenate([silence(0.4, 48_000), voice(seconds, 48_000)])


async def test_a_spoken_question_is_answered_aloud(serve):
    server = await serve()
    client = await server.client().connect()
    created = await client.wait_for("session.created")
    assert created["session"]["model"] == "double"
    client.microphone.say(say())
    await client.wait_for("output_audio_buffer.stopped")
    await asyncio.sleep(0.4)
    texts = [event["delta"] for event in client.all("response.output_audio_transcript.delta")]
    assert "".join(texts) == "You said: hello there."
    (question,) = server.cascade.heard
    sent = 0.12 / 2**0.5  # aiortc, sending, makes two channels of one at 3 dB less
    assert rms(question) == pytest.approx(sent * (0.8 / (len(question) / 16_000)) ** 0.5, rel=0.1)
    assert 0.8 + 0.3 < len(question) / 16_000 < 0.8 + 0.3 + 0.35

    heard = np.concatenate([samples for _, samples in client.heard])
    loud = np.flatnonzero(np.abs(heard) > 0.05)
    answer = heard[loud[0] : loud[-1] + 1]
    assert len(answer) / 48_000 == pytest.approx(4 * 0.3, abs=0.1), "no half speed, nothing lost"
    assert rms(answer) == pytest.approx(TONE_LEVEL / 32768 / 2**0.5, rel=0.1)
    middle = answer[4800 : 4800 + 24_000]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    assert np.argmax(spectrum) * 48_000 / len(middle) == pytest.approx(TONE_HZ, abs=4)
    quiet = np.concatenate([heard[: loud[0] - 2400], heard[loud[-1] + 2400 :]])
    assert rms(quiet) < 0.001


async def test_how_calls_go_is_told_while_they_last_and_counted_after(serve):
    async def scraped() -> dict[str, float]:
        async with server.http.get(f"{server.base}/metrics") as reply:
            families = text_string_to_metric_families(await reply.text())
        samples = [sample for family in families for sample in family.samples]
        return {f"{sample.name} {' '.join(sample.labels.values())}".strip(): sample.value for sample in samples}

    server = await serve()
    assert (await scraped())["voicechat_rtp_packets_total came"] == 0
    client = await server.client().connect()
    client.microphone.say(say())
    await client.wait_for("output_audio_buffer.stopped")
    live = await scraped()
    assert live["voicechat_rtp_packets_total came"] > 50
    assert 0 <= live["voicechat_rtp_jitter_seconds 0.5"] <= live["voicechat_rtp_jitter_seconds 1"] < 1
    assert "voicechat_playout_slips_total" in live
    await client.close()
    await server.until_empty()
    after = await scraped()
    assert after["voicechat_rtp_packets_total came"] >= live["voicechat_rtp_packets_total came"]
    assert "voicechat_rtp_jitter_seconds 0.5" not in after


async def test_answer_sdp(serve):
    server = await serve()
    client = await server.client().connect()
    assert "useinbandfec=1" in client.answer
    assert "PCMU" not in client.answer
    assert "127.0.0.1" in client.answer


async def test_offer_without_candidates_connects(serve):
    server = await serve()
    client = await server.client().connect(keep_candidates=False)
    await client.wait_for("session.created")


async def test_multipart_with_session(serve):
    server = await serve()
    session = {
        "type": "realtime",
        "model": "gpt-realtime",
        "instructions": "Rhyme.",
        "latency_first": False,
        "audio": {"output": {"voice": "ben"}},
    }
    client = await server.client().connect(session)
    created = await client.wait_for("session.created")
    assert created["session"]["instructions"] == "Rhyme."
    assert created["session"]["audio"]["output"]["voice"] == "ben"
    client.ask("hello")
    await client.wait_for("response.done")
    (request,) = server.cascade.requests
    assert (request.voice, request.latency_first) == ("ben", False)


async def test_a_call_by_the_openai_client_with_a_client_secret(serve):
    server = await serve()
    async with AsyncOpenAI(base_url=f"{server.base}/v1", api_key="none") as openai:
        session = {"type": "realtime", "instructions": "Rhyme."}
        secret = await openai.realtime.client_secrets.create(session=session)
    client = server.client()
    await client.connection.setLocalDescription(await client.connection.createOffer())
    async with AsyncOpenAI(base_url=f"{server.base}/v1", api_key=secret.value) as openai:
        more = {"type": "realtime", "audio": {"output": {"voice": "ben"}}}
        call = await openai.realtime.calls.create(sdp=client.connection.localDescription.sdp, session=more)
        await client.connection.setRemoteDescription(RTCSessionDescription(sdp=call.text, type="answer"))
        created = (await client.wait_for("session.created"))["session"]
        assert (created["instructions"], created["audio"]["output"]["voice"]) == ("Rhyme.", "ben")
        await openai.realtime.calls.hangup(call.response.headers["Location"].rsplit("/", 1)[1])
    await asyncio.wait_for(client.closed.wait(), 10)
    await server.until_empty()


async def test_manual_mode_and_server_side_truncation(serve):
    server = await serve(DoubleCascade(transcripts=["tell me"], answer="word " * 40))
    client = await server.client().connect()
    client.tell("session.update", session={"type": "realtime", "audio": {"input": {"turn_detection": None}}})
    await client.wait_for("session.updated")
    client.microphone.say(say())
    await asyncio.sleep(1.5)
    assert not client.all("input_audio_buffer.speech_started")
    client.tell("input_audio_buffer.commit")
    client.tell("response.create")
    await client.wait_for("output_audio_buffer.started")
    await asyncio.sleep(1.0)
    client.tell("output_audio_buffer.clear")
    truncated = await client.wait_for("conversation.item.truncated")
    order = [
        "input_audio_buffer.committed", "response.created", "response.output_item.added", "output_audio_buffer.started",
        "output_audio_buffer.cleared", "conversation.item.truncated",
    ]  # fmt: skip
    assert [event["type"] for event in client.events if event["type"] in order] == order
    (added,) = client.all("response.output_item.added")
    assert truncated["item_id"] == added["item"]["id"]
    assert 0 < truncated["audio_end_ms"] < 40 * 300, "what was played, which is not all that was made"
    client.tell("conversation.item.retrieve", item_id=truncated["item_id"])
    (part,) = (await client.wait_for("conversation.item.retrieved"))["item"]["content"]
    assert len(part["transcript"].split()) == pytest.approx(truncated["audio_end_ms"] / 300, abs=1.01)


async def test_client_events_and_errors(serve):
    server = await serve()
    client = await server.client().connect()
    client.channel.send(b'{"type": "response.create"}')
    assert (await client.wait_for("error"))["error"]["code"] == "conversation_empty"
    client.tell("session.update", session={"type": "realtime", "instructions": "New."})
    assert (await client.wait_for("session.updated"))["session"]["instructions"] == "New."
    client.tell("no.such.event", event_id="mine")
    assert (await client.wait_for("error", 2))["error"]["event_id"] == "mine"
    client.channel.send("no json")
    assert (await client.wait_for("error", 3))["error"]["code"] == "invalid_json"


async def test_barge_in(serve):
    server = await serve(DoubleCascade(answer="word " * 40))
    client = await server.client().connect()
    client.microphone.say(say())
    await client.wait_for("output_audio_buffer.started")
    await asyncio.sleep(0.5)
    client.microphone.say(voice(0.8, 48_000))
    await client.wait_for("output_audio_buffer.cleared")
    client.heard.clear()
    quiet: list[bool] = []
    async with asyncio.timeout(20):  # what a busy machine has not played yet comes first
        while sum(quiet[-10:]) < 10:
            await asyncio.sleep(0.05)
            quiet = [rms(samples) < 0.001 for _, samples in client.heard]
    assert server.cascade.responses[0].cancelled.is_set()


async def test_hang_up(serve):
    server = await serve()
    client = await server.client().connect()
    for status in (200, 404):
        async with server.http.post(f"{server.base}{client.location}/hangup") as response:
            assert response.status == status
    await asyncio.wait_for(client.closed.wait(), 10)
    await server.until_empty()


async def test_closed_channel_ends_the_call(serve):
    server = await serve(DoubleCascade(answer="word " * 40))
    client = await server.client().connect()
    client.ask("hello")
    await client.wait_for("output_audio_buffer.started")
    client.channel.close()
    await server.until_empty()
    assert server.cascade.responses[0].cancelled.is_set()


async def test_closed_connection_ends_the_call(serve):
    server = await serve()
    client = await server.client().connect()
    await client.connection.close()
    await server.until_empty()


async def test_a_microphone_that_stops_leaves_the_call_alive(serve):
    """``replaceTrack(null)``, mute with DTX: no sound comes, but checks are answered."""
    server = await serve(peer=PeerSettings(ice=LOOPBACK, consent=1.0))
    client = await server.client().connect()
    await client.wait_for("session.created")
    client.microphone.working.clear()
    await asyncio.sleep(2.5)
    assert len(server.table) == 1
    client.ask("hello")
    await client.wait_for("output_audio_buffer.stopped")


async def test_a_client_that_answers_no_checks_is_forgotten(serve):
    server = await serve(peer=PeerSettings(ice=LOOPBACK, consent=1.0))
    client = await server.client().connect()
    client.vanish()
    await server.until_empty()


async def test_client_that_never_comes_is_forgotten(serve):
    server = await serve(peer=PeerSettings(ice=LOOPBACK, connect=0.5), max_sessions=1)
    response = await server.client().post()
    assert response.status == 201
    await server.until_empty()


async def test_full_server_refuses_clearly_and_recovers(serve):
    server = await serve(max_sessions=1)
    first = await server.client().connect()
    refused = await server.client().post()
    assert refused.status == 429
    assert (await refused.json())["error"]["code"] == "rate_limit_exceeded"
    assert int(refused.headers["Retry-After"]) > 0
    await first.close()
    await server.until_empty()
    await server.client().connect()


async def test_not_ready(serve):
    server = await serve(DoubleCascade(ready=False))
    refused = await server.client().post()
    assert refused.status == 503
    assert (await refused.json())["error"]["code"] == "not_ready"


async def test_session_expires_with_a_warning(serve):
    server = await serve(max_seconds=1.0, warn_seconds=0.5)
    client = await server.client().connect()
    assert (await client.wait_for("error"))["error"]["code"] == "session_expired"
    await asyncio.wait_for(client.closed.wait(), 10)
    await server.until_empty()


OFFER_HEAD = "v=0\r\no=- 1 2 IN IP4 127.0.0.1\r\ns=-\r\nt=0 0\r\n"


@pytest.mark.parametrize(
    "offer",
    [
        b"",
        b"hello",
        b"\xff\xfe",
        OFFER_HEAD.encode(),
        (OFFER_HEAD + "m=audio 9 UDP/TLS/RTP/SAVPF 111\r\nc=IN IP4 0.0.0.0\r\n").encode(),
        (OFFER_HEAD + "m=audio x UDP/TLS/RTP/SAVPF 111\r\n").encode(),
    ],
)
async def test_bad_offer(serve, offer):
    server = await serve()
    status, error, _ = await server.post(offer)
    assert (status, error["code"], error["param"]) == (400, "invalid_offer", "sdp")
    assert len(server.table) == 0


async def test_offers_that_cannot_be_served(serve):
    server = await serve()
    client = server.client()
    await client.connection.setLocalDescription(await client.connection.createOffer())
    sdp = client.connection.localDescription.sdp
    for wrong in (
        re.sub("opus/48000/2|PCMU/8000|PCMA/8000", "speex/8000", sdp),
        "\r\n".join(line for line in sdp.splitlines() if "fingerprint" not in line),
        "\r\n".join(line for line in sdp.splitlines() if "ice-ufrag" not in line),
        sdp.replace("m=audio", "m=video"),
    ):
        status, error, _ = await server.post(wrong.encode())
        assert (status, error["code"]) == (400, "invalid_offer"), wrong
    assert len(server.table) == 0


async def test_bad_bodies(serve):
    server = await serve()
    assert (await server.post(b"{}", "application/json"))[0] == 415
    assert (await server.post(b"x" * 100_000))[0] == 413
    assert (await server.post(b"nonsense", "multipart/form-data"))[0] == 400
    assert (await server.post(b"nonsense", "multipart/form-data; boundary=b"))[0] == 400
    for fields, param in (
        ({"session": "{}"}, "sdp"),
        ({"sdp": "v=0", "session": "{"}, "session"),
        ({"sdp": "v=0", "session": "[]"}, "session"),
        ({"sdp": "v=0", "session": json.dumps({"voice": "nobody"})}, "session.voice"),
    ):
        form = aiohttp.FormData(fields, default_to_multipart=True)
        async with server.http.post(f"{server.base}/v1/realtime/calls", data=form) as response:
            assert response.status == 400
            assert (await response.json())["error"]["param"] == param
    assert len(server.table) == 0


async def test_shutdown_ends_calls(serve):
    server = await serve(DoubleCascade(answer="word " * 40))
    client = await server.client().connect()
    client.ask("hello")
    await client.wait_for("output_audio_buffer.started")
    await asyncio.wait_for(server.runner.cleanup(), 10)
    await asyncio.wait_for(client.closed.wait(), 10)


async def test_nothing_is_left_behind(serve):
    server = await serve(DoubleCascade(answer="word " * 40))
    before = None
    for _ in range(3):
        client = await server.client().connect()
        client.ask("hello")
        await client.wait_for("output_audio_buffer.started")
        await client.close()
        await server.until_empty()
        await asyncio.sleep(0.3)
        gc.collect()
        tasks = len(asyncio.all_tasks())
        before = before or tasks
        assert tasks <= before
