"""npm ``@openai/agents-realtime`` over WebRTC: its browser bundle in headless Chromium, with a fake microphone.

Looked for in $VOICECHAT_NODE, a folder with ``node_modules``.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.speech import silence, voice, write_wav
from tests.web.conftest import RATE, Visit
from tests.web.double_server import ANSWER

FOLDER = Path(os.environ.get("VOICECHAT_NODE") or Path(__file__).parent)
BUNDLE = FOLDER / "node_modules/@openai/agents-realtime/dist/bundle/openai-realtime-agents.umd.js"

pytestmark = pytest.mark.skipif(
    not BUNDLE.is_file(), reason="needs `npm install @openai/agents-realtime` in $VOICECHAT_NODE"
)

PAGE = "<!doctype html><meta charset=utf-8><title>agents</title><script src=bundle.js></script>"

CONNECT = """
async () => {
  const { OpenAIRealtimeWebRTC, RealtimeAgent, RealtimeSession } = OpenAIAgentsRealtime;
  const session = { type: "realtime", instructions: "Be brief." };
  const headers = { "Content-Type": "application/json" };
  const request = { method: "POST", headers, body: JSON.stringify({ session }) };
  const secret = await (await fetch("/v1/realtime/client_secrets", request)).json();
  const transport = new OpenAIRealtimeWebRTC({ baseUrl: `${location.origin}/v1/realtime/calls` });
  const talk = new RealtimeSession(new RealtimeAgent({ name: "Anna", instructions: "Be brief." }), { transport });
  const seen = (window.seen = { errors: [], kinds: [], truncated: [] });
  talk.on("error", (error) => seen.errors.push(JSON.stringify(error)));
  talk.on("transport_event", (event) => {
    seen.kinds.push(event.type);
    if (event.type === "conversation.item.truncated") seen.truncated.push(event.audio_end_ms);
  });
  window.talk = talk;
  await talk.connect({ apiKey: secret.value });
}
"""

HISTORY = """
() => talk.history.map((item) => [
  item.role,
  (item.content ?? []).map((part) => part.transcript ?? part.text ?? "").join(" "),
])
"""


def test_a_conversation_with_an_interruption(namespace, double_server, browse, tmp_path):
    sound = [silence(5, RATE), voice(1.2, RATE), silence(3.2, RATE), voice(1.0, RATE), silence(60, RATE)]
    microphone = write_wav(tmp_path / "microphone.wav", np.concatenate(sound), RATE)
    url = double_server()
    visit = Visit(browse(namespace, microphone), f"{url}/healthz")
    page = visit.page
    page.route("**/agents.html", lambda route: route.fulfill(body=PAGE, content_type="text/html"))
    page.route("**/bundle.js", lambda route: route.fulfill(path=BUNDLE, content_type="text/javascript"))
    page.goto(f"{url}/agents.html")
    page.evaluate(CONNECT)
    stopped = "seen.kinds.filter((kind) => kind === 'output_audio_buffer.stopped').length >= 1"
    page.wait_for_function(stopped, timeout=30_000)
    seen = page.evaluate("seen")
    assert seen["errors"] == []
    assert seen["kinds"].count("output_audio_buffer.cleared") == 1
    (truncated,) = seen["truncated"]
    assert 1000 < truncated < 3500
    said = page.evaluate(HISTORY)
    assert [role for role, _ in said] == ["user", "assistant", "user", "assistant"]
    assert said[0][1] == "What is the capital of France?"
    assert said[3][1] == ANSWER
    page.evaluate("talk.close()")
