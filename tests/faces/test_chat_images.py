"""Images in chat completions: data URLs become parts of the message; what is none is refused by name."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from voicechat.contract.cascade import ModelInfo
from voicechat.contract.requests import ImagePart, TextPart
from voicechat.faces.chat_messages import decode_messages
from voicechat.faces.chat_request import parse_chat
from voicechat.faces.errors import ApiError

SEEING = ModelInfo("eyes", ("ann",), "ann", True, 4096, 1_700_000_000, most_images=3)
PICTURE = b"\x89PNG\r\n\x1a\n and so on"
URL = "data:image/png;base64," + base64.b64encode(PICTURE).decode()


def ask(*parts: dict[str, Any], role: str = "user", max_bytes: int = 1000) -> Any:
    body = {"model": "eyes", "messages": [{"role": role, "content": list(parts)}]}
    chat = parse_chat(body, SEEING, lambda _: None)
    return decode_messages(chat.messages, max_bytes=max_bytes, max_seconds=1.0)


def image(url: str, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **more}}


def test_parts_keep_their_order() -> None:
    (message,) = ask(
        {"type": "text", "text": "What is it?"}, image(URL, detail="low"), {"type": "text", "text": "Say."}
    )
    first, seen, last = message.parts
    assert (first, last) == (TextPart("What is it?"), TextPart("Say."))
    assert isinstance(seen, ImagePart) and seen.data == PICTURE


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("https://example.com/cat.png", "invalid_image_url"),
        ("file:///etc/passwd", "invalid_image_url"),
        ("data:image/png;base64", "invalid_image_url"),
        ("data:text/html;base64,AAAA", "invalid_image_format"),
        ("data:image/png,AAAA", "invalid_image_format"),
        ("data:image/png;base64,A*A=", "invalid_image"),
    ],
)
def test_urls_that_are_no_images(url: str, code: str) -> None:
    with pytest.raises(ApiError) as caught:
        ask(image(url))
    assert caught.value.status == 400
    assert (caught.value.param, caught.value.code) == ("messages[0].content[0].image_url.url", code)


def test_limits() -> None:
    with pytest.raises(ApiError, match="larger than 10 bytes"):
        ask(image(URL), max_bytes=10)
    with pytest.raises(ApiError, match="At most 3 "):
        ask(*[image(URL)] * 4)


def test_only_users_show_images() -> None:
    with pytest.raises(ApiError, match="not allowed in system messages"):
        ask(image(URL), role="system")
    with pytest.raises(ApiError, match="sees images only"):
        ask({"type": "video_url", "video_url": {"url": URL}})
