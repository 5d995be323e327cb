"""The page shows pictures to a model that sees: from a file and from the camera."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.web.conftest import Visit
from voicechat.media.aiortc_adapter import MAX_MESSAGE

DESK = {"viewport": {"width": 1280, "height": 800}}
PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """A large picture that compresses badly: noise, darker to the right."""
    noise = np.random.default_rng(1).integers(0, 256, (1500, 2400, 3)).astype(np.float32)
    path = tmp_path / "photo.png"
    Image.fromarray((noise * np.linspace(1, 0.1, 2400)[None, :, None]).astype(np.uint8)).save(path)
    return path


def seen(visit: Visit, url: str) -> list[Image.Image]:
    """What the model was shown."""
    shown = json.loads(visit.page.evaluate("async (url) => (await fetch(url)).text()", f"{url}/pictures"))
    files = [base64.b64decode(data) for data in shown]
    assert all(len(data) < MAX_MESSAGE for data in files)
    return [Image.open(io.BytesIO(data)) for data in files]


def ask(visit: Visit, text: str) -> None:
    visit.page.get_by_label("Type a message instead").fill(text)
    visit.page.keyboard.press("Enter")
    visit.state("speaking")


def test_a_picture_from_a_file(namespace, double_server, browse, photo, shots) -> None:
    url = double_server("--sees")
    visit = Visit(browse(namespace), url, **DESK)
    visit.page.set_input_files("#picture-file", photo)
    visit.page.get_by_alt_text("The picture that you showed").wait_for()
    ask(visit, "What is this?")
    visit.page.screenshot(path=shots / "pictures-file.png")
    (picture,) = seen(visit, url)
    assert picture.format == "JPEG" and picture.width / picture.height == pytest.approx(2400 / 1500, rel=0.01)
    grey = np.asarray(picture.convert("L"), np.float32).mean(axis=0)
    assert grey[: len(grey) // 4].mean() > 2 * grey[-len(grey) // 4 :].mean(), "it is that picture"
    assert not visit.complaints


def test_a_picture_from_the_camera(namespace, double_server, browse, shots) -> None:
    url = double_server("--sees")
    visit = Visit(browse(namespace), url, **PHONE)
    visit.page.get_by_role("button", name="Use the camera").click()
    visit.page.locator("[data-take]:enabled").wait_for()
    visit.page.screenshot(path=shots / "pictures-camera.png")
    visit.page.get_by_role("button", name="Show this").click()
    visit.page.get_by_alt_text("The picture that you showed").wait_for()
    assert visit.page.evaluate("document.querySelector('#camera video').srcObject") is None, "the camera is off"
    ask(visit, "What is this?")
    assert len(seen(visit, url)) == 1
    visit.page.screenshot(path=shots / "pictures-phone.png")
    assert not visit.complaints


def test_what_is_no_picture(namespace, double_server, browse, tmp_path) -> None:
    other = tmp_path / "notes.png"
    other.write_text("nothing to look at")
    visit = Visit(browse(namespace), double_server("--sees"), **DESK)
    visit.page.set_input_files("#picture-file", other)
    visit.page.get_by_text("This is no picture that the browser can read.").wait_for()
    assert visit.page.get_by_alt_text("The picture that you showed").count() == 0


def test_a_model_that_does_not_see_is_shown_nothing(namespace, double_server, browse) -> None:
    visit = Visit(browse(namespace), double_server(), **DESK)
    visit.page.wait_for_load_state("networkidle")
    assert visit.page.get_by_role("button", name="Use the camera").count() == 0
