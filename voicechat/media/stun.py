"""What a STUN server says of an address (RFC 8489): a binding request over a socket that is at hand. Blocks."""

from __future__ import annotations

import ipaddress
import secrets
import socket
import struct

_COOKIE = 0x2112A442
_BINDING, _SUCCESS = 0x0001, 0x0101
_XOR_MAPPED_ADDRESS = 0x0020
_TRIES = (0.5, 1.0, 1.5)
"""Seconds to wait for an answer, each time."""


def request(transaction: bytes) -> bytes:
    """A binding request; ``transaction`` has 12 bytes."""
    return struct.pack("!HHI", _BINDING, 0, _COOKIE) + transaction


def mapped_address(data: bytes, transaction: bytes) -> tuple[str, int] | None:
    """The address in an answer to that request; None if it is something else."""
    if len(data) < 20 or struct.unpack_from("!HHI", data)[::2] != (_SUCCESS, _COOKIE) or data[8:20] != transaction:
        return None
    start = 20
    while start + 4 <= len(data):
        kind, size = struct.unpack_from("!HH", data, start)
        body = data[start + 4 : start + 4 + size]
        if kind == _XOR_MAPPED_ADDRESS and len(body) == size and size in (8, 20):
            port = struct.unpack_from("!H", body, 2)[0] ^ (_COOKIE >> 16)
            mask = struct.pack("!I", _COOKIE) + transaction
            packed = bytes(one ^ other for one, other in zip(body[4:], mask, strict=False))
            return str(ipaddress.ip_address(packed)), port
        start += 4 + size + (-size % 4)
    return None


def ask(sock: socket.socket, host: str, port: int) -> tuple[str, int]:
    """Where ``sock`` (UDP, bound) is seen from the STUN server. Raises OSError: no answer, or the name is not known."""
    found = socket.getaddrinfo(host, port, family=sock.family, type=socket.SOCK_DGRAM)
    server = found[0][4]
    transaction = secrets.token_bytes(12)
    for wait in _TRIES:
        sock.sendto(request(transaction), server)
        sock.settimeout(wait)
        try:
            while True:
                answer = mapped_address(sock.recvfrom(2048)[0], transaction)
                if answer is not None:
                    return answer
        except TimeoutError:
            continue
    raise OSError(f"{host}:{port} does not answer")
