"""The conversation of one session: its items in order, what the Thinker is told of them, and truncation. Pure.

Bounded: the Thinker gets the newest messages that fit; the oldest items are dropped (and the client is told) beyond
``max_items``, and the oldest sound is forgotten beyond ``max_sound_bytes``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from voicechat.contract.requests import AudioPart, CallPart, ImagePart, Message, ResultPart, TextPart
from voicechat.contract.requests import Part as ToldPart
from voicechat.contract.sound import EARS_RATE, PCM_RATE
from voicechat.realtime.errors import ClientError
from voicechat.realtime.items import Item, Part
from voicechat.realtime.outbox import Clip, Outbox, SendWithAudio

CHARS_PER_TOKEN = 3
"""A cautious guess for English, so that a full history still fits the context."""

CALL_CHARS = 50
"""Characters around a call or its result."""

SOUND_CHARS = 25 * CHARS_PER_TOKEN
"""What a second of sound takes of the context, where the model hears by itself."""
IMAGE_CHARS = 1_300 * CHARS_PER_TOKEN
"""What an image takes of it, where the model sees: one of a million pixels."""

SILENT = "(The user says nothing.)"
"""What the Thinker is told of a turn that the idle timeout committed."""

ROOT = "root"


@dataclass(frozen=True, slots=True)
class Senses:
    """What a model takes beside text, of one request: ``images`` and ``sounds`` at most."""

    images: int = 0
    sounds: int = 0


class Conversation:
    """See the module. Every change is told through ``out``. Images, and what the user said, are told as they are to a
    model that has ``senses`` for them."""

    def __init__(
        self, out: Outbox, *, max_chars: int, max_messages: int = 64, max_items: int = 512,
        max_sound_bytes: int = 16 << 20, senses: Senses = Senses(),
    ) -> None:  # fmt: skip
        self._senses = senses
        self._out = out
        self._max_chars = max_chars
        self._max_messages = max_messages
        self._max_items = max_items
        self._max_sound = max_sound_bytes
        self._sound = 0
        self._items: list[Item] = []
        self._by_id: dict[str, Item] = {}

    @property
    def items(self) -> tuple[Item, ...]:
        """All items in order."""
        return tuple(self._items)

    @property
    def last_id(self) -> str | None:
        """Identifier of the last item."""
        return self._items[-1].id if self._items else None

    def get(self, item_id: str) -> Item | None:
        """The item, if it is there."""
        return self._by_id.get(item_id)

    def previous(self, item_id: str) -> str | None:
        """Identifier of the item before."""
        index = self._index(item_id)
        return self._items[index - 1].id if index > 0 else None

    def insert(self, item: Item, after: str | None = None, *, done: bool = True) -> None:
        """Put a new item at the end, or ``after`` another (``root``: in front), and announce it.

        Raises :class:`ClientError` for an identifier that is taken, or one that is not there.
        """
        if not item.id:
            item.id = self._out.new_id("item")
        if item.id in self._by_id or item.id == ROOT:
            message = f"There is an item '{item.id}' in the conversation already."
            raise ClientError(message, code="item_create_duplicate_item_id", param="item.id")
        if after is None:
            index = len(self._items)
        elif after == ROOT:
            index = 0
        elif after in self._by_id:
            index = self._index(after) + 1
        else:
            message = f"There is no item '{after}' in the conversation."
            raise ClientError(message, code="item_create_invalid_previous_item_id", param="previous_item_id")
        self._items.insert(index, item)
        self._by_id[item.id] = item
        self._sound += item.size()
        previous = self._items[index - 1].id if index else None
        for kind in ("created", "added", "done") if done else ("created", "added"):
            self._out.send(f"conversation.item.{kind}", previous_item_id=previous, item=item.to_dict())
        self._bound()
        self.grew(0)

    def done(self, item: Item) -> None:
        """Announce that ``item`` is complete, if it is still there."""
        if self._by_id.get(item.id) is item:
            self._out.send("conversation.item.done", previous_item_id=self.previous(item.id), item=item.to_dict())

    def delete(self, item_id: str) -> Item:
        """Remove an item. Raises :class:`ClientError`."""
        item = self._need(item_id, "delete")
        if item.status == "in_progress":
            message = f"The item '{item_id}' is still being made: cancel its response first."
            raise ClientError(message, code="item_delete_in_progress", param="item_id")
        self._remove(item)
        return item

    def retrieve(self, item_id: str) -> None:
        """Send an item with its sound. Raises :class:`ClientError`."""
        item = self._need(item_id, "retrieve")
        sounds = {index: tuple(part.sounds) for index, part in enumerate(item.parts) if part.sounds}
        self._out.add(SendWithAudio(self._out.event("conversation.item.retrieved", item=item.to_dict()), sounds))

    def truncate(self, item_id: str, content_index: int, audio_end_ms: int) -> None:
        """Forget what comes after ``audio_end_ms`` of a reply's sound. Raises :class:`ClientError`."""
        item, part = self.check_truncation(item_id, content_index, audio_end_ms)
        samples = audio_end_ms * PCM_RATE // 1000
        self.cut(item, content_index, min(part.samples, samples), shown_ms=audio_end_ms)

    def check_truncation(self, item_id: str, content_index: int, audio_end_ms: int) -> tuple[Item, Part]:
        """What is to be truncated. Raises :class:`ClientError` if it can't be."""
        item = self._need(item_id, "truncate")
        if item.role != "assistant" or item.type != "message":
            message = "Only spoken messages of the assistant can be truncated."
            raise ClientError(message, code="item_truncate_invalid_item_id", param="item_id")
        if not 0 <= content_index < len(item.parts) or item.parts[content_index].type != "output_audio":
            message = f"The item has no sound at content index {content_index}."
            raise ClientError(message, code="item_truncate_invalid_content_index", param="content_index")
        part = item.parts[content_index]
        held = _ms(part.samples)
        if not 0 <= audio_end_ms <= held:
            message = f"Audio content of {held}ms can't be truncated at {audio_end_ms}ms."
            raise ClientError(message, param="audio_end_ms")
        return item, part

    def cut(self, item: Item, content_index: int, samples: int, *, shown_ms: int | None = None) -> None:
        """Keep only the first ``samples`` of a part's sound, and the words that belong to them; tell the client."""
        part = item.parts[content_index]
        self._sound -= item.size()
        shorten(part, samples)
        self._sound += item.size()
        end = _ms(samples) if shown_ms is None else shown_ms
        self._out.send("conversation.item.truncated", item_id=item.id, content_index=content_index, audio_end_ms=end)

    def grew(self, size: int) -> None:
        """``size`` bytes of sound were added to an item: forget the oldest sound if there is too much."""
        self._sound += size
        for item in self._items:
            if self._sound <= self._max_sound:
                return
            if item.status != "in_progress":
                self._sound -= item.size()
                for part in item.parts:
                    part.sounds = []
                    part.image = b""

    def messages(self, instructions: str, reserved: int = 0) -> tuple[Message, ...]:
        """What the Thinker gets of this conversation; ``reserved`` characters are needed for its tools."""
        return self.build(self._items, instructions, reserved)

    def build(self, items: Iterable[Item], instructions: str, reserved: int = 0) -> tuple[Message, ...]:
        """What the Thinker gets of ``items`` instead."""
        return build_messages(items, instructions, self._max_chars - reserved, self._max_messages, self._senses)

    def _need(self, item_id: str, verb: str) -> Item:
        item = self._by_id.get(item_id)
        if item is None:
            message = f"There is no item '{item_id}' in the conversation."
            raise ClientError(message, code=f"item_{verb}_invalid_item_id", param="item_id")
        return item

    def _index(self, item_id: str) -> int:
        return next(index for index, item in enumerate(self._items) if item.id == item_id)

    def _remove(self, item: Item) -> None:
        self._items.remove(item)
        del self._by_id[item.id]
        self._sound -= item.size()
        self._out.send("conversation.item.deleted", item_id=item.id)

    def _bound(self) -> None:
        while len(self._items) > self._max_items:
            oldest = next((item for item in self._items[:-1] if item.status != "in_progress"), None)
            if oldest is None:
                return
            self._remove(oldest)


def build_messages(
    items: Iterable[Item], instructions: str, max_chars: int, max_messages: int, senses: Senses = Senses()
) -> tuple[Message, ...]:
    """The newest of ``items`` that fit, as messages, with the instructions in front."""
    system = [Message.text("system", instructions)] if instructions.strip() else []
    items = list(items)
    told = _all_told(items, _sensed(items, senses))
    first, left = len(told), max_chars - len(instructions)
    while first > 0 and len(told) - first < max_messages:
        left -= _length(told[first - 1])
        if left < 0 and first < len(told):
            break
        first -= 1
    return (*system, *told[first:])


def _sensed(items: list[Item], senses: Senses) -> dict[int, ToldPart]:
    """The newest images and sounds of the user that are told as they are, by the identity of their parts."""
    sensed: dict[int, ToldPart] = {}
    images, sounds = senses.images, senses.sounds
    for item in reversed(items):
        for part in reversed(item.parts if item.told is None else []):
            if part.image and images > 0:
                sensed[id(part)] = ImagePart(part.image)
                images -= 1
            elif sounds > 0 and (heard := _own_sound(part)) is not None:
                sensed[id(part)] = heard
                sounds -= 1
    return sensed


def _own_sound(part: Part) -> AudioPart | None:
    """What the microphone brought. Sound that came within an item is not decoded here: its transcript is told."""
    match part.sounds:
        case [Clip(samples, rate)] if part.type == "input_audio" and rate == EARS_RATE and samples.dtype == np.float32:
            return AudioPart(samples.astype(np.float32, copy=False))
    return None


def _all_told(items: Iterable[Item], sensed: Mapping[int, ToldPart]) -> list[Message]:
    """One message of each item that says something; of a message and those that go on with it, one for all."""
    told: list[Message] = []
    said, before, last_of_these = "", "", False
    for item in items:
        if not item.continues or item.continues != before:
            said, last_of_these = "", False
        message = _told(item, sensed, said)
        if message is not None:
            if last_of_these:
                told.pop()
            told.append(message)
            last_of_these = True
        said, before = said + item.text(), item.id
    return told


def _told(item: Item, sensed: Mapping[int, ToldPart], said: str = "") -> Message | None:
    """``said``: the message that it goes on with."""
    match item.type:
        case "function_call":
            return Message("assistant", (CallPart(item.call_id, item.name, item.arguments),))
        case "function_call_output":
            return Message("user", (ResultPart(item.call_id, item.output),))
    if any(id(part) in sensed for part in item.parts):
        parts = [sensed.get(id(part)) or TextPart(part.text or "") for part in item.parts]
        return Message(item.role, tuple(part for part in parts if not isinstance(part, TextPart) or part.text.strip()))
    text = said + (item.text() if item.told is None else item.told)
    return Message.text(item.role, text) if text.strip() else None


def _length(message: Message) -> int:
    """Characters of a message, about as many as the Thinker reads."""
    length = 0
    for part in message.parts:
        match part:
            case TextPart():
                length += len(part.text)
            case CallPart():
                length += len(part.name) + len(part.arguments) + CALL_CHARS
            case ResultPart():
                length += len(part.output) + CALL_CHARS
            case AudioPart():
                length += len(part.pcm) * SOUND_CHARS // EARS_RATE
            case ImagePart():
                length += IMAGE_CHARS
    return length


def shorten(part: Part, samples: int) -> None:
    """Keep only the first ``samples`` of a reply's sound, and the words that belong to them."""
    part.text = heard_text(part.text or "", samples, max(part.span, part.samples))
    part.samples = part.span = samples
    left, kept = samples, []
    for sound in part.sounds:
        if left > 0 and isinstance(sound, Clip):
            kept.append(Clip(sound.samples[:left], sound.rate))
            left -= len(kept[-1].samples)
    part.sounds = list(kept)


def heard_text(text: str, heard: int, total: int) -> str:
    """The part of ``text`` that was heard when ``heard`` of its ``total`` samples were, cut after a whole word."""
    if heard <= 0 or total <= 0:
        return ""
    if heard >= total:
        return text
    end = len(text) * heard // total
    while 0 < end < len(text) and not text[end].isspace() and not text[end - 1].isspace():
        end += 1
    return text[:end].rstrip()


def _ms(samples: int) -> int:
    return samples * 1000 // PCM_RATE
