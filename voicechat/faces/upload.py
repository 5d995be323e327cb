"""Files that come as multipart bodies: to disk as they come, bounded in size and time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import BodyPartReader, web

from voicechat.faces.errors import ApiError

Found = TypeVar("Found")

ROOM = 64 << 10
"""Bytes of a multipart body around its file."""
_PIECE = 256 << 10
_FIELD_BYTES = 64 << 10
_MOST_FIELDS = 64


def too_large(max_bytes: int) -> ApiError:
    """What the sender of a larger file is told."""
    message = f"The file is too large: at most {max_bytes >> 20} MiB are taken."
    return ApiError(413, message, param="file", code="too_large")


async def write_part(part: BodyPartReader, path: Path, max_bytes: int) -> None:
    """A part's file, written to ``path``. Raises :class:`ApiError` for one that is empty or too large."""
    size = 0
    with path.open("wb") as file:
        while piece := await part.read_chunk(_PIECE):
            size += len(piece)
            if size > max_bytes:
                raise too_large(max_bytes)
            await asyncio.to_thread(file.write, piece)
    if not size:
        raise ApiError(400, "The file is empty.", param="file", code="no_audio")


async def in_time(receiving: Awaitable[Found], seconds: float) -> Found:
    """What comes of ``receiving``. Raises :class:`ApiError` if it takes too long."""
    try:
        async with asyncio.timeout(seconds):
            return await receiving
    except TimeoutError:
        message = f"The file did not come in time: it may take {seconds:g} s."
        # RFC 9110, section 15.5.9
        raise ApiError(408, message, param="file", code="timeout", headers={"Connection": "close"}) from None


async def receive_form(
    request: web.Request, path: Path, max_bytes: int, fields: Collection[str]
) -> dict[str, list[str]]:
    """The part ``file`` written to ``path``, and the values of ``fields`` by name; ``name[]`` is ``name``.

    Other parts are passed over. Raises :class:`ApiError`.
    """
    values: dict[str, list[str]] = {}
    found, count = False, 0
    try:
        async for part in await request.multipart():
            count += 1
            if count > _MOST_FIELDS:
                raise ApiError(400, f"The form has more than {_MOST_FIELDS} fields.", code="invalid_body")
            name = (part.name or "").removesuffix("[]") if isinstance(part, BodyPartReader) else ""
            if not isinstance(part, BodyPartReader):
                raise ApiError(400, "A multipart body inside another is not read.", code="invalid_body")
            if name == "file":
                if found:
                    raise ApiError(400, "One file is taken at a time.", param="file", code="invalid_value")
                found = True
                await write_part(part, path, max_bytes)
            else:
                value = await _value(part, name)
                if name in fields:
                    values.setdefault(name, []).append(value)
    except (ValueError, KeyError) as error:
        raise ApiError(400, f"The multipart body is malformed: {error}", code="invalid_body") from None
    if not found:
        raise ApiError(400, "Missing required parameter: 'file'.", param="file", code="missing_required_parameter")
    return values


async def _value(part: BodyPartReader, name: str) -> str:
    data = bytearray()
    while chunk := await part.read_chunk(_FIELD_BYTES):
        data += chunk
        if len(data) > _FIELD_BYTES:
            message = f"Invalid '{name[:64]}': longer than {_FIELD_BYTES} bytes."
            raise ApiError(413, message, param=name[:64], code="too_long")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ApiError(400, f"Invalid '{name[:64]}': not UTF-8.", param=name[:64], code="invalid_value") from None


async def unless_gone(request: web.Request, work: Coroutine[Any, Any, Found], poll_s: float) -> Found:
    """What comes of ``work``, which is cancelled when the caller hangs up: others would wait for nobody.

    aiohttp tells handlers of a lost connection only when they write, so the connection is looked at every ``poll_s``.
    """
    working = asyncio.create_task(work)
    try:
        while not (await asyncio.wait({working}, timeout=poll_s))[0]:
            if is_gone(request):
                raise ApiError(400, "The caller went away.")  # which nobody hears
        return await working
    finally:
        working.cancel()


def is_gone(request: web.Request) -> bool:
    """True if the caller's connection is closed."""
    return request.transport is None or request.transport.is_closing()
