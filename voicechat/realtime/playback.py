"""What the listener has heard, as far as the server can know. Pure.

Over WebRTC the server plays, and knows to the sample what left (:meth:`Playback.on_played`); it then truncates a reply
that is cut off by itself, and sends ``output_audio_buffer.*``. Over WebSocket the client plays and truncates; the
server only guesses, from what it sent and when, whether the client is still playing.
"""

from __future__ import annotations

from dataclasses import dataclass

from voicechat.contract.sound import PCM_RATE, Pcm
from voicechat.realtime.conversation import Conversation
from voicechat.realtime.items import Item
from voicechat.realtime.outbox import (
    BeginAudio,
    ClearAudio,
    EndAudio,
    HoldAudio,
    Outbox,
    Place,
    PlayAudio,
    ReleaseAudio,
)


@dataclass(slots=True)
class _Stream:
    """The sound of one reply, from its first sample until it has been played or was stopped. ``since``: when its first
    sound was sent."""

    place: Place
    item: Item
    pushed: int = 0
    played: int = 0
    ended: bool = False
    sounding: bool = False
    held: bool = False
    since: float | None = None


class Playback:
    """One stream at a time. ``server``: the server plays (see the module)."""

    def __init__(self, out: Outbox, conversation: Conversation, *, server: bool) -> None:
        self._out = out
        self._conversation = conversation
        self._server = server
        self._stream: _Stream | None = None
        self._until = 0.0

    @property
    def busy(self) -> bool:
        """True while the server has sound to play, or expects it."""
        return self._server and self._stream is not None

    @property
    def sounding(self) -> bool:
        """True while a reply is heard."""
        if self._server:
            return self._stream is not None and self._stream.sounding
        return self._out.now < self._until

    @property
    def held(self) -> bool:
        """True while the sound waits because somebody may be interrupting."""
        return self._stream is not None and self._stream.held

    @property
    def pushed(self) -> int:
        """Samples of the current (or last) stream that were made."""
        return 0 if self._stream is None else self._stream.pushed

    @property
    def heard_ms(self) -> float:
        """How much of the current stream has been heard, as far as is known; 0 if none is."""
        stream = self._stream
        if stream is None:
            return 0.0
        if self._server:
            return stream.played * 1000 / PCM_RATE
        return 0.0 if stream.since is None else (min(self._out.now, self._until) - stream.since) * 1000

    def begin(self, begin: BeginAudio, item: Item) -> None:
        """The sound of a new part begins. The one before is over, or was cleared."""
        self._stream = _Stream(begin.place, item)
        self._out.add(begin)

    def push(self, pcm: Pcm) -> None:
        """The next sound of the stream."""
        stream = self._stream
        if stream is None or stream.ended:
            raise RuntimeError("no stream is open for more sound")
        stream.pushed += len(pcm)
        stream.since = self._out.now if stream.since is None else stream.since
        self._until = max(self._until, self._out.now) + len(pcm) / PCM_RATE
        self._out.add(PlayAudio(stream.place, pcm))

    def end(self) -> None:
        """The stream has no more sound."""
        stream = self._stream
        if stream is not None and not stream.ended:
            stream.ended = True
            self._out.add(EndAudio(stream.place))

    def on_played(self, played: int, *, started: bool, drained: bool) -> bool:
        """A frame has left the server's clock, ``played`` samples in all; True if the stream is over by it."""
        stream = self._stream
        if not self._server or stream is None:
            return False
        stream.played = min(played, stream.pushed)
        if started:
            stream.sounding = True
            self._out.send("output_audio_buffer.started", response_id=stream.place.response_id)
        if drained:
            if stream.sounding:
                self._out.send("output_audio_buffer.stopped", response_id=stream.place.response_id)
            self._stream = None
        return drained

    def hold(self) -> None:
        """Somebody may be interrupting: where the server plays, be silent until that is known."""
        stream = self._stream
        if self._server and stream is not None and stream.sounding and not stream.held:
            stream.held = True
            self._out.add(HoldAudio())

    def release(self) -> None:
        """Nobody is: go on."""
        stream = self._stream
        if stream is not None and stream.held:
            stream.held = False
            self._out.add(ReleaseAudio())

    def clear(self) -> None:
        """Stop the sound at once. :meth:`truncate` is to follow, once the reply is closed."""
        stream = self._stream
        self._until = self._out.now
        if stream is None:
            return
        self._out.add(ClearAudio())
        if self._server and stream.sounding:
            self._out.send("output_audio_buffer.cleared", response_id=stream.place.response_id)
        stream.sounding = False

    def truncate(self) -> None:
        """Forget the stopped stream; where the server played, also what was not heard of it."""
        stream, self._stream = self._stream, None
        if stream is None or not self._server or self._conversation.get(stream.item.id) is not stream.item:
            return
        part = stream.item.parts[stream.place.content_index]
        if stream.played < max(part.samples, part.span):
            self._conversation.cut(stream.item, stream.place.content_index, stream.played)

    def client_truncated(self) -> None:
        """The client says that it has stopped to play."""
        self._until = self._out.now
