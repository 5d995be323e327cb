"""A realtime client over WebRTC, aiortc as it comes: the server plays, and this listens."""

from __future__ import annotations

import time
from typing import Any

import aiohttp
import numpy as np
import numpy.typing as npt

from voicechat.bench.realtime_trace import LineError, LiveMicrophone, News, Piece, Record
from voicechat.bench.rtc_peer import RATE, PacedTrack, Peer


class RtcLine:
    """One call; :meth:`open` makes it. Implements :class:`voicechat.bench.realtime_trace.Line`."""

    transport = "webrtc"

    def __init__(self) -> None:
        self.microphone = LiveMicrophone(RATE)
        self.record = Record()
        self.news = News()
        self._live: set[str] = set()
        self._to_play: set[str] = set()
        self._peer = Peer(
            PacedTrack(self._next_frame),
            on_event=self._on_event, on_sound=self._on_sound, on_lost=self._on_lost, failure=LineError,
        )  # fmt: skip

    @classmethod
    async def open(
        cls, http: aiohttp.ClientSession, base: str, *, headers: dict[str, str], session: dict[str, Any]
    ) -> RtcLine:
        """Call. Raises :class:`LineError`."""
        line = cls()
        await line._peer.connect(http, base, headers=headers, session=session)
        return line

    def tell(self, kind: str, **fields: Any) -> None:
        """Send a client event."""
        self._peer.tell(kind, **fields)

    def busy(self) -> bool:
        """True while the server makes or plays a reply."""
        return bool(self._live or self._to_play)

    async def close(self) -> None:
        """Hang up and release everything."""
        await self._peer.close()

    def _next_frame(self) -> npt.NDArray[np.int16]:
        pcm = self.microphone.next_frame()
        self.microphone.note(pcm, time.perf_counter())
        self.news.tell()
        return pcm

    def _on_sound(self, arrived: float | None, playable: float, samples: npt.NDArray[np.float64]) -> None:
        self.record.pieces.append(Piece(playable if arrived is None else arrived, playable, samples.astype(np.int16)))
        self.news.tell()

    def _on_event(self, now: float, event: dict[str, Any]) -> None:
        match event["type"]:
            case "response.created":
                self._live.add(event["response"]["id"])
            case "response.content_part.added" if event["part"]["type"] == "audio":
                self._to_play.add(event["response_id"])
            case "response.done":
                self._live.discard(event["response"]["id"])
                if event["response"]["status"] in ("cancelled", "failed"):
                    self._to_play.discard(event["response"]["id"])
            case "output_audio_buffer.stopped":
                self._to_play.discard(event["response_id"])
            case "output_audio_buffer.cleared":
                self._to_play.discard(event["response_id"])
                self.record.stops.append((now, event["response_id"]))
        self.record.events.append((now, event))
        self.news.tell()

    def _on_lost(self) -> None:
        self.record.lost = "the call was cut off"
        self.news.tell()
