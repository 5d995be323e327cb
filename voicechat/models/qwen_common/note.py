"""What a Talker has to know of the Thinker's prompt: it travels once, as bytes, with the reply's first text."""

from __future__ import annotations

import msgspec


class Image(msgspec.Struct, frozen=True, array_like=True):
    """An image: ``rows`` x ``columns`` positions from ``start`` on."""

    start: int
    rows: int
    columns: int


class Note(msgspec.Struct, frozen=True, array_like=True):
    """A prompt of ``length`` positions, placeholders of sounds and images counted as the model sees them.

    ``users``: spans (begin, end) of the user's turns, their role tokens included. ``sounds``: spans of sounds.
    """

    length: int
    users: tuple[tuple[int, int], ...]
    sounds: tuple[tuple[int, int], ...] = ()
    images: tuple[Image, ...] = ()

    def encode(self) -> bytes:
        """As bytes."""
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decode(data: bytes) -> Note:
        """From bytes."""
        return msgspec.msgpack.decode(data, type=Note)


def rope_positions(
    spans: tuple[tuple[int, int], ...], images: tuple[Image, ...], tail: int
) -> tuple[list[tuple[int, int, int]], int]:
    """Place in time, height and width of each position of ``spans`` of a prompt, and of ``tail`` more behind them.

    Text and sound count on in all three alike; the positions of an image share one time and have its rows and columns,
    and what follows it goes on behind the largest (M-RoPE of the Qwen2-VL report). The second result is what has to be
    added to the number of a position that comes behind all these.
    """
    by_start = {image.start: image for image in images}
    made: list[tuple[int, int, int]] = []
    place = 0
    for begin, end in spans:
        at = begin
        while at < end:
            image = by_start.get(at)
            if image is None:
                made.append((place,) * 3)
                place, at = place + 1, at + 1
                continue
            made += [
                (place, place + row, place + column) for row in range(image.rows) for column in range(image.columns)
            ]
            place += max(image.rows, image.columns)
            at += image.rows * image.columns
    made += [(place + step,) * 3 for step in range(tail)]
    return made, place + tail - len(made)
