"""Images as clients send them: data URLs (RFC 2397) of base64. Pure."""

from __future__ import annotations

import binascii

IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif")

_STEP = 1 << 18
"""Characters decoded at a time (a multiple of 4), so that other threads get the interpreter in between."""


class ImageUrlError(ValueError):
    """What is wrong with a URL of an image; ``code`` is OpenAI's."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


def encoded_image(url: str) -> str:
    """The base64 in a data URL of an image; nobody has looked into it. Raises :class:`ImageUrlError`.

    Other URLs are not fetched: a server that fetches what callers name is a proxy to its own network.
    """
    kind, comma, data = url[5:].partition(",") if url[:5].lower() == "data:" else ("", "", "")
    if not comma:
        message = "expected a data URL (data:image/png;base64,…); images are not fetched."
        raise ImageUrlError(message, "invalid_image_url")
    if not kind.endswith(";base64") or kind.removesuffix(";base64").lower() not in IMAGE_TYPES:
        message = f"expected a base64-encoded image of type {', '.join(IMAGE_TYPES[:-1])} or {IMAGE_TYPES[-1]}."
        raise ImageUrlError(message, "invalid_image_format")
    return data


def decoded_image(encoded: str, max_bytes: int) -> bytes:
    """The file in base64. Raises :class:`ImageUrlError` if it is larger than ``max_bytes`` or not base64."""
    if len(encoded) > (max_bytes + 2) // 3 * 4:
        raise ImageUrlError(f"the image is larger than {max_bytes} bytes.", "image_too_large")
    try:
        return base64_bytes(encoded)
    except ValueError:
        message = "expected a data URL with a base64-encoded image."
        raise ImageUrlError(message, "invalid_image") from None


def base64_bytes(text: str) -> bytes:
    """Strict base64. Raises ``ValueError`` for anything else."""
    if len(text) % 4 or text.find("=", 0, max(len(text) - 2, 0)) >= 0:
        raise ValueError("not base64")
    steps = range(0, len(text), _STEP)
    return b"".join(binascii.a2b_base64(text[start : start + _STEP], strict_mode=True) for start in steps)
