"""Keeps what happened in a turn, for people to listen to: a stereo WAV (left the microphone, right the loudspeaker) and
the events."""

from __future__ import annotations

import json
import wave
from pathlib import Path

import numpy as np

from voicechat.bench.realtime_judge import Verdict
from voicechat.bench.realtime_scene import Trace
from voicechat.bench.realtime_trace import Event, Line


def keep(path: Path, line: Line, trace: Trace | None, verdict: Verdict) -> None:
    """Write ``path``.wav and ``path``.json. Times in the latter are seconds since the first frame was sent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    microphone, record = line.microphone, line.record
    begun = microphone.begun or 0.0
    if microphone.sent:
        left = np.concatenate(microphone.sent)
        right = np.zeros(len(left), np.int16)
        for piece in record.pieces:
            if piece.played is not None:
                start = round((piece.played - begun) * microphone.rate)
                room = right[max(0, start) : max(0, start) + len(piece.pcm)]
                room[:] = piece.pcm[: len(room)]
        with wave.open(str(path.with_suffix(".wav")), "wb") as file:
            file.setnchannels(2)
            file.setsampwidth(2)
            file.setframerate(microphone.rate)
            file.writeframes(np.stack([left, right], axis=1).astype("<i2").tobytes())
    told = {
        "verdict": verdict.to_dict(),
        "voiced": [] if trace is None else [[round(at - begun, 3) for at in span] for span in trace.spans_s],
        "stops": [[round(at - begun, 3), reply] for at, reply in record.stops],
        "events": [[round(at - begun, 3), _short(event)] for at, event in record.events],
    }
    path.with_suffix(".json").write_text(json.dumps(told, ensure_ascii=False, indent=1), encoding="utf-8")


def _short(event: Event) -> Event:
    """Without the sound."""
    if event["type"] != "response.output_audio.delta":
        return event
    return {**event, "delta": f"({len(event['delta'])} characters)"}
