"""One end of the socket pair between the server and a stage: whole messages, read and written by asyncio."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator

import msgspec

from voicechat.cascade.messages import Message

_HEADER = struct.Struct("!I")
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


class Channel:
    """Sends and receives :data:`~voicechat.cascade.messages.Message` over a connected stream socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, sock: socket.socket) -> Channel:
        """Take over a connected socket."""
        return cls(*await asyncio.open_unix_connection(sock=sock, limit=1 << 22))

    def send(self, message: Message) -> None:
        """Queue a message and return at once. Once the other end is gone it is dropped: the reader learns of that."""
        if self._writer.is_closing():
            return
        body = _encoder.encode(message)
        self._writer.write(_HEADER.pack(len(body)) + body)

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Messages until the other end closes."""
        while True:
            try:
                (length,) = _HEADER.unpack(await self._reader.readexactly(_HEADER.size))
                body = await self._reader.readexactly(length)
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            yield _decoder.decode(body)

    def close(self) -> None:
        """Close this end; what is queued is still sent."""
        self._writer.close()
