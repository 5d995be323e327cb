"""What is to be said of a :class:`~voicechat.bench.realtime_scene.Trace`. Pure; all times are the client's."""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from voicechat.bench.measures import Continuity, play
from voicechat.bench.realtime_player import RATE
from voicechat.bench.realtime_rest import STEP_S, gap_s, heard_in_full, replies_of
from voicechat.bench.realtime_scene import MISSED_S, Trace
from voicechat.bench.realtime_trace import Piece
from voicechat.bench.script import Expect

DIP_S = 0.1
"""A reply that stood still for longer than this was held."""

SYLLABLE_S = 0.2
"""Who hears more than this of an answer while still speaking was cut off."""

_BETWEEN_S = 0.06
"""Sound this long before the event that announces it is of the new reply: the two travel apart."""

_IN_FLIGHT_S = 0.3
_RTC_RATE = 48_000
_UNDER_S = 0.6
_SOON_S = 0.5
_FILLERS = frozenset("um uh hmm er well so".split())


class Fault(enum.StrEnum):
    """What may go wrong with a turn."""

    CUT_OFF = "cut-off"
    MISSED_TURN = "missed turn"
    FALSE_TURN = "false turn"
    FALSE_INTERRUPT = "false interrupt"
    MISSED_INTERRUPT = "missed interrupt"


@dataclass(slots=True)
class Verdict:
    """One turn. ``figures`` and ``stages`` in seconds; ``void`` says why it can't count; ``error`` that it failed.

    ``dip_s``: how long a reply that went on stood still because of what was heard in it;
    ``starts``: events ``speech_started`` since it began; ``taken_back``: ends of the turn that
    were; ``words_found``: share of the expected words in ``heard``;
    ``late_s``: by how much the client's microphone was late at most, which is no fault of the server's.
    """

    name: str
    kind: str
    expect: str
    voice: str
    transport: str
    faults: list[Fault] = field(default_factory=list)
    void: str | None = None
    error: str | None = None
    heard: str = ""
    answer: str = ""
    words_found: float | None = None
    figures: dict[str, float] = field(default_factory=dict)
    stages: dict[str, float] = field(default_factory=dict)
    continuity: Continuity | None = None
    dip_s: float | None = None
    starts: int = 0
    taken_back: int = 0
    late_s: float = 0.0
    violations: list[str] = field(default_factory=list)
    server_errors: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def judge(trace: Trace) -> Verdict:
    """The verdict on one turn."""
    entry = trace.recording.entry
    verdict = Verdict(entry.name, entry.kind, entry.expect, trace.recording.voice, trace.transport)
    verdict.starts = len(trace.record.all("input_audio_buffer.speech_started", trace.first_s))
    match entry.expect:
        case Expect.ONE_TURN:
            _judge_turn(verdict, trace, trace.last_s)
            verdict.continuity = _continuity(trace)
        case Expect.NO_TURN:
            if _created(trace):
                verdict.faults.append(Fault.FALSE_TURN)
        case Expect.NO_INTERRUPTION:
            _judge_reply(verdict, trace)
        case Expect.INTERRUPTION:
            _judge_interruption(verdict, trace)
    verdict.heard = " ".join(_transcripts(trace))
    if entry.words and not verdict.void:
        verdict.words_found = words_found(entry.words, verdict.heard)
    verdict.answer = _answer(trace)
    return verdict


def words_found(expected: str, heard: str) -> float:
    """The share of the words of ``expected`` that are in ``heard`` in the same order, fillers aside."""
    wanted = [word for word in _words(expected) if word not in _FILLERS]
    if not wanted:
        return 1.0
    matcher = difflib.SequenceMatcher(None, wanted, _words(heard), autojunk=False)
    return sum(block.size for block in matcher.get_matching_blocks()) / len(wanted)


def _judge_turn(verdict: Verdict, trace: Trace, since: float) -> None:
    """Something was said that wants an answer, and only one; sound before ``since`` is not of the answer."""
    deleted = {event["item_id"] for _, event in trace.record.all("conversation.item.deleted", trace.first_s)}
    committed = trace.record.all("input_audio_buffer.committed", trace.first_s)
    commits = [(at, event) for at, event in committed if event["item_id"] not in deleted]
    verdict.taken_back = len(committed) - len(commits)
    spoken_into = _heard_before(trace, trace.last_s)
    if verdict.taken_back:
        verdict.figures["heard_before_taken_back_s"] = spoken_into
        since = max(since, trace.last_s)
    cut = [at for at, _ in commits if at < trace.last_s]
    created = _created(trace)
    if cut or spoken_into > SYLLABLE_S:
        verdict.faults.append(Fault.CUT_OFF)
    elif not created:
        verdict.faults.append(Fault.MISSED_TURN)
    elif len(commits) > 1:
        verdict.faults.append(Fault.FALSE_TURN)
    failed = next((_why(response) for response in _done(trace) if response["status"] == "failed"), None)
    if failed is not None:
        verdict.error = f"the reply failed: {failed}"
        return
    if Fault.CUT_OFF in verdict.faults or not created:
        return
    dropped = [response["id"] for response in _done(trace) if response["status"] == "cancelled"]
    if not verdict.taken_back and not _all_went_on(trace, dropped):
        verdict.faults.append(Fault.FALSE_INTERRUPT)  # nobody spoke
        return
    first = next((piece for piece in _pieces(trace) if piece.received >= since and piece.audible), None)
    if first is None or first.played is None:
        verdict.error = "the answer's sound was not received"
        return
    decided = next((at for at, _ in commits), None)
    verdict.figures["voice_to_voice_s"] = first.received - trace.last_s
    verdict.figures["voice_to_ear_s"] = first.played - trace.last_s
    if decided is not None:
        verdict.figures["turn_decided_s"] = decided - trace.last_s
        verdict.figures["decided_to_voice_s"] = first.received - decided
    for response in _done(trace):
        verdict.stages = {
            name.removesuffix("_ms"): float(value) / 1000
            for name, value in (response.get("metadata") or {}).items()
            if name.endswith("_ms")
        }


def _heard_before(trace: Trace, moment: float) -> float:
    """Seconds of audible sound of an answer that were heard before ``moment``: the speaker was not done."""
    chain = _replies(trace)
    begun = min(_created(trace), default=moment)
    return sum(
        len(piece.pcm) / (_RTC_RATE if trace.transport == "webrtc" else RATE)
        for piece in _pieces(trace)
        if piece.audible and not _is_old(piece, chain, begun) and begun <= _heard_at(trace, piece) < moment
    )


def _judge_reply(verdict: Verdict, trace: Trace) -> None:
    """Something was heard in a reply that is to go on."""
    end = _reply_end(trace)
    stop = trace.record.stop_of(trace.reply)
    if stop is None and end is not None and end < trace.first_s + min(_UNDER_S, trace.last_s - trace.first_s):
        verdict.void = "the reply was over too soon"
        return
    chain = _replies(trace)
    if stop is not None and not _all_went_on(trace, chain[:1]):
        verdict.faults.append(Fault.FALSE_INTERRUPT)
        return
    if _created(trace):
        verdict.faults.append(Fault.FALSE_TURN)
    if trace.transport == "ws":
        verdict.dip_s = gap_s(trace.record, chain)
    else:
        stall = _stall(trace, trace.reply)
        verdict.dip_s = None if stall is None else min(stall, _silence(trace))


def _judge_interruption(verdict: Verdict, trace: Trace) -> None:
    """Something was said in a reply that is to stop, and to be answered."""
    chain = _replies(trace)
    end, stop = _reply_end(trace), trace.record.stop_of(chain[-1])
    if stop is None and end is not None and end < trace.first_s + MISSED_S:
        verdict.void = "the reply was over too soon"
        return
    if stop is not None and stop < trace.first_s:
        verdict.faults.append(Fault.FALSE_INTERRUPT)
        return
    if stop is None or stop > trace.first_s + MISSED_S:
        verdict.faults.append(Fault.MISSED_INTERRUPT)
        return
    boundary = _next_begins(trace, stop)
    old = [_heard_at(trace, piece) for piece in _pieces(trace) if piece.audible and _is_old(piece, chain, boundary)]
    verdict.figures["barge_in_stop_s"] = max(0.0, max(old, default=0.0) - trace.first_s)
    verdict.figures["stop_decided_s"] = stop - trace.first_s
    _judge_turn(verdict, trace, max(trace.last_s, boundary))


def _is_old(piece: Piece, chain: list[str], boundary: float) -> bool:
    """True if a piece is of the reply that was to be interrupted."""
    if piece.reply is not None:
        return piece.reply in chain
    return piece.received < boundary


def _heard_at(trace: Trace, piece: Piece) -> float:
    """When the listener heard the piece's last audible part, about: it left the player, or came over the track."""
    return piece.received if trace.transport == "webrtc" else (piece.played or 0.0)


def _next_begins(trace: Trace, stop: float) -> float:
    """From when on sound is of the next reply."""
    if trace.transport == "ws":
        return stop
    started = trace.record.first("output_audio_buffer.started", stop)
    late = stop + _IN_FLIGHT_S
    return late if started is None else min(late, started - _BETWEEN_S)


def _pieces(trace: Trace) -> Iterator[Piece]:
    """What was heard; over WebSocket, of the answer, also what came but was not played is no part of it."""
    return (piece for piece in trace.record.pieces if piece.played is not None)


def _replies(trace: Trace) -> list[str]:
    """The reply in which something was heard, and what went on with it."""
    return replies_of(trace.record, trace.reply)


def _all_went_on(trace: Trace, stopped: list[str]) -> bool:
    """True if responses that were stopped were one reply, the rest of which was heard."""
    if not stopped:
        return True
    record, chain = trace.record, replies_of(trace.record, stopped[0])
    return set(stopped) <= set(chain) and record.stop_of(chain[-1]) is None and heard_in_full(record, chain)


def _created(trace: Trace) -> list[float]:
    """When responses were begun because of what was heard."""
    created = trace.record.all("response.created", trace.first_s)
    chain = _replies(trace)
    return [at for at, event in created if event["response"]["id"] not in chain]


def _done(trace: Trace) -> list[dict[str, Any]]:
    """Responses to what was heard that are over."""
    responses = [event["response"] for _, event in trace.record.all("response.done", trace.first_s)]
    chain = _replies(trace)
    return [response for response in responses if response["id"] not in chain]


def _reply_end(trace: Trace) -> float | None:
    """When the reply had been played to its end; None if it was not."""
    if trace.record.stop_of(trace.reply) is not None:
        return None
    if trace.transport == "webrtc":
        ends = [at for at, e in trace.record.all("output_audio_buffer.stopped") if e["response_id"] == trace.reply]
        return min(ends, default=None)
    if not any(event["response"]["id"] == trace.reply for _, event in trace.record.all("response.done")):
        return None
    return max((piece.played for piece in _pieces(trace) if piece.reply == trace.reply and piece.played), default=None)


def _stall(trace: Trace, response_id: str | None) -> float | None:
    """Seconds for which a reply over WebRTC stood still: how much longer it played than it is."""
    moments = {
        kind: next((at for at, event in trace.record.all(kind) if event["response_id"] == response_id), None)
        for kind in ("output_audio_buffer.started", "output_audio_buffer.stopped")
    }
    started, stopped = moments.values()
    tokens = next(
        (
            (event["response"].get("usage") or {}).get("output_token_details", {}).get("audio_tokens")
            for _, event in trace.record.all("response.done")
            if event["response"]["id"] == response_id
        ),
        None,
    )
    if started is None or stopped is None or not tokens:
        return None
    return max(0.0, stopped - started - tokens * STEP_S)


def _silence(trace: Trace) -> float:
    """Seconds of the longest silence that began while, or soon after, something was heard in the reply."""
    longest = 0.0
    last: float | None = None
    for piece in _pieces(trace):
        if not piece.audible:
            continue
        if last is not None and trace.first_s <= last <= trace.last_s + _SOON_S:
            longest = max(longest, piece.received - last)
        last = piece.received
    return longest


def _continuity(trace: Trace) -> Continuity | None:
    """How the answer plays."""
    responses = [response for response in _done(trace) if response["status"] in ("completed", "incomplete")]
    if len(responses) != 1:
        return None
    response_id = responses[0]["id"]
    if trace.transport == "ws":
        chunks = trace.record.chunks.get(response_id)
        return play(chunks) if chunks else None
    stall = _stall(trace, response_id)
    return None if stall is None else Continuity(stall, stall, int(stall > STEP_S))


def _transcripts(trace: Trace) -> list[str]:
    kind = "conversation.item.input_audio_transcription.completed"
    return [event["transcript"] for _, event in trace.record.all(kind, trace.first_s) if event["transcript"]]


def _answer(trace: Trace) -> str:
    deltas = trace.record.all("response.output_audio_transcript.delta", trace.first_s)
    chain = _replies(trace)
    return "".join(event["delta"] for _, event in deltas if event["response_id"] not in chain)


def _why(response: dict[str, Any]) -> str:
    details = response.get("status_details") or {}
    return str((details.get("error") or {}).get("message") or details.get("reason") or response["status"])


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower().replace("'", ""))
