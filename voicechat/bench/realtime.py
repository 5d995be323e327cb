"""``voicechat bench realtime``: a scripted set of recordings is spoken to realtime sessions, as a client would.

Every turn has a session of its own, with a live microphone. What the client sent, received and played is judged by
:mod:`voicechat.bench.realtime_judge`; :mod:`voicechat.bench.realtime_report` describes what is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import gc
import shlex
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import aiohttp
from pydantic import TypeAdapter, ValidationError

from voicechat.assemble import assemble
from voicechat.bench.machine import machine_facts
from voicechat.bench.outcome import BenchError, Report, outcome
from voicechat.bench.realtime_judge import Verdict, judge
from voicechat.bench.realtime_keep import keep
from voicechat.bench.realtime_report import SCHEMA, as_text, transport_report
from voicechat.bench.realtime_rtc import RtcLine
from voicechat.bench.realtime_scene import PROMPTS, Trace, act
from voicechat.bench.realtime_trace import Line, LineError
from voicechat.bench.realtime_ws import WsLine
from voicechat.bench.script import Effect, Entry, Recording, Speech
from voicechat.bench.script_set import SETS, Studio, chosen, entries, files_of
from voicechat.bench.script_voices import missing
from voicechat.bench.served import say, serving, settings_of

TRANSPORTS = {"ws": ("ws",), "webrtc": ("webrtc",), "both": ("ws", "webrtc")}
TURNS = 36
"""Of each transport, unless told otherwise: with both it takes about ten minutes."""

_REPLY_TOKENS = 40
_SHORT = "You are a friendly voice assistant. Answer in one short sentence."
_LONG = "You are a friendly voice assistant. Answer at length, in many sentences."
_WARM_UP = "What is the capital of Italy?"
_SIMULATED = "simulated"


def session_of(model: str, detection: str, eagerness: str | None, *, at_length: bool) -> dict[str, Any]:
    """The settings of a session; ``at_length``: its replies are to be spoken into."""
    turns: dict[str, Any] = {"type": detection}
    if detection == "semantic_vad":
        turns["eagerness"] = eagerness or "auto"
    return {
        "type": "realtime",
        "model": model,
        "instructions": _LONG if at_length else _SHORT,
        "max_output_tokens": _REPLY_TOKENS,
        "audio": {"input": {"turn_detection": turns, "transcription": {"model": "whisper-1"}}},
    }


class Conformance:
    """Holds events against the types of the ``openai`` package, if it is installed."""

    def __init__(self) -> None:
        self.events = 0
        self._check: Callable[[Any], object] | None = None
        self._types: dict[str, Any] = {}
        try:
            from openai.types.realtime import RealtimeServerEvent
        except ImportError:
            return
        self._check = TypeAdapter(RealtimeServerEvent).validate_python
        for kind in get_args(get_args(RealtimeServerEvent)[0]):
            for name in get_args(kind.model_fields["type"].annotation):
                self._types[name] = kind

    @property
    def checked(self) -> bool:
        """False if nothing can be checked."""
        return self._check is not None

    def violations(self, events: Sequence[dict[str, Any]]) -> list[str]:
        """What is wrong with ``events``."""
        self.events += len(events)
        found = []
        for event in events if self._check is not None else ():
            try:
                assert self._check is not None
                self._check(event)
            except ValidationError as error:
                found.append(self._why(event, error))
        return found

    def _why(self, event: dict[str, Any], error: Exception) -> str:
        kind = self._types.get(str(event.get("type")))
        if kind is None:
            return f"{event.get('type')}: no such event"
        try:
            kind.model_validate(event)
        except ValidationError as own:
            parts = [f"{'.'.join(map(str, part['loc']))}: {part['msg']}" for part in own.errors()[:3]]
            return f"{event['type']}: {'; '.join(parts)}"
        return f"{event['type']}: {error}"


class Bench:
    """Runs turns against one server."""

    def __init__(
        self, http: aiohttp.ClientSession, base: str, headers: dict[str, str], options: argparse.Namespace,
        prompts: dict[tuple[int, str], Recording], model: str,
    ) -> None:  # fmt: skip
        self._http = http
        self._base = base
        self._headers = headers
        self._options = options
        self._prompts = prompts
        self._model = model
        self.conformance = {transport: Conformance() for transport in TRANSPORTS["both"]}

    async def turn(self, transport: str, recording: Recording) -> Verdict:
        """One turn; again with another prompt if the reply was too short for it."""
        entry = recording.entry
        if not entry.kind.in_reply:
            return await self._try(transport, recording, None)
        speaker = speaker_of(entry)
        for text in PROMPTS:
            verdict = await self._try(transport, recording, self._prompts[speaker, text])
            if verdict.void is None:
                break
        return verdict

    async def _try(self, transport: str, recording: Recording, prompt: Recording | None) -> Verdict:
        entry = recording.entry
        line: Line | None = None
        trace: Trace | None = None
        try:
            opened = WsLine.open if transport == "ws" else RtcLine.open
            options = self._options
            session = session_of(self._model, options.detection, options.eagerness, at_length=prompt is not None)
            line = await opened(self._http, self._base, headers=self._headers, session=session)
            trace = await act(line, recording, prompt)
            verdict = judge(trace)
        except LineError as error:
            verdict = Verdict(entry.name, entry.kind, entry.expect, recording.voice, transport, error=str(error))
        finally:
            if line is not None:
                await line.close()
        if line is not None:
            verdict.late_s = line.microphone.late_s
            events = [event for _, event in line.record.events]
            verdict.violations = self.conformance[transport].violations(events)
            verdict.server_errors = [event["error"]["message"] for event in events if event["type"] == "error"]
            if self._options.keep is not None:
                keep(self._options.keep / transport / entry.name, line, trace, verdict)
        return verdict


def main(options: argparse.Namespace) -> int:
    """Run it; 0 if the run came about, whatever was found."""

    def begin() -> Coroutine[Any, Any, Report]:
        if options.eagerness is not None and options.detection != "semantic_vad":
            raise BenchError("--eagerness is of semantic_vad", 2)
        return _simulated(options) if options.simulate else _run(options)

    return outcome(options, begin, as_text, lambda report: False)


@contextlib.contextmanager
def settled() -> Iterator[None]:
    """What is there now stays: the collector need not look through it in the midst of a turn, in which the client's
    microphone would stand still for as long as 80 ms."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


async def _run(options: argparse.Namespace) -> dict[str, Any]:
    folder = settings_of(options).data_dir.expanduser()
    recordings, warm_up, prompts, total = await asyncio.to_thread(_recordings, options, folder)
    transports = TRANSPORTS[options.transport]
    verdicts: list[Verdict] = []
    async with contextlib.AsyncExitStack() as stack:
        served = await stack.enter_async_context(serving(options))
        served.reach_loopback()
        client = served.client
        bench = Bench(served.http, client.base, client.headers, options, prompts, served.model)
        for _ in range(options.warmup):
            for transport in transports:
                if (failed := (await bench.turn(transport, warm_up)).error) is not None:
                    raise BenchError(f"not a question is answered: {failed}")
        bench.conformance = {transport: Conformance() for transport in transports}
        stack.enter_context(settled())
        for number, recording in enumerate(recordings):
            for transport in transports:
                verdict = await bench.turn(transport, recording)
                verdicts.append(verdict)
                trouble = verdict.error or verdict.void or ", ".join(verdict.faults) or "good"
                say(f"{number + 1:4} of {len(recordings)}  {transport:7} {verdict.name:24} {trouble}")
    if not any(verdict.error is None for verdict in verdicts):
        raise BenchError(f"no turn came about: {verdicts[0].error}")
    return {
        **served.report(SCHEMA, "realtime", _settings(options, recordings, total)),
        "transports": {
            transport: transport_report(
                [verdict for verdict in verdicts if verdict.transport == transport],
                events=bench.conformance[transport].events,
                checked=bench.conformance[transport].checked,
            )
            for transport in transports
        },
        "turns": [verdict.to_dict() for verdict in verdicts],
    }


async def _simulated(options: argparse.Namespace) -> dict[str, Any]:
    from voicechat.bench.simulate import Job, simulate

    if options.server is not None:
        raise BenchError("--simulate needs no --server", 2)
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    settings = settings_of(options)
    folder = settings.data_dir.expanduser()
    recordings, _, prompts, total = await asyncio.to_thread(_recordings, options, folder)
    paths = await asyncio.to_thread(assemble, settings)
    transports = TRANSPORTS[options.transport]
    jobs = []
    for recording in recordings:
        asked = tuple(prompts[speaker_of(recording.entry), text] for text in PROMPTS if recording.entry.kind.in_reply)
        session = session_of(_SIMULATED, options.detection, options.eagerness, at_length=bool(asked))
        jobs += [Job(transport, recording, asked, session) for transport in transports]
    memory = folder / "bench-heard.json"
    stop = threading.Event()
    try:
        verdicts = await asyncio.to_thread(simulate, settings, paths, memory, jobs, stop)
    finally:
        stop.set()  # nobody waits any more: the thread is not to go on to the end
    return {
        "schema": SCHEMA,
        "kind": "realtime",
        "command": shlex.join(["voicechat", *sys.argv[1:]]),
        "started": started,
        "settings": _settings(options, recordings, total),
        "machine": machine_facts(),
        "model": _SIMULATED,
        "server_start_s": None,
        "transports": {
            transport: transport_report(
                [verdict for verdict in verdicts if verdict.transport == transport], events=0, checked=False
            )
            for transport in transports
        },
        "turns": [verdict.to_dict() for verdict in verdicts],
    }


def _settings(options: argparse.Namespace, recordings: Sequence[Recording], total: int) -> dict[str, Any]:
    """What was run, for the report."""
    return {
        "transports": list(TRANSPORTS[options.transport]),
        "turns": len(recordings),
        "detection": options.detection,
        "eagerness": (options.eagerness or "auto") if options.detection == "semantic_vad" else None,
        "voices": list(dict.fromkeys(recording.voice for recording in recordings)),
        "missing": missing(SETS[options.script].voices, files_of(entries(SETS[options.script]))),
        "set": options.script,
        "simulated": options.simulate,
        "script": total,
        "server": options.server,
        "overrides": list(options.overrides),
    }


def speaker_of(entry: Entry) -> int:
    """Who asks for the reply into which ``entry`` is heard."""
    match entry.source:
        case Speech(speaker=number) | Effect(seed=number):
            return number
    return 0


def _recordings(
    options: argparse.Namespace, data: Path
) -> tuple[list[Recording], Recording, dict[tuple[int, str], Recording], int]:
    """The recordings of this run, the question to warm up with, the prompts by (speaker, text), and how many entries
    there are in all."""
    texts = SETS[options.script]
    studio = Studio(data / "bench-voices", texts)
    possible = studio.possible(entries(texts))
    wanted = [entry for entry in possible if entry.name.startswith(options.only)]
    if not wanted:
        raise BenchError(f"no entry's name begins with {options.only!r}", 2)
    all_of_it = options.turns is None and (options.only or options.simulate)
    count = None if all_of_it else options.turns or TURNS
    script = chosen(wanted, count)
    asking = {speaker_of(entry) for entry in script if entry.kind.in_reply}
    asked = [(speaker, text) for speaker in sorted(asking) for text in PROMPTS]
    warm_up, *prompts = studio.say([(0, _WARM_UP), *asked])
    return studio.record(script), warm_up, dict(zip(asked, prompts, strict=True)), len(possible)
