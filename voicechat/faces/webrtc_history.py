"""The conversation of one session, bounded: what the Thinker is told of earlier turns. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from voicechat.cascade.api import Message, Role

CHARS_PER_TOKEN = 3
"""A cautious guess for English, so that a full history still fits the context."""


@dataclass(slots=True)
class Entry:
    """One message. ``text`` is None until it is known (a spoken turn that is still being transcribed)."""

    item_id: str
    role: Role
    text: str | None


class History:
    """Messages in order; the oldest are dropped once there are more than ``max_messages`` or ``max_chars``."""

    def __init__(self, *, max_messages: int = 64, max_chars: int = 6_000) -> None:
        self._max_messages = max_messages
        self._max_chars = max_chars
        self._entries: list[Entry] = []

    @property
    def last_id(self) -> str | None:
        """Identifier of the newest message."""
        return self._entries[-1].item_id if self._entries else None

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, item_id: str, role: Role, text: str | None) -> None:
        """Append a message."""
        self._entries.append(Entry(item_id, role, text))
        self._trim()

    def set_text(self, item_id: str, text: str | None) -> None:
        """Give a message its text, or replace it; nothing happens if it was dropped meanwhile."""
        for entry in self._entries:
            if entry.item_id == item_id:
                entry.text = text
        self._trim()

    def messages(self, instructions: str) -> tuple[Message, ...]:
        """What the Thinker gets: the instructions, if any, and all messages that have text."""
        system = [Message.text("system", instructions)] if instructions.strip() else []
        return (*system, *(Message.text(entry.role, entry.text) for entry in self._entries if entry.text))

    def _trim(self) -> None:
        while len(self._entries) > 1 and (
            len(self._entries) > self._max_messages
            or sum(len(entry.text or "") for entry in self._entries) > self._max_chars
        ):
            del self._entries[0]


def heard_text(text: str, played: int, total: int) -> str:
    """The part of ``text`` that was heard when ``played`` of its ``total`` samples were, cut after a whole word."""
    if played <= 0 or total <= 0:
        return ""
    if played >= total:
        return text
    end = len(text) * played // total
    while end < len(text) and not text[end].isspace():
        end += 1
    return text[:end].rstrip()
