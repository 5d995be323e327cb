"""The messages of a client that checks a connection (RFC 8445 section 7), for who needs no more of ICE than that."""

from __future__ import annotations

import aioice.stun
from aioice.stun import Class, Message, Method

_PRIORITY = 1_853_824_767
"""Of a peer-reflexive candidate, as RFC 8445 section 7.1.1 wants it."""


def check(username: str, password: str) -> bytes:
    """A check by the controlling side that also chooses the pair: ``username`` is theirs and ours, with a colon;
    ``password`` theirs."""
    made = Message(message_method=Method.BINDING, message_class=Class.REQUEST)
    made.attributes |= {"USERNAME": username, "PRIORITY": _PRIORITY, "ICE-CONTROLLING": 1, "USE-CANDIDATE": None}
    return _finished(made, password)


def read(data: bytes, sender: tuple[str, int], password: str) -> bytes | None:
    """What to answer to a check from ``sender`` in ``data``, with our ``password``; None for an answer to one of ours.
    Raises ValueError if it is neither."""
    message = aioice.stun.parse_message(data)
    if message.message_class is Class.RESPONSE:
        return None
    if message.message_class is not Class.REQUEST:
        raise ValueError(f"neither a check nor an answer: {message.message_class}")
    made = Message(message_method=Method.BINDING, message_class=Class.RESPONSE, transaction_id=message.transaction_id)
    made.attributes["XOR-MAPPED-ADDRESS"] = sender
    return _finished(made, password)


def _finished(message: Message, password: str) -> bytes:
    message.add_message_integrity(password.encode())
    message.add_fingerprint()
    return bytes(message)
