"""Events that come at the wrong time or name what is not there: one clear error each, and the session goes on."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.cascade_double import DoubleCascade
from tests.rtc_client import Client
from tests.ws_server import Raw, Server
from voicechat.faces import webrtc
from voicechat.faces.app import FaceSettings
from voicechat.media.ice import IceSettings
from voicechat.media.rtc import PeerSettings

NOWHERE = {"item_id": "item_nowhere"}
MESSAGE = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}

WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("input_audio_buffer.commit", {}, "input_audio_buffer_commit_empty"),
    ("input_audio_buffer.append", {"audio": "no base64"}, "invalid_audio"),
    ("input_audio_buffer.append", {"audio": 5}, "invalid_type"),
    ("input_audio_buffer.append", {}, "missing_required_parameter"),
    ("response.cancel", {}, "response_cancel_not_active"),
    ("response.create", {}, "conversation_empty"),
    ("conversation.item.retrieve", NOWHERE, "item_retrieve_invalid_item_id"),
    ("conversation.item.delete", NOWHERE, "item_delete_invalid_item_id"),
    ("conversation.item.truncate", {**NOWHERE, "content_index": 0, "audio_end_ms": 9}, "item_truncate_invalid_item_id"),
    (
        "conversation.item.create",
        {"previous_item_id": "item_nowhere", "item": MESSAGE},
        "item_create_invalid_previous_item_id",
    ),
    ("session.update", {"session": {"type": "transcription"}}, "invalid_value"),
    ("transcription_session.update", {"session": {}}, "unknown_event"),
]
"""Events before anything was said, and the codes of the errors that answer them."""


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """Both transports on one port."""
    peer = PeerSettings(ice=IceSettings(interfaces=("none",), loopback=True))
    calls = functools.partial(webrtc.setup, settings=webrtc.RtcSettings(peer=peer))
    server = Server(DoubleCascade(answer="word " * 30), FaceSettings(), [calls])
    await server.start()
    yield server
    await server.stop()


def check(errors: list[dict[str, Any]]) -> None:
    assert [event["error"]["code"] for event in errors] == [code for _, _, code in WRONG]
    assert [event["error"]["event_id"] for event in errors] == [f"mine-{index}" for index in range(len(WRONG))]
    assert all(len(event["error"]["message"]) > 10 for event in errors)
    assert {event["error"]["type"] for event in errors} == {"invalid_request_error"}


async def test_over_websocket(server: Server) -> None:
    async with server.raw() as raw:
        for index, (kind, fields, _) in enumerate(WRONG):
            await raw.tell(kind, event_id=f"mine-{index}", **fields)
        await raw.until("error", len(WRONG))
        check(raw.all("error"))
        await raw.tell("output_audio_buffer.clear")
        assert (await raw.until("error", len(WRONG) + 1))["error"]["code"] == "unsupported_event"
        await two_at_once(raw)


async def two_at_once(raw: Raw) -> None:
    """A second response during the first is refused, and so is an end of a sound that it does not have."""
    before = len(raw.all("error"))
    await raw.ask()
    item_id = (await raw.until("response.output_audio.delta"))["item_id"]
    await raw.tell("response.create")
    refused = await raw.until("error", before + 1)
    assert refused["error"]["code"] == "conversation_already_has_active_response"
    await raw.tell("conversation.item.truncate", item_id=item_id, content_index=7, audio_end_ms=5)
    assert (await raw.until("error", before + 2))["error"]["param"] == "content_index"
    assert (await raw.until("response.done"))["response"]["status"] == "completed"


async def test_over_webrtc(server: Server) -> None:
    client = await Client(server.http, server.base).connect()
    for index, (kind, fields, _) in enumerate(WRONG):
        client.tell(kind, event_id=f"mine-{index}", **fields)
    await client.wait_for("error", len(WRONG))
    check(client.all("error"))
    client.tell("input_audio_buffer.append", audio="AAAA")
    assert (await client.wait_for("error", len(WRONG) + 1))["error"]["code"] == "unsupported_event"
    client.connection.sctp._remote_max_message_size = 0  # it would not send what the server says is too long
    client.channel.send("x" * (257 << 10))
    assert (await client.wait_for("error", len(WRONG) + 2))["error"]["code"] == "message_too_long"
    client.ask("hello")
    await client.wait_for("output_audio_buffer.started")
    client.tell("response.create")
    refused = await client.wait_for("error", len(WRONG) + 3)
    assert refused["error"]["code"] == "conversation_already_has_active_response"
    assert (await client.wait_for("response.done"))["response"]["status"] == "completed"
    await client.close()
