"""Models that see, or hear by themselves: what they are told of images and of the user's voice."""

from __future__ import annotations

import base64
import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.realtime.bench import LOUD, MODEL, Bench, message
from voicechat.contract.requests import AudioPart, ImagePart, Message, TextPart

PICTURE = b"\x89PNG\r\n\x1a\n and so on"
URL = "data:image/png;base64," + base64.b64encode(PICTURE).decode()
SEEING = dataclasses.replace(MODEL, sees=True, most_images=2, context_tokens=32_768)
HEARING = dataclasses.replace(MODEL, hears=True, most_sounds=2, context_tokens=32_768)


def shown(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": list(parts), **more}


def image(url: str = URL, **more: Any) -> dict[str, Any]:
    return {"type": "input_image", "image_url": url, **more}


def told(bench: Bench) -> list[Message]:
    return [message for message in bench.started[-1].request.messages if message.role != "system"]


def test_an_image_is_told_among_its_words() -> None:
    bench = Bench(model=SEEING)
    words = [{"type": "input_text", "text": text} for text in ("What is", "this?")]
    bench.tell("conversation.item.create", item=shown(words[0], image(detail="high"), words[1], id="i"))
    added = bench.all("conversation.item.added")[-1]["item"]["content"]
    assert added[1] == {"type": "input_image", "detail": "high"}, "the picture itself is not sent back"
    bench.tell("response.create")
    (asked,) = told(bench)
    assert asked == Message("user", (TextPart("What is"), ImagePart(PICTURE), TextPart("this?")))
    bench.check()


def test_the_newest_images_only() -> None:
    bench = Bench(model=SEEING)
    for _ in range(3):
        bench.tell("conversation.item.create", item=shown({"type": "input_text", "text": "look"}, image()))
    bench.tell("response.create")
    assert [len(asked.parts) for asked in told(bench)] == [1, 2, 2]


def test_a_response_of_its_own_sees_its_own_images() -> None:
    bench = Bench(model=SEEING)
    bench.tell("response.create", response={"conversation": "none", "input": [shown(image())]})
    assert [asked.parts for asked in told(bench)] == [(ImagePart(PICTURE),)]


@pytest.mark.parametrize(
    ("part", "code", "param"),
    [
        (image("https://example.com/cat.png"), "invalid_image_url", "image_url"),
        (image("data:text/html;base64,AAAA"), "invalid_image_format", "image_url"),
        (image("data:image/png;base64,A*A="), "invalid_image", "image_url"),
        ({"type": "input_image"}, "missing_required_parameter", "image_url"),
        (image(detail="sharp"), "invalid_value", "detail"),
        (image(text="a cat"), "unknown_parameter", "text"),
    ],
)
def test_what_is_no_image(part: dict[str, Any], code: str, param: str) -> None:
    bench = Bench(model=SEEING)
    bench.tell("conversation.item.create", item=shown(part))
    error = bench.error()
    assert (error["code"], error["param"]) == (code, f"item.content[0].{param}")
    assert not bench.session.conversation.items


def test_only_users_show_images() -> None:
    bench = Bench(model=SEEING)
    bench.tell("conversation.item.create", item={**shown(image()), "role": "system"})
    assert bench.error()["param"] == "item.content[0].type"


def test_images_are_forgotten_before_they_fill_the_memory() -> None:
    bench = Bench(model=SEEING)
    large = "data:image/png;base64," + base64.b64encode(bytes(6 << 20)).decode()
    for name in ("a", "b", "c"):
        bench.tell("conversation.item.create", item=shown(image(large), {"type": "input_text", "text": name}, id=name))
    held = [len(item.parts[0].image) for item in bench.session.conversation.items]
    assert held == [0, 6 << 20, 6 << 20]
    bench.tell("response.create")
    assert [len(asked.parts) for asked in told(bench)] == [1, 2, 2], "the words stay"


def test_the_voice_itself_is_told() -> None:
    bench = Bench(model=HEARING, eager=True)
    bench.tell("conversation.item.create", item=message("I am Ann."))
    bench.turn("what is my name", voice=1.0)
    *_, asked = told(bench)
    (sound,) = asked.parts
    assert isinstance(sound, AudioPart) and sound.pcm.dtype == np.float32
    assert len(sound.pcm) >= 16_000 and float(np.abs(sound.pcm).max()) == float(LOUD.max())
    assert len(bench.started) == 1, "nothing was begun for the words of a turn that was not over"
