"""``/metrics``: read by Prometheus's own parser; what was counted is what happened."""

from __future__ import annotations

import asyncio
import base64
import gc
import time
from pathlib import Path

import numpy as np
import pytest
from aiohttp import ClientSession
from prometheus_client.parser import text_string_to_metric_families

from tests.cascade_double import DoubleCascade
from voicechat.contract.errors import Overloaded
from voicechat.contract.events import AudioDelta, Finished, FinishReason, StageTimes, Usage
from voicechat.contract.requests import SpeechRequest
from voicechat.faces.app import METERED, FaceSettings
from voicechat.faces.keys import Key, KeyLimits, add_key, digest_of
from voicechat.faces.limits import Account
from voicechat.faces.metered import Metered, calling
from voicechat.faces.metrics import METRICS, Metrics, Status

CHAT = {"model": "fake-voice", "messages": [{"role": "user", "content": "Hello"}]}
SPOKEN = {**CHAT, "modalities": ["text", "audio"], "audio": {"voice": "ann", "format": "wav"}}


async def _scrape(url: object, **headers: str) -> dict[tuple[str, tuple[str, ...]], float]:
    async with ClientSession() as http, http.get(f"{url}/metrics", headers=headers) as reply:
        assert reply.status == 200
        text = await reply.text()
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_a_spoken_reply_is_counted(serve, cascade) -> None:
    url = await serve()
    async with ClientSession() as http:
        await http.post(f"{url}/v1/chat/completions", json=SPOKEN)
        cascade.error = Overloaded("full")
        assert (await http.post(f"{url}/v1/chat/completions", json=CHAT)).status == 429
    found = await _scrape(url)
    assert found["voicechat_responses_total", ("chat", "stop")] == 1
    assert found["voicechat_responses_total", ("chat", "overloaded")] == 1
    assert found["voicechat_rejections_total", ("overloaded",)] == 1
    assert found["voicechat_time_to_first_audio_seconds_count", ("chat",)] == 1
    assert found["voicechat_http_requests_total", ("chat", "200")] == 1
    assert found["voicechat_http_requests_total", ("chat", "429")] == 1
    assert found["voicechat_audio_seconds_total", ("out",)] > 0
    assert found["voicechat_tokens_total", ("completion",)] > 0


async def test_the_servers_status_is_looked_up_at_each_scrape(serve, served_app) -> None:
    url = await serve()
    restarts = {"talker": 0}
    served_app()[METRICS].watch(
        lambda: Status(True, {"talker": "up", "thinker": "down"}, restarts, {"free": 3}, 2, 1 << 20, 1, {"0.99": 0.004})
    )
    restarts["talker"] = 5
    found = await _scrape(url)
    assert found["voicechat_stage_up", ("talker",)] == 1
    assert found["voicechat_stage_up", ("thinker",)] == 0
    assert found["voicechat_stage_restarts_total", ("talker",)] == 5
    assert found["voicechat_slots", ("free",)] == 3
    assert found["voicechat_sessions", ()] == 2
    assert found["voicechat_loop_lag_seconds", ("0.99",)] == 0.004


async def test_metrics_need_a_key_where_the_api_does(serve, tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    add_key(file, Key("prometheus", digest_of("p"), ("stats",)))
    add_key(file, Key("ann", digest_of("a"), ("chat",)))
    url = await serve(FaceSettings(keys_file=file))
    assert await _scrape(url, Authorization="Bearer p")
    async with ClientSession() as http:
        assert (await http.get(f"{url}/metrics")).status == 401
        assert (await http.get(f"{url}/metrics", headers={"Authorization": "Bearer a"})).status == 403


async def test_nothing_stays_live(serve, served_app, cascade) -> None:
    """Whole, failed and abandoned responses leave no trace in the counts that limits and draining go by."""
    cascade.reply = "one two three four five six"
    url = await serve()
    async with ClientSession() as http:
        await http.post(f"{url}/v1/chat/completions", json=SPOKEN)
        cascade.error = Overloaded("full")
        await http.post(f"{url}/v1/chat/completions", json=CHAT)
        cascade.error = None
        stream = await http.post(f"{url}/v1/chat/completions", json={**CHAT, "stream": True})
        await stream.content.readline()
        stream.close()
    metered = served_app()[METERED]
    gc.collect()
    async with asyncio.timeout(20):
        await metered.idle.wait()
    assert metered.live == 0


def test_gaps_between_pieces_of_sound_are_underruns() -> None:
    """A reply whose second piece comes 0.5 s late counts 0.5 s, by the clock that it is told."""
    now = [0.0]

    class Scripted(DoubleCascade):
        def speak(self, request: SpeechRequest):  # type: ignore[override]
            class Response:
                id = "x"

                def cancel(self) -> None: ...

                async def __aiter__(self):
                    now[0] = 1.0
                    yield AudioDelta(np.zeros(24_000, np.int16))
                    now[0] = 2.5
                    yield AudioDelta(np.zeros(24_000, np.int16))
                    yield Finished(FinishReason.STOP, Usage(), StageTimes())

            return Response()

    metrics = Metrics()

    async def run() -> None:
        async for _ in Metered(Scripted(), metrics, clock=lambda: now[0]).speak(SpeechRequest("Hi.")):
            pass

    asyncio.run(run())
    value = metrics.registry.get_sample_value
    assert value("voicechat_underrun_seconds_sum", {"face": "other"}) == 0.5
    assert value("voicechat_time_to_first_audio_seconds_sum", {"face": "other"}) == 1.0
    assert value("voicechat_response_rtf_sum", {"face": "other"}) == 1.25


async def test_turns_of_a_session_are_counted(serve_ws) -> None:
    """One that the client commits, and sound that it throws away."""
    server = await serve_ws()
    metrics = server.app[METRICS]
    before = metrics.registry.get_sample_value
    async with server.raw() as raw:
        await raw.until("session.created")
        manual = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
        await raw.tell("session.update", session=manual)
        await raw.until("session.updated")
        silence = base64.b64encode(bytes(24_000)).decode()
        await raw.tell("input_audio_buffer.append", audio=silence)
        await raw.tell("input_audio_buffer.commit")
        await raw.until("input_audio_buffer.committed")
        await raw.tell("input_audio_buffer.clear")
        await raw.until("input_audio_buffer.cleared")
    assert before("voicechat_turns_total", {"end": "committed"}) == 1
    assert before("voicechat_turns_total", {"end": "discarded"}) == 1


def test_what_a_response_says_of_its_times() -> None:
    metrics = Metrics()
    metered = Metered(DoubleCascade(), metrics)
    times = {"endpointing_ms": "500", "first_audio_ms": "10", "first_sound_ms": "150"}
    done = {"type": "response.done", "response": {"status_details": {"reason": "turn_detected"}, "metadata": times}}
    metered.on_server_event(done)
    metered.on_server_event({"type": "response.done", "response": {"status_details": None, "metadata": None}})
    value = metrics.registry.get_sample_value
    assert value("voicechat_barge_ins_total") == 1
    assert value("voicechat_voice_to_voice_seconds_sum") == 0.65


@pytest.mark.parametrize("noted", ["x", "nan", "-5", "1e300", "99999999", ""])
def test_what_a_client_notes_in_metadata_is_no_measured_time(noted: str) -> None:
    metrics = Metrics()
    metadata = {"first_sound_ms": noted, "endpointing_ms": "1"}
    Metered(DoubleCascade(), metrics).on_server_event({"type": "response.done", "response": {"metadata": metadata}})
    assert metrics.registry.get_sample_value("voicechat_voice_to_voice_seconds_count") == 0


async def test_sound_counts_also_if_its_reader_leaves() -> None:
    account = Account("a", KeyLimits(audio_seconds_per_minute=1))
    calling("speech", (account,))
    events = aiter(Metered(DoubleCascade(answer="five words are in it"), Metrics()).speak(SpeechRequest("Hi.")))
    while not isinstance(await anext(events), AudioDelta):
        pass
    await events.aclose()  # type: ignore[attr-defined]
    assert account.headers(time.monotonic())["x-ratelimit-remaining-audio-seconds"] == "0"
