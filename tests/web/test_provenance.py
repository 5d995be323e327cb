"""The page's checks in headless Chromium: an answer's badge, and files, recordings and the waveform in the dialog."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import expect

from tests.clients import speaking_cascade
from tests.clients.talk import QUESTIONS
from tests.human_speech import recording
from tests.speech import silence, write_wav
from tests.web.conftest import RATE, Visit
from voicechat.contract.sound import PCM_RATE, Pcm
from voicechat.media.resample import resample, to_float
from voicechat.media.wav import encode_wav
from voicechat.provenance import detect_file
from voicechat.watermark.embed import Embedder
from voicechat.watermark.keys import Key

KEY = Key(bytes(range(32)))
PAYLOAD = 0x2F3A
STORY = 1
LENGTH_S = 6
DESK = {"viewport": {"width": 1280, "height": 800}}
PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}
RECORD = """
async (stop) => {
  const parts = [];
  const recorder = new MediaRecorder(document.getElementById("speaker").srcObject, { audioBitsPerSecond: 32000 });
  recorder.addEventListener("dataavailable", ({ data }) => parts.push(data));
  recorder.start();
  while (document.body.dataset.state !== "listening") await new Promise((resolve) => setTimeout(resolve, 50));
  const stopped = new Promise((resolve) => recorder.addEventListener("stop", resolve));
  recorder.stop();
  await stopped;
  const bytes = new Uint8Array(await new Blob(parts).arrayBuffer());
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
}
"""


def marked(pcm: Pcm) -> Pcm:
    embedder = Embedder(KEY, PAYLOAD)
    return np.concatenate([embedder.push(pcm), embedder.finish()])


@pytest.fixture(scope="module")
def answers(spoken_answers: list[Pcm]) -> list[Pcm]:
    """The story's first seconds are what the tests hear."""
    return [marked(pcm[: LENGTH_S * PCM_RATE]) for pcm in spoken_answers]


@pytest.fixture
def server(double_server, answers, models, tmp_path) -> str:  # type: ignore[no-untyped-def]
    speaking = speaking_cascade.save(tmp_path / "speaking.npz", models.ears, answers)
    return double_server("--speaking", speaking, "--marked", KEY.secret.hex(), PAYLOAD)


def wav(path: Path, pcm: Pcm) -> Path:
    path.write_bytes(encode_wav(pcm, PCM_RATE))
    return path


def test_an_answer_is_checked_and_what_the_browser_records_is_marked(namespace, server, browse, shots, tmp_path):
    visit = Visit(browse(namespace), server, **DESK)
    page = visit.page
    page.get_by_label("Type a message instead").fill(QUESTIONS[STORY])
    page.keyboard.press("Enter")
    visit.state("speaking")
    recorded = tmp_path / "recorded.webm"
    recorded.write_bytes(base64.b64decode(page.evaluate(RECORD)))
    badge = page.get_by_role("button", name="Check the mark")
    badge.focus()
    page.screenshot(path=shots / "provenance-1-badge.png")
    page.keyboard.press("Enter")
    checked = page.locator('.badge[data-outcome="detected"]')
    expect(checked).to_have_text(f"Marked by this server, payload {PAYLOAD:04x}", timeout=30_000)
    page.screenshot(path=shots / "provenance-2-checked.png")
    report = detect_file(recorded, [KEY])
    assert report.detected and PAYLOAD in {span.payload for span in report.spans}
    assert not detect_file(recorded, [Key(bytes(32))]).detected, "another key finds nothing"
    assert visit.complaints == []


def test_files_on_their_waveform(namespace, server, browse, answers, shots, tmp_path):
    visit = Visit(browse(namespace), server, **DESK)
    page = visit.page
    page.get_by_role("button", name="Check a sound").focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Was this sound made here?")
    expect(dialog).to_be_visible()
    person, verdict = recording(6.0), dialog.get_by_role("status")

    page.get_by_label("Audio or video file").set_input_files(wav(tmp_path / "person.wav", person))
    expect(verdict).to_have_text("No mark found", timeout=30_000)
    expect(dialog.locator("tbody tr")).to_have_count(0)

    ours = answers[STORY]
    joined = np.concatenate([person, ours, person])
    page.get_by_label("Audio or video file").set_input_files(wav(tmp_path / "joined.wav", joined))
    expect(verdict).to_have_text(f"Marked by this server, payload {PAYLOAD:04x}", timeout=30_000)
    expect(dialog.locator("tbody tr")).to_have_count(1)
    start, end, payload, _ = dialog.locator("tbody td").all_inner_texts()
    assert payload == f"{PAYLOAD:04x}"
    assert seconds(start) == pytest.approx(6.0, abs=0.6)
    assert seconds(end) == pytest.approx(6.0 + len(ours) / PCM_RATE, abs=0.6)
    wave = dialog.get_by_role("img")
    assert wave.get_attribute("aria-label") == "Waveform of joined.wav: 1 marked part"
    middle = 6.0 + len(ours) / PCM_RATE / 2
    painted = page.evaluate(PAINTED, [3.0 / (len(joined) / PCM_RATE), middle / (len(joined) / PCM_RATE)])
    assert painted == [False, True], "the marked part is shaded, and no other"
    page.screenshot(path=shots / "provenance-3-spans.png")

    silent = wav(tmp_path / "silent.wav", np.zeros(3 * PCM_RATE, np.int16))
    page.get_by_label("Audio or video file").set_input_files(silent)
    expect(verdict).to_contain_text("silence", timeout=30_000)
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert page.evaluate("document.activeElement.id") == "check-open", "the focus goes back to where it was"
    told = [
        complaint for complaint in visit.complaints if "willReadFrequently" not in complaint
    ]  # of this test's looks
    assert all("400" in complaint for complaint in told), "nothing but the browser's note of the refusal"


PAINTED = """
(places) => {
  const canvas = document.getElementById("check-wave");
  const paint = canvas.getContext("2d");
  const opaque = (place) => paint.getImageData(Math.round(place * canvas.width), canvas.height - 2, 1, 1).data[3] > 0;
  return places.map(opaque);
}
"""


def seconds(clock: str) -> float:
    minutes, rest = clock.split(":")
    return 60 * int(minutes) + float(rest)


def test_a_loudspeaker_is_recorded(namespace, server, browse, answers, shots, tmp_path):
    """The microphone hears an answer played elsewhere."""
    heard = resample(to_float(answers[STORY]), PCM_RATE, RATE)
    microphone = write_wav(tmp_path / "heard.wav", np.concatenate([heard, heard, heard, silence(60, RATE)]), RATE)
    visit = Visit(browse(namespace, microphone), server, **PHONE)
    page = visit.page
    page.get_by_role("button", name="Check a sound").click()
    page.get_by_role("button", name="Record").click()
    expect(page.get_by_role("button", name="Stop and check")).to_have_attribute("aria-pressed", "true")
    page.wait_for_timeout(4_000)
    page.screenshot(path=shots / "provenance-4-recording.png")
    page.get_by_role("button", name="Stop and check").click()
    expect(page.locator("#check-verdict")).to_have_text(re.compile("^Marked by this server"), timeout=30_000)
    page.screenshot(path=shots / "provenance-5-recorded.png")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"
    assert visit.complaints == []
