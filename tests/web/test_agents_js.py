"""npm ``@openai/agents-realtime`` over WebRTC: its browser bundle in headless Chromium.

Where the answers are written beforehand, Chromium's fake microphone speaks, on a timetable of its own. Nobody knows
how long a model's answers are: there the questions are a stream that the page gives to the client, each said when it is
due.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from tests import needed
from tests.clients.speaking_cascade import ANSWERS, save
from tests.clients.talk import INSTRUCTIONS, INTERRUPT_AFTER, Sound, Talk, judge
from tests.netns import Namespace
from tests.speech import silence, write_wav
from tests.web.conftest import RATE, Visit
from voicechat.contract.sound import PCM_RATE
from voicechat.media.resample import resample

BEGIN_S = 9.0
"""Quiet before the first question: Chromium's microphone runs while the page is still connecting."""

LATE = PCM_RATE * 3 // 10
"""Samples by which sound may lag behind the event that speaks of it."""

PAGE = (
    "<!doctype html><meta charset=utf-8><title>agents</title><audio id=speaker></audio><script src=bundle.js></script>"
)

CONNECT = """
async ({ instructions, questions }) => {
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
  const options = { baseUrl, audioElement: speaker };
  if (questions.length > 0) {
    const microphone = context.createMediaStreamDestination();
    const signal = AbortSignal.timeout(30000);
    const sound = async (name) => context.decodeAudioData(await (await fetch(name, { signal })).arrayBuffer());
    const play = (buffer, loop) => {
      const source = new AudioBufferSourceNode(context, { buffer, loop });
      source.connect(microphone);
      source.start();
    };
    play(await sound("room.wav"), true);
    const sounds = await Promise.all(questions.map(sound));
    window.say = (number) => play(sounds[number], false);
    options.mediaStream = microphone.stream;
  }
  const transport = new OpenAIRealtimeWebRTC(options);
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

WAV = "audio/wav"
COUNT = "({ type, least }) => seen.events.filter(({ event }) => event.type === type).length >= least"


def microphone(path: Path, questions: Sequence[Sound], gaps: Sequence[float]) -> Path:
    """A WAV with quiet of so many seconds before each question; Chromium plays it from its own start on."""
    parts: list[Any] = []
    for gap, question in zip(gaps, questions, strict=True):
        parts += [silence(gap, RATE), resample(question, PCM_RATE, RATE)]
    return write_wav(path, np.concatenate([*parts, silence(120, RATE)]), RATE)


def connect(browser: Browser, url: str, folder: Path, questions: Sequence[str] = ()) -> Page:
    """Connect. ``questions`` name WAV files in ``folder`` that the page can say; without them the microphone does."""
    bundle = needed.node_module("@openai/agents-realtime") / "dist/bundle/openai-realtime-agents.umd.js"
    page = Visit(browser, f"{url}/healthz").page
    page.route("**/agents.html", lambda route: route.fulfill(body=PAGE, content_type="text/html"))
    page.route("**/bundle.js", lambda route: route.fulfill(path=bundle, content_type="text/javascript"))
    page.route("**/*.wav", lambda route: route.fulfill(path=folder / Path(route.request.url).name, content_type=WAV))
    page.goto(f"{url}/agents.html")
    page.evaluate(CONNECT, {"instructions": INSTRUCTIONS, "questions": list(questions)})
    return page


def wait(page: Page, kind: str, least: int) -> None:
    """Until the client was told so many events of a kind."""
    try:
        page.wait_for_function(COUNT, arg={"type": kind, "least": least}, timeout=120_000)
    except PlaywrightTimeout:
        raise AssertionError(f"no {kind} number {least}; the conversation came as far as {read(page)}") from None


def leave(page: Page) -> Talk:
    """Hang up; what came of it."""
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
    page = connect(browse(namespace, wav), url, tmp_path)
    wait(page, "output_audio_buffer.stopped", 2)
    judge(leave(page), listen, 0.15, ANSWERS)


def converse_with_model(browser: Browser, url: str, questions: Sequence[Sound], folder: Path) -> Talk:
    """Three questions, the third into the second answer."""
    names = [f"question{number}.wav" for number in range(len(questions))]
    for name, sound in zip(("room.wav", *names), (silence(10, PCM_RATE), *questions), strict=True):
        write_wav(folder / name, sound, PCM_RATE)
    page = connect(browser, url, folder, names)
    page.evaluate("say(0)")
    wait(page, "output_audio_buffer.stopped", 1)
    page.evaluate("say(1)")
    wait(page, "output_audio_buffer.started", 2)
    page.wait_for_timeout(1000 * INTERRUPT_AFTER)
    page.evaluate("say(2)")
    wait(page, "output_audio_buffer.stopped", 2)
    return leave(page)


def test_with_the_tiny_model(real_server, browse, questions, listen, tmp_path):
    judge(converse_with_model(browse(Namespace(None)), real_server, questions, tmp_path), listen, 0.5)


@pytest.mark.slow
def test_with_the_default_model(embedded_server, browse, questions, listen, tmp_path):
    judge(converse_with_model(browse(Namespace(None)), embedded_server, questions, tmp_path), listen, 0.4)
