"""npm ``@openai/agents-realtime`` over WebRTC: its browser bundle in headless Chromium, with a fake microphone."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from tests import needed
from tests.clients.speaking_cascade import ANSWERS, save
from tests.clients.talk import INSTRUCTIONS, Sound, Talk, judge
from tests.netns import Namespace
from tests.speech import silence, write_wav
from tests.web.conftest import RATE, Visit
from voicechat.cascade.api import PCM_RATE
from voicechat.media.resample import resample

BEGIN_S = 9.0
"""Quiet before the first question: Chromium's microphone runs while the page is still connecting."""

LATE = PCM_RATE * 3 // 10
"""Samples by which sound may lag behind the event that speaks of it."""

PAGE = (
    "<!doctype html><meta charset=utf-8><title>agents</title><audio id=speaker></audio><script src=bundle.js></script>"
)

CONNECT = """
async (instructions) => {
  const { OpenAIRealtimeWebRTC, RealtimeAgent, RealtimeSession } = OpenAIAgentsRealtime;
  const session = { type: "realtime", instructions };
  const headers = { "Content-Type": "application/json" };
  const request = { method: "POST", headers, body: JSON.stringify({ session }) };
  const secret = await (await fetch("/v1/realtime/client_secrets", request)).json();

  const seen = (window.seen = { errors: [], events: [], blocks: [], samples: 0 });
  const speaker = document.getElementById("speaker");
  const worklet = `registerProcessor("tap", class extends AudioWorkletProcessor {
    process([[channel]]) { if (channel) this.port.postMessage(channel.slice()); return true; }
  })`;
  const context = new AudioContext({ sampleRate: 24000 });
  await context.audioWorklet.addModule(URL.createObjectURL(new Blob([worklet], { type: "text/javascript" })));

  const baseUrl = `${location.origin}/v1/realtime/calls`;
  const transport = new OpenAIRealtimeWebRTC({ baseUrl, audioElement: speaker });
  const talk = new RealtimeSession(new RealtimeAgent({ name: "Anna", instructions }), { transport });
  talk.on("error", (error) => seen.errors.push(JSON.stringify(error)));
  talk.on("transport_event", (event) => seen.events.push({ event, at: seen.samples }));
  window.talk = talk;
  await talk.connect({ apiKey: secret.value });

  const tap = new AudioWorkletNode(context, "tap", { numberOfOutputs: 0 });
  tap.port.onmessage = ({ data }) => { seen.blocks.push(data); seen.samples += data.length; };
  context.createMediaStreamSource(speaker.srcObject).connect(tap);
}
"""

HEARD = """
() => {
  const sound = new Int16Array(seen.samples);
  let place = 0;
  for (const block of seen.blocks) {
    for (const x of block) sound[place++] = Math.round(32767 * Math.max(-1, Math.min(1, x)));
  }
  const bytes = new Uint8Array(sound.buffer);
  let text = "";
  for (let i = 0; i < bytes.length; i += 32768) text += String.fromCharCode(...bytes.subarray(i, i + 32768));
  return btoa(text);
}
"""

HISTORY = """
() => talk.history.map((item) => [
  item.role,
  (item.content ?? []).map((part) => part.transcript ?? part.text ?? "").join(" "),
])
"""

ANSWERED = "seen.events.filter(({ event }) => event.type === 'output_audio_buffer.stopped').length >= 2"


def microphone(path: Path, questions: Sequence[Sound], gaps: Sequence[float]) -> Path:
    """A WAV with quiet of so many seconds before each question; Chromium plays it from its own start on."""
    parts: list[Any] = []
    for gap, question in zip(gaps, questions, strict=True):
        parts += [silence(gap, RATE), resample(question, PCM_RATE, RATE)]
    return write_wav(path, np.concatenate([*parts, silence(120, RATE)]), RATE)


def converse(browser: Browser, url: str) -> Talk:
    """Connect, listen until the third answer has been played, and hang up."""
    bundle = needed.node_module("@openai/agents-realtime") / "dist/bundle/openai-realtime-agents.umd.js"
    page = Visit(browser, f"{url}/healthz").page
    page.route("**/agents.html", lambda route: route.fulfill(body=PAGE, content_type="text/html"))
    page.route("**/bundle.js", lambda route: route.fulfill(path=bundle, content_type="text/javascript"))
    page.goto(f"{url}/agents.html")
    page.evaluate(CONNECT, INSTRUCTIONS)
    try:
        page.wait_for_function(ANSWERED, timeout=120_000)
    except PlaywrightTimeout:
        raise AssertionError(f"this is as far as the conversation came: {read(page)}") from None
    page.wait_for_timeout(1000 * LATE / PCM_RATE)
    talk = read(page)
    page.evaluate("talk.close()")
    return talk


def read(page: Page) -> Talk:
    """What the page has seen and heard."""
    talk = Talk(errors=page.evaluate("seen.errors"), history=[tuple(turn) for turn in page.evaluate(HISTORY)])
    heard = base64.b64decode(page.evaluate(HEARD))
    start = 0
    for noted in page.evaluate("seen.events"):
        event, at = noted["event"], noted["at"]
        talk.on_server_event(event)
        match event["type"]:
            case "response.created":
                talk.answer()
            case "response.output_audio_transcript.delta":
                talk.text(event["delta"])
            case "output_audio_buffer.started":
                start = at
            case "output_audio_buffer.stopped" | "output_audio_buffer.cleared":
                talk.sound(heard[2 * start : 2 * (at + LATE)])
                talk.done()
            case "conversation.item.input_audio_transcription.completed":
                talk.asked.append(event["transcript"])
    return talk


def test_with_written_answers(namespace, double_server, browse, questions, spoken_answers, models, listen, tmp_path):
    wav = microphone(tmp_path / "microphone.wav", questions, (BEGIN_S, 7.0, 4.0))
    url = double_server("--speaking", save(tmp_path / "double.npz", models.ears, spoken_answers))
    judge(converse(browse(namespace, wav), url), listen, 0.15, ANSWERS)


def converse_with_model(
    browse: Callable[..., Browser], url: str, questions: Sequence[Sound], folder: Path, last_gap: float
) -> Talk:
    wav = microphone(folder / "microphone.wav", questions, (BEGIN_S, 26.0, last_gap))
    return converse(browse(Namespace(None), wav), url)


def test_with_the_tiny_model(real_server, browse, questions, listen, tmp_path):
    judge(converse_with_model(browse, real_server, questions, tmp_path, 6.0), listen, 0.5)


@pytest.mark.slow
def test_with_the_default_model(embedded_server, browse, questions, listen, tmp_path):
    """Its stories may be as short as 3.5 s."""
    judge(converse_with_model(browse, embedded_server, questions, tmp_path, 3.0), listen, 0.4)
