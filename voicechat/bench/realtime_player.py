"""The loudspeaker of a WebSocket client, simulated: a queue that is played from the moment its first sound comes."""

from __future__ import annotations

from dataclasses import dataclass

from voicechat.bench.realtime_trace import FRAME_S, Pcm, Piece

RATE = 24_000
_PIECE = round(RATE * FRAME_S)


@dataclass(frozen=True, slots=True)
class Place:
    """The part of a conversation that a sound belongs to."""

    response_id: str
    item_id: str
    content_index: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """What a stopped player was playing, and how many milliseconds of it were heard."""

    place: Place
    played_ms: int


class Player:
    """Plays without a gap as long as there is sound, stands still when there is none, goes on when more comes."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.chunks: dict[str, list[tuple[float, float]]] = {}
        """Of each response: (arrival, seconds) of its sound, as :func:`voicechat.bench.measures.play` takes them."""
        self.sounds: dict[str, list[Pcm]] = {}
        """Of each response all sound that came, played or not."""
        self._until = 0.0
        self._queue: list[tuple[Place, Piece]] = []
        self._cut: set[str] = set()

    def push(self, now: float, place: Place, pcm: Pcm) -> None:
        """Sound (int16 ``[n]`` at 24 kHz) has come. What belongs to a stopped item is never played."""
        self.chunks.setdefault(place.response_id, []).append((now, len(pcm) / RATE))
        self.sounds.setdefault(place.response_id, []).append(pcm)
        dead = place.item_id in self._cut
        for start in range(0, len(pcm), _PIECE):
            part = pcm[start : start + _PIECE]
            played = None
            if not dead:
                played = max(now, self._until)
                self._until = played + len(part) / RATE
            piece = Piece(now, played, part, place.response_id)
            self.pieces.append(piece)
            if not dead:
                self._queue.append((place, piece))

    def playing(self, now: float) -> bool:
        """True if there is sound left."""
        return now < self._until

    def stop(self, now: float) -> Stopped | None:
        """Silence, at once; what was being played, None if nothing was."""
        if not self.playing(now):
            return None
        place = next(place for place, piece in self._queue if piece.played is not None and _end(piece) > now)
        played = 0.0
        for owner, piece in self._queue:
            assert piece.played is not None
            if owner == place:
                played += min(max(now - piece.played, 0.0), len(piece.pcm) / RATE)
            if piece.played >= now:
                piece.played = None
            elif _end(piece) > now:
                piece.pcm = piece.pcm[: int((now - piece.played) * RATE)]
        self._cut |= {owner.item_id for owner, piece in self._queue if piece.played is None} | {place.item_id}
        self._queue = []
        self._until = now
        return Stopped(place, int(played * 1000))


def _end(piece: Piece) -> float:
    return (piece.played or 0.0) + len(piece.pcm) / RATE
