"""One end of the socket pair between the server and a stage: whole messages, read and written by asyncio.

All that is sent in one turn of the event loop goes out in one write, and all that one read brings in is taken apart at
once: with hundreds of replies in the making, a system call for each token would cost more than the token.
"""

from __future__ import annotations

import asyncio
import collections
import socket
import struct
from collections.abc import AsyncIterator
from typing import cast

import msgspec

from voicechat.contract.messages import Message

_HEADER = struct.Struct("!I")
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


class Channel(asyncio.Protocol):
    """Sends and receives :data:`~voicechat.contract.messages.Message` over a connected stream socket."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._unsent: list[bytes] = []
        self._partial = bytearray()
        self._bodies: collections.deque[bytes] = collections.deque()
        self._more = asyncio.Event()
        self._lost = False
        self.sent = 0
        """Messages so far."""
        self.received = 0

    @classmethod
    async def open(cls, sock: socket.socket) -> Channel:
        """Take over a connected socket."""
        _, channel = await asyncio.get_running_loop().create_unix_connection(cls, sock=sock)
        return channel

    def send(self, message: Message) -> None:
        """Queue a message and return at once. Once the other end is gone it is dropped: the reader learns of that."""
        if self._transport is None or self._transport.is_closing():
            return
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self.sent += 1
        body = _encoder.encode(message)
        self._unsent += (_HEADER.pack(len(body)), body)

    def _flush(self) -> None:
        if self._unsent and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Messages until the other end closes."""
        while True:
            while self._bodies:
                self.received += 1
                yield _decoder.decode(self._bodies.popleft())
            if self._lost:
                return
            self._more.clear()
            await self._more.wait()

    def close(self) -> None:
        """Close this end; what is queued is still sent."""
        if self._transport is not None:
            self._flush()
            self._transport.close()

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is taken over."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not of that class

    def data_received(self, data: bytes) -> None:
        """Cut whole messages off."""
        held, place, head = self._partial, 0, _HEADER.size
        held += data
        while len(held) - place >= head:
            (length,) = _HEADER.unpack_from(held, place)
            if len(held) - place < head + length:
                break
            place += head
            self._bodies.append(bytes(held[place : place + length]))
            place += length
        if place:
            del held[:place]
            self._more.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """The other end has closed, or died."""
        self._lost = True
        self._more.set()
