"""Images that a request names by URL: fetched from the hosts that the operator allows, from nowhere else."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

import aiohttp

from voicechat.contract.images import IMAGE_TYPES
from voicechat.contract.requests import ImagePart
from voicechat.faces.chat_messages import DraftMessage, LinkedImage
from voicechat.faces.errors import ApiError
from voicechat.faces.fields import bad_field

FETCH_S = 10.0
"""Longest time for one image."""


class LinkedImages:
    """Fetches the images of requests, each of at most ``max_bytes``. Closed by :meth:`close`.

    Redirects are not followed, so that an allowed host can't send the server elsewhere.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._client: aiohttp.ClientSession | None = None

    async def fetched(self, drafts: Sequence[DraftMessage]) -> tuple[DraftMessage, ...]:
        """The messages, with images in place of links. Raises :class:`ApiError` that names the link."""
        links = [part for draft in drafts for part in draft.parts if isinstance(part, LinkedImage)]
        if not links:
            return tuple(drafts)
        async with asyncio.TaskGroup() as group:
            tasks = {id(link): group.create_task(self._attempt(link)) for link in links}
        images: dict[int, ImagePart] = {}
        for key, task in tasks.items():
            outcome = task.result()
            if isinstance(outcome, ApiError):
                raise outcome
            images[key] = outcome
        return tuple(
            dataclasses.replace(draft, parts=tuple(images.get(id(part), part) for part in draft.parts))
            for draft in drafts
        )

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()

    async def _attempt(self, link: LinkedImage) -> ImagePart | ApiError:
        try:
            return ImagePart(await self._fetch(link))
        except ApiError as error:
            return error
        except TimeoutError:
            return _failed(link, f"it did not come within {FETCH_S:g} s")
        except (aiohttp.ClientError, ValueError) as error:
            return _failed(link, type(error).__name__)

    async def _fetch(self, link: LinkedImage) -> bytes:
        if self._client is None:
            self._client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=FETCH_S))
        async with self._client.get(link.url, allow_redirects=False) as response:
            if response.status != 200:
                raise _failed(link, f"its server answered {response.status}")
            if response.content_type not in IMAGE_TYPES:
                message = f"Invalid '{link.param}': expected {', '.join(IMAGE_TYPES)}, not {response.content_type}."
                raise bad_field(link.param, message, "invalid_image_format")
            data = bytearray()
            async for chunk in response.content.iter_chunked(1 << 16):
                data += chunk
                if len(data) > self._max_bytes:
                    message = f"Invalid '{link.param}': the image is larger than {self._max_bytes} bytes."
                    raise bad_field(link.param, message, "image_too_large")
        return bytes(data)


def _failed(link: LinkedImage, why: str) -> ApiError:
    return bad_field(link.param, f"Invalid '{link.param}': the image could not be fetched: {why}.", "invalid_image_url")
