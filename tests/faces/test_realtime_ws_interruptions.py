"""Speech into a reply over WebSocket, where the client plays: it goes on after a listener's word, else it ends."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cascade_double import DoubleCascade, tone
from tests.speech import silence, voice
from tests.ws_server import Raw, spoken
from voicechat.media.wav import encode_wav
from voicechat.provenance import detect_file
from voicechat.watermark.embed import Embedder
from voicechat.watermark.keys import Key


def sound_of(raw: Raw, item_id: str) -> np.ndarray:
    """All sound of an item that came."""
    deltas = [event["delta"] for event in raw.all("response.output_audio.delta") if event["item_id"] == item_id]
    return np.frombuffer(b"".join(map(base64.b64decode, deltas)), "<i2")


async def murmured(raw: Raw) -> dict[str, Any]:
    """Ask, listen to the reply for a second, and say something short in it, at which the client stops; the item that
    was stopped."""
    detection = {"type": "server_vad", "silence_duration_ms": 1500}
    await raw.tell("session.update", session={"type": "realtime", "audio": {"input": {"turn_detection": detection}}})
    await raw.say(spoken())
    added = await raw.until("response.output_item.added")
    while len(sound_of(raw, added["item"]["id"])) < 24_000 * 1.5:
        await raw.until("response.output_audio.delta", len(raw.all("response.output_audio.delta")) + 1)
    await raw.say(voice(0.4, 24_000))
    await raw.until("input_audio_buffer.speech_started", 2)
    await raw.tell("conversation.item.truncate", item_id=added["item"]["id"], content_index=0, audio_end_ms=1000)
    await raw.until("conversation.item.truncated")
    return dict(added["item"])


async def be_quiet(raw: Raw) -> None:
    """As a live microphone is, so that the ears have time."""
    for _ in range(80):
        await raw.say(silence(0.02, 24_000))
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("word_delay", [0.03, 0.15], ids=["ahead", "slow"])
async def test_a_listeners_word_does_not_end_the_reply(serve_ws, word_delay):
    words = [f"w{number}" for number in range(16)]
    cascade = DoubleCascade(transcripts=["tell me", "Mm-hm."], answer=" ".join(words), word_delay=word_delay)
    server = await serve_ws(cascade)
    async with server.raw() as raw:
        stopped = await murmured(raw)
        await be_quiet(raw)
        rest = (await raw.until("response.output_item.added", 2))["item"]
        first, second = (await raw.until("response.done"), await raw.until("response.done", 2))
        assert first["response"]["status"] in ("cancelled", "completed")
        assert second["response"]["status"] == "completed" and second["response"]["id"] != first["response"]["id"]
        heard = np.concatenate([sound_of(raw, stopped["id"])[:24_000], sound_of(raw, rest["id"])])
        assert np.array_equal(heard, tone(16 * 0.3)), "on from the very sample, to the end"
        used = [event["response"]["usage"] or {} for event in (first, second)]
        assert sum(usage.get("output_tokens", 0) for usage in used) == 16 + 16 * 0.3 * 25, "counted once"
        assert len(raw.all("input_audio_buffer.committed")) == 1 and len(cascade.requests) == 1
        await raw.ask("And?")
        await raw.until("response.created", 3)
        told = [message for message in cascade.requests[-1].messages if message.role == "assistant"]
        assert [part.text for message in told for part in message.parts] == [" ".join(words)], "one turn"


async def test_the_rest_of_a_reply_is_marked_like_its_beginning(
    serve_ws, spoken_answers: list[np.ndarray], tmp_path: Path
) -> None:
    """The server puts the rest together from what it kept; that came through the VoiceBox's door like all of it."""
    key = Key(bytes(range(32)))
    embedder = Embedder(key, 4711)
    sound = np.concatenate([embedder.push(spoken_answers[1]), embedder.finish()])
    words = len(sound) // int(0.3 * 24_000)
    answer = " ".join(f"w{number}" for number in range(words))
    cascade = DoubleCascade(transcripts=["tell me", "Mm-hm."], answer=answer, word_delay=0.03, sound=sound)
    server = await serve_ws(cascade)
    async with server.raw() as raw:
        await murmured(raw)
        await be_quiet(raw)
        rest = (await raw.until("response.output_item.added", 2))["item"]
        await raw.until("response.done", 2)
        resumed = sound_of(raw, rest["id"])
        assert np.array_equal(resumed, sound[24_000 : words * 7_200])
        path = tmp_path / "rest.wav"
        path.write_bytes(encode_wav(resumed.astype(np.int16), 24_000))
        found = await asyncio.to_thread(detect_file, path, [key])
        assert found.detected and {span.payload for span in found.spans} == {4711}


async def test_an_interruption_ends_the_reply(serve_ws):
    cascade = DoubleCascade(transcripts=["tell me", "Stop it."], answer="word " * 100, word_delay=0.1)
    server = await serve_ws(cascade)
    async with server.raw() as raw:
        await murmured(raw)
        assert not cascade.responses[0].cancelled.is_set(), "it may be nothing"
        await be_quiet(raw)
        await raw.until("response.created", 2)
        assert cascade.responses[0].cancelled.is_set()
        (part,) = cascade.requests[1].messages[-1].parts
        assert part.text == "Stop it."


async def test_a_client_that_goes_away_while_it_is_not_decided(serve_ws):
    server = await serve_ws(DoubleCascade(transcripts=["tell me", "Mm-hm."], answer="word " * 500, word_delay=0.05))
    async with server.raw() as raw:
        await murmured(raw)
    await server.until_empty()
    assert server.cascade.responses[0].cancelled.is_set()
