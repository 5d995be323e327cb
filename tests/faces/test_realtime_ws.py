"""Realtime over WebSocket, over a double cascade: turns by the unmodified ``openai`` client and by a raw one."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from tests.cascade_double import TONE_LEVEL, DoubleCascade, tone
from tests.protocol import check_server_event
from tests.speech import rms, silence, voice
from tests.ws_server import pcm, spoken
from voicechat.media import g711
from voicechat.media.resample import to_pcm


async def test_three_spoken_turns_with_the_openai_client(serve_ws):
    server = await serve_ws(DoubleCascade(transcripts=["one", "two", "three"], answer=None))
    async with server.client() as client, client.realtime.connect(model="gpt-realtime") as connection:
        detection = {"type": "server_vad", "silence_duration_ms": 300}
        await connection.session.update(
            session={"type": "realtime", "instructions": "Be brief.", "audio": {"input": {"turn_detection": detection}}}
        )
        answers = []
        for _ in range(3):
            await connection.input_audio_buffer.append(audio=pcm(spoken()))
            audio, transcript = b"", ""
            async for event in connection:
                check_server_event(event.to_dict())
                if event.type == "response.output_audio.delta":
                    audio += base64.b64decode(event.delta)
                elif event.type == "response.output_audio_transcript.delta":
                    transcript += event.delta
                elif event.type == "response.done":
                    assert event.response.status == "completed"
                    break
            assert np.array_equal(np.frombuffer(audio, "<i2"), tone(0.9))
            answers.append(transcript)
    assert answers == ["You said: one.", "You said: two.", "You said: three."]
    assert [len(sound) / 16_000 for sound in server.cascade.heard] == pytest.approx([1.3] * 3, abs=0.2)
    assert len(server.cascade.requests[-1].messages) == 6


async def test_barge_in_and_truncate_with_the_openai_client(serve_ws):
    server = await serve_ws(DoubleCascade(transcripts=["tell me", "stop"], answer="word " * 200, word_delay=0.05))
    async with server.client() as client, client.realtime.connect(model="gpt-realtime") as connection:
        await connection.input_audio_buffer.append(audio=pcm(spoken()))
        item_id, played, interrupted = "", 0, False
        async for event in connection:
            if event.type == "response.output_audio.delta" and not interrupted:
                played += len(base64.b64decode(event.delta)) // 48
                item_id = event.item_id
                if played > 1000:
                    interrupted = True
                    await connection.input_audio_buffer.append(audio=pcm(voice(0.6, 24_000)))
            elif event.type == "response.done":
                assert event.response.status_details.reason == "turn_detected"
                await connection.conversation.item.truncate(item_id=item_id, content_index=0, audio_end_ms=900)
            elif event.type == "conversation.item.truncated":
                assert event.audio_end_ms == 900
                break
        await connection.conversation.item.retrieve(item_id=item_id)
        async for event in connection:
            if event.type == "conversation.item.retrieved":
                break
        content = event.item.content[0]
        assert len(base64.b64decode(content.audio)) == 900 * 48
        assert content.transcript.split() == ["word"] * 3
    assert server.cascade.responses[0].cancelled.is_set()


async def test_errors_come_through_the_openai_client(serve_ws):
    server = await serve_ws()
    async with server.client() as client, client.realtime.connect(model="gpt-realtime") as connection:
        await connection.input_audio_buffer.commit()
        await connection.response.cancel()
        codes = []
        async for event in connection:
            if event.type == "error":
                codes.append(event.error.code)
                if len(codes) == 2:
                    break
    assert codes == ["input_audio_buffer_commit_empty", "response_cancel_not_active"]


async def test_manual_mode_in_pieces_and_text_out(serve_ws):
    server = await serve_ws()
    async with server.raw() as raw:
        session = {"type": "realtime", "output_modalities": ["text"], "audio": {"input": {"turn_detection": None}}}
        await raw.tell("session.update", session=session)
        updated = await raw.until("session.updated")
        assert updated["session"]["audio"]["input"]["turn_detection"] is None
        await raw.say(spoken(), chunk=1001)
        await raw.tell("input_audio_buffer.commit")
        await raw.tell("response.create")
        done = await raw.until("response.done")
    assert done["response"]["output"][0]["content"] == [{"type": "output_text", "text": "You said: hello there."}]
    assert server.cascade.requests[0].audio is False


@pytest.mark.parametrize("law", ["pcmu", "pcma"])
async def test_telephone_sound_in_and_out(serve_ws, law):
    server = await serve_ws()
    async with server.raw() as raw:
        sides = {"input": {"format": {"type": f"audio/{law}"}}, "output": {"format": {"type": f"audio/{law}"}}}
        await raw.tell("session.update", session={"type": "realtime", "audio": sides})
        sound = np.concatenate([silence(0.4, 8000), voice(0.8, 8000), silence(0.8, 8000)])
        data = g711.encode(to_pcm(sound), law)
        await raw.tell("input_audio_buffer.append", audio=base64.b64encode(data).decode())
        await raw.until("response.done")
    answer = g711.decode(raw.sound(), law)
    assert len(answer) == pytest.approx(8000 * 4 * 0.3, abs=8)
    assert rms(answer / 32768) == pytest.approx(TONE_LEVEL / 32768 / 2**0.5, rel=0.05)
    assert rms(server.cascade.heard[0]) == pytest.approx(0.12 * (0.8 / 1.3) ** 0.5, rel=0.15)


async def test_speed(serve_ws):
    server = await serve_ws()
    async with server.raw() as raw:
        await raw.tell("session.update", session={"type": "realtime", "audio": {"output": {"speed": 1.5}}})
        await raw.ask()
        await raw.until("response.done")
    assert len(raw.sound()) / 48_000 == pytest.approx(3 * 0.3 / 1.5, rel=0.1)


async def test_a_long_append_is_taken(serve_ws):
    server = await serve_ws()
    async with server.raw() as raw:
        await raw.tell("session.update", session={"type": "realtime", "audio": {"input": {"turn_detection": None}}})
        await raw.tell("input_audio_buffer.append", audio=base64.b64encode(bytes(15 * (1 << 20) * 3 // 4)).decode())
        await raw.tell("input_audio_buffer.commit")
        committed = await raw.until("input_audio_buffer.committed")
        await raw.tell("conversation.item.delete", item_id=committed["item_id"])
        await raw.until("conversation.item.deleted")
