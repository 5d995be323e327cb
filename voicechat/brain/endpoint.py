"""A chat completions endpoint over HTTP: one session with kept connections, replies as streams of JSON objects."""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import msgspec

from voicechat.brain.errors import BrainError, refusal, reported
from voicechat.brain.sse import SseEvent, SseParser

MAX_ERROR = 1 << 16
MAX_WHOLE = 1 << 24
"""Most bytes of an error's body, and of a reply that does not come as a stream."""


class End(enum.Enum):
    """Stands in a stream where the endpoint says that the reply is complete."""

    DONE = enum.auto()


class Endpoint:
    """``url`` ends in ``/v1`` or the like, without a slash. ``timeout`` bounds connecting, in seconds."""

    def __init__(self, url: str, model: str, api_key: str | None, timeout: float) -> None:
        self.url = url
        self.model = model
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60.0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=timeout),
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def models(self) -> list[str] | None:
        """Names of the models that the endpoint lists; None if it has no such list. Raises :class:`BrainError`."""
        try:
            async with self._session.get(f"{self.url}/models", allow_redirects=False) as response:
                if response.status in (404, 405, 501):
                    return None
                body = await response.content.read(MAX_WHOLE)
                if response.status != 200:
                    raise refusal(response.status, response.headers, body, self.model)
        except aiohttp.ClientError as error:
            raise self._unreachable(error) from error
        value = _json(body)
        data = value.get("data") if isinstance(value, dict) else None
        return [entry["id"] for entry in data if isinstance(entry, dict) and "id" in entry] if data else None

    async def stream(self, body: dict[str, Any]) -> AsyncGenerator[object, None]:
        """The objects of the reply to ``body``, with :attr:`End.DONE` at the place where the endpoint says so.

        Read it to its end, so that the connection can be used again; closing it early closes the connection. Raises
        :class:`BrainError`.
        """
        response = await self._ask(body)
        try:
            if response.status != 200:
                raise refusal(response.status, response.headers, await response.content.read(MAX_ERROR), self.model)
            if response.content_type == "application/json":  # an endpoint that knows no streams
                yield self._checked(_json(await response.content.read(MAX_WHOLE)))
                yield End.DONE
                return
            parser = SseParser()
            async for data in response.content.iter_any():
                for event in self._parsed(parser, data):
                    yield self._object(event)
            for event in self._parsed(parser, None):
                yield self._object(event)
        except (aiohttp.ClientError, ConnectionError) as error:
            detail = f"it broke off: {error or type(error).__name__}"
            raise BrainError(
                "The brain broke off in the middle of its reply. Please try again.", detail=detail
            ) from error
        finally:
            response.release()  # closes a connection of which there is more to read

    async def _ask(self, body: dict[str, Any]) -> aiohttp.ClientResponse:
        """Post; once more if the connection was a kept one that the endpoint has just closed."""
        data = msgspec.json.encode(body)
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        for last in (False, True):
            try:
                return await self._session.post(
                    f"{self.url}/chat/completions", data=data, headers=headers, allow_redirects=False
                )
            except (aiohttp.ServerDisconnectedError, ConnectionResetError) as error:
                if last:
                    raise self._unreachable(error) from error
            except aiohttp.ClientError as error:
                raise self._unreachable(error) from error
        raise AssertionError("not reached")

    def _parsed(self, parser: SseParser, data: bytes | None) -> list[SseEvent]:
        try:
            return parser.finish() if data is None else parser.feed(data)
        except ValueError as error:
            raise self._malformed(str(error)) from None

    def _object(self, event: SseEvent) -> object:
        if event.data.strip() == "[DONE]":
            return End.DONE
        value = _json(event.data)
        if event.type == "error":
            raise self._told(value)
        return self._checked(value)

    def _checked(self, value: object) -> object:
        if value is None:
            raise self._malformed("something in it is not JSON")
        if isinstance(value, dict) and value.get("error") is not None:
            raise self._told(value)
        return value

    def _told(self, value: object) -> BrainError:
        return reported(value.get("error", value) if isinstance(value, dict) else value, self.model)

    def _malformed(self, why: str) -> BrainError:
        return BrainError(f"The brain sent a reply that can't be read: {why}.")

    def _unreachable(self, error: Exception) -> BrainError:
        """The address is for the log; callers need not know it."""
        detail = str(error) or type(error).__name__
        return BrainError("The brain can't be reached. Try again in a moment.", "unreachable", detail=detail)


def _json(data: bytes | str) -> Any:
    """The value, or None for what is no JSON."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
