"""The page in headless Chromium with a fake microphone: against a cascade without models, and the real server."""

import re

import numpy as np
import pytest

from tests.cascade_double import TONE_LEVEL
from tests.netns import Namespace
from tests.speech import silence, write_wav
from tests.web.conftest import Visit
from tests.web.double_server import ANSWER

PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}
DESK = {"viewport": {"width": 1280, "height": 800}}


LEVEL = """
async (milliseconds) => {
  const context = new AudioContext();
  const analyser = new AnalyserNode(context, { fftSize: 2048 });
  context.createMediaStreamSource(document.getElementById("speaker").srcObject).connect(analyser);
  const samples = new Float32Array(analyser.fftSize);
  const powers = [];
  const end = performance.now() + milliseconds;
  while (performance.now() < end) {
    await new Promise((resolve) => setTimeout(resolve, 40));
    analyser.getFloatTimeDomainData(samples);
    powers.push(samples.reduce((sum, x) => sum + x * x, 0) / samples.length);
  }
  await context.close();
  powers.splice(0, 3); // the graph needs a moment
  powers.sort((a, b) => a - b);
  return Math.sqrt(powers[Math.floor(powers.length / 2)]);
}
"""


def heard_level(visit: Visit, milliseconds: int = 1500) -> float:
    """RMS of what the loudspeaker is given, full scale 1: the median of many short stretches."""
    return visit.page.evaluate(LEVEL, milliseconds)


def inbound(visit: Visit) -> dict:
    return visit.page.evaluate("inboundAudio()")


def test_spoken_question_spoken_answer(namespace, double_server, browse, question, shots):
    url = double_server()
    visit = Visit(browse(namespace, question), url, **DESK)
    page = visit.page
    page.wait_for_load_state("networkidle")
    page.screenshot(path=shots / "1-idle.png")
    page.get_by_role("button", name="Talk").click()
    visit.state("hearing")
    page.wait_for_timeout(400)
    page.screenshot(path=shots / "2-hearing.png")
    visit.state("thinking")
    page.wait_for_timeout(150)
    page.screenshot(path=shots / "3-thinking.png")
    visit.state("speaking")
    page.wait_for_timeout(600)
    page.screenshot(path=shots / "4-speaking.png")
    assert heard_level(visit) == pytest.approx(TONE_LEVEL / 32768 / 2**0.5, rel=0.1)
    ended = inbound(visit)
    assert ended["concealedSamples"] - ended["silentConcealedSamples"] < 0.3 * ended["totalSamplesReceived"]
    visit.state("listening")
    rows = page.locator("#conversation li")
    assert rows.locator(".bubble").all_inner_texts() == ["What is the capital of France?", ANSWER]
    assert re.fullmatch(r"answered after \d+\.\d s", rows.nth(1).locator(".note").inner_text())
    page.get_by_role("button", name="End", exact=True).click()
    visit.state("idle")
    page.screenshot(path=shots / "5-after.png")
    way = ["idle", "connecting", "listening", "hearing", "thinking", "speaking", "listening", "idle"]
    assert page.evaluate("states") == way
    assert visit.complaints == []
    assert all(request.startswith((url, "data:", "blob:")) for request in visit.requests), (
        "no request leaves the server"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone_typed_question(namespace, double_server, browse, shots, scheme):
    visit = Visit(browse(namespace), double_server(), **PHONE, color_scheme=scheme)
    page = visit.page
    page.screenshot(path=shots / f"phone-{scheme}-1-idle.png")
    page.get_by_label("Type a message instead").fill("What is the capital of France?")
    page.keyboard.press("Enter")
    visit.state("speaking")
    page.wait_for_timeout(600)
    page.screenshot(path=shots / f"phone-{scheme}-2-speaking.png")
    visit.state("listening")
    assert page.locator(".bubble").all_inner_texts() == ["What is the capital of France?", ANSWER]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"
    assert visit.complaints == []


def test_typing_interrupts(namespace, double_server, browse):
    visit = Visit(browse(namespace), double_server())
    for _ in range(2):
        visit.page.get_by_label("Type a message instead").fill("Again")
        visit.page.get_by_role("button", name="Send").click()
        visit.state("speaking")
        visit.page.wait_for_timeout(500)
    assert visit.page.locator(".assistant .note").first.inner_text() == "interrupted"
    heard = visit.page.locator(".assistant .bubble").first.inner_text()
    assert heard.endswith("…") and ANSWER.startswith(heard[:-1]), "it shows what was heard, and no more"
    assert len(heard) < len(ANSWER)
    assert visit.page.locator("#alert").is_hidden()
    assert visit.complaints == []


def test_mute(namespace, double_server, browse, question):
    visit = Visit(browse(namespace, question), double_server())
    visit.page.get_by_role("button", name="Talk").click()
    visit.state("listening")
    visit.page.get_by_role("button", name="Mute").click()
    visit.page.wait_for_timeout(3500)
    assert visit.page.locator("#status").inner_text() == "Muted"
    assert visit.page.locator(".bubble").count() == 0
    assert visit.page.get_by_role("button", name="Unmute").get_attribute("aria-pressed") == "true"
    visit.page.get_by_role("button", name="End", exact=True).click()
    visit.page.get_by_role("button", name="Talk").click()
    visit.state("listening", "hearing")
    assert visit.page.get_by_role("button", name="Mute", exact=True).get_attribute("aria-pressed") == "false"


def test_microphone_refused(namespace, double_server, browse, shots):
    visit = Visit(browse(namespace), double_server(), **DESK)
    visit.page.evaluate(
        """() => {
          const refuse = async () => { throw new DOMException("no", "NotAllowedError"); };
          navigator.mediaDevices.getUserMedia = refuse;
        }"""
    )
    visit.page.get_by_role("button", name="Talk").click()
    visit.page.get_by_role("alert").wait_for()
    assert "microphone is blocked" in visit.page.get_by_role("alert").inner_text()
    visit.page.screenshot(path=shots / "error-microphone.png")
    visit.page.get_by_role("button", name="Dismiss").click()
    assert visit.page.locator("#alert").is_hidden()
    assert visit.page.locator("body").get_attribute("data-state") == "idle"


@pytest.mark.parametrize(
    ("arguments", "text"), [(["--not-ready"], "warming up"), (["--max-sessions", "0"], "lines are busy")]
)
def test_refusals_are_explained(namespace, double_server, browse, arguments, text):
    visit = Visit(browse(namespace), double_server(*arguments))
    visit.page.get_by_role("button", name="Talk").click()
    visit.page.get_by_role("alert").wait_for()
    assert text in visit.page.get_by_role("alert").inner_text()
    visit.state("idle")


def test_access_key(namespace, double_server, browse, shots):
    visit = Visit(browse(namespace), double_server("--key", "open sesame"))
    visit.page.get_by_role("button", name="Talk").click()
    key = visit.page.get_by_label("This server asks for an access key")
    key.fill("open sesame")
    visit.page.screenshot(path=shots / "key.png")
    visit.page.get_by_role("button", name="Use key").click()
    visit.state("listening")


def test_closed_tab_frees_its_place(namespace, double_server, browse):
    url = double_server("--max-sessions", "1")
    browser = browse(namespace)
    first = Visit(browser, url)
    first.page.get_by_role("button", name="Talk").click()
    first.state("listening")
    second = Visit(browser, url)
    second.page.get_by_role("button", name="Talk").click()
    second.page.get_by_role("alert").wait_for()
    first.page.close()
    for _ in range(20):
        second.page.wait_for_timeout(500)
        second.page.get_by_role("button", name="Talk").click()
        second.state("listening", "idle")
        if second.page.locator("body").get_attribute("data-state") == "listening":
            return
    raise AssertionError("the place of the closed tab was not freed")


def test_server_that_dies(namespace, double_server, browse, shots):
    visit = Visit(browse(namespace), double_server())
    visit.page.get_by_role("button", name="Talk").click()
    visit.state("listening")
    double_server.stop()
    visit.page.get_by_role("alert").wait_for(timeout=120_000)  # the page looks for another way for 30 s
    assert "connection was lost" in visit.page.get_by_role("alert").inner_text()
    visit.state("idle")
    visit.page.get_by_role("button", name="Talk").click()
    visit.page.get_by_text("can't be reached").wait_for()
    visit.page.screenshot(path=shots / "error-server.png")


def test_server_ends_the_call(namespace, double_server, browse):
    visit = Visit(browse(namespace), double_server())
    with visit.page.expect_response("**/v1/realtime/calls") as made:
        visit.page.get_by_role("button", name="Talk").click()
    visit.state("listening")
    location = made.value.headers["location"]
    visit.page.evaluate("(path) => fetch(path, { method: 'POST' })", f"{location}/hangup")
    visit.page.get_by_role("alert").wait_for()
    assert "ended the call" in visit.page.get_by_role("alert").inner_text()
    visit.state("idle")


@pytest.fixture
def spoken_question(tmp_path):
    """A real question: a WAV for the microphone."""
    hibari = pytest.importorskip("hibari")
    words = np.asarray(hibari.Hibari()("What is the capital of France?"), dtype=np.float32)
    rate = hibari.SAMPLE_RATE
    return write_wav(tmp_path / "spoken.wav", np.concatenate([silence(1.5, rate), words, silence(120, rate)]), rate)


def test_real_server(real_server, browse, spoken_question, shots):
    """The same page, with all stages real."""
    visit = Visit(browse(Namespace(None), spoken_question), real_server, **DESK)
    page = visit.page
    page.get_by_role("button", name="Talk").click()
    visit.state("hearing", seconds=30)
    visit.state("speaking", seconds=60)
    assert 0.01 < heard_level(visit) < 0.5
    page.screenshot(path=shots / "real-speaking.png")
    visit.state("listening", seconds=90)
    asked, answered = page.locator(".bubble").all_inner_texts()
    assert "capital of france" in asked.lower()
    assert len(answered.split()) >= 2
    page.get_by_role("button", name="End", exact=True).click()
    visit.state("idle")
    page.screenshot(path=shots / "real-after.png")
    assert visit.complaints == []


def test_choice_of_voice(namespace, double_server, browse, shots):
    """The voice that was chosen speaks, is kept for the next visit, and can't be changed once it has spoken."""
    visit = Visit(browse(namespace), double_server(), **PHONE)
    page = visit.page
    choice = page.get_by_label("Voice")
    choice.wait_for()
    assert choice.locator("option").all_inner_texts() == ["Anna", "Ben"]
    assert choice.input_value() == "anna"
    choice.select_option("ben")
    page.screenshot(path=shots / "voice.png")
    page.reload()
    choice.wait_for()
    assert choice.input_value() == "ben"
    with page.expect_request("**/v1/realtime/calls") as made:
        page.get_by_label("Type a message instead").fill("Hello")
        page.keyboard.press("Enter")
        visit.state("speaking")
    assert '"audio":{"output":{"voice":"ben"}}' in (made.value.post_data or "")
    choice.select_option("anna")
    page.get_by_text("The new voice will speak in your next call.").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"
    assert visit.complaints == []
