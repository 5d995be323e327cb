"""``voicechat bench calls``: what calls cost, and how they sound, at one number of them after another.

The callers run in processes of their own (:mod:`voicechat.bench.call_client`); each speaks for about half of the time
and is answered in the other half. ``--cascade double`` measures calls alone, everything of the server but its stages;
``--cascade served`` the whole server. ``--loss`` and ``--jitter`` make the network bad, in both directions.
``--json`` prints one object:

``schema``    "voicechat-calls/1"; ``kind``, ``command``, ``started``, ``machine``, ``model``, ``settings``,
              ``server_start_s`` as in :mod:`voicechat.bench.report`
``runs``      of each number of calls: ``calls``, ``failed``, ``errors`` (by text), ``good`` (calls that a browser's
              jitter buffer played well), ``connect_ms`` (offer posted to first packet of sound), ``core_percent`` (of
              the server's process without its stages, in percent of one core: all calls, and a call), ``loop_lag_ms``,
              ``interval_ms`` (of sent packets, by the kernel's clock), ``sent_share`` (packets that came, of
              those that there are in the time), ``near_share`` (of them within 20 ± 4 ms),
              ``filled_share``, ``underruns`` and ``longest_ms`` of all calls' buffers, ``buffer_ms`` (their mean
              delay), ``replies`` (played to their end), ``client_processes``, ``client_lag_ms``: where it is not small,
              the callers were the bottleneck
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import datetime
import math
import multiprocessing
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import numpy.typing as npt
import uvloop

from voicechat.bench import spoken
from voicechat.bench.call_client import CallClient, CallRecord
from voicechat.bench.call_measures import NEAR_MS, SPACING_MS, buffered, intervals_ms
from voicechat.bench.load_users import process_count
from voicechat.bench.machine import machine_facts
from voicechat.bench.measures import Summary, percentile, summarize
from voicechat.bench.outcome import BenchError, Report, outcome
from voicechat.bench.questions import QUESTIONS
from voicechat.bench.realtime_trace import ROOM_LEVEL, LineError
from voicechat.bench.relay import Weather
from voicechat.bench.served import Served, assembled, say, serving, settings_of
from voicechat.contract.sound import PCM_RATE, Pcm
from voicechat.faces.looplag import LoopLag
from voicechat.media.opus import FRAME_SAMPLES, OpusEncoder
from voicechat.media.resample import to_pcm

SCHEMA = "voicechat-calls/1"
SPEAKING_S = 3.2
PAUSE_S = 3.2
"""Somebody speaks for about so long, and is silent for so long, while the answer is heard."""
ANSWER_S = 2.7
GAP_S = 0.08
"""Between two calls that are made."""
SETTLE_S = 2.0
_START_S = 30.0


@dataclass(frozen=True, slots=True)
class CallPlan:
    """What the callers of a process do: call one after the other from ``begin`` (Unix time) on, every ``gap`` seconds,
    and hang up at ``end``."""

    base: str
    headers: dict[str, str]
    session: dict[str, Any]
    packets: tuple[bytes, ...]
    numbers: tuple[int, ...]
    begin: float
    gap: float
    end: float
    weather: Weather


def main(options: argparse.Namespace) -> int:
    """Run the benchmark; 0 if every call came about and held, 1 if not, 2 if an option can't be used."""
    return outcome(options, lambda: _run(options), as_text, lambda made: any(run["failed"] for run in made["runs"]))


async def _run(options: argparse.Namespace) -> Report:
    _, sounds = await asyncio.to_thread(spoken.speak, QUESTIONS[:4], PCM_RATE)
    said = np.concatenate(sounds)
    turn = np.concatenate([_long(said, SPEAKING_S), np.zeros(round(PAUSE_S * PCM_RATE), np.float32)])
    packets = await asyncio.to_thread(coded, turn)
    answer = to_pcm(_long(said[::-1].copy(), ANSWER_S))  # nobody's words, and not like what is asked
    settings = {
        "concurrency": list(options.concurrency), "seconds": options.seconds, "loss": options.loss,
        "jitter_ms": options.jitter, "cascade": "served" if options.server else options.cascade,
        "overrides": list(options.overrides),
    }  # fmt: skip
    if settings["cascade"] == "served":
        options.overrides = [*options.overrides, f"server.max_sessions={max(options.concurrency) + 1}"]
        async with serving(options) as served:
            runs = [await _step(options, _Target.of(served), packets, calls) for calls in options.concurrency]
            return {**served.report(SCHEMA, "calls", settings), "runs": runs}
    started, machine = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), machine_facts()
    folder = (await assembled(settings_of(options))).detectors
    runs = []
    for calls in options.concurrency:
        async with _alone(options, answer, folder, calls) as target:
            runs.append(await _step(options, target, packets, calls))
    head = {"schema": SCHEMA, "kind": "calls", "command": " ".join(["voicechat", *sys.argv[1:]]), "started": started}
    return {**head, "settings": settings, "machine": machine, "model": "double", "server_start_s": None, "runs": runs}


def _long(sound: npt.NDArray[np.float32], seconds: float) -> npt.NDArray[np.float32]:
    return np.resize(sound, round(seconds * PCM_RATE)).astype(np.float32)


def coded(sound: npt.NDArray[np.float32]) -> tuple[bytes, ...]:
    """A live microphone's packets of ``sound`` (24 kHz): the room is never quite silent."""
    room = np.random.default_rng(7).standard_normal(len(sound)).astype(np.float32) * np.float32(ROOM_LEVEL)
    pcm, encoder = to_pcm(sound + room), OpusEncoder()
    last = len(pcm) - FRAME_SAMPLES + 1
    return tuple(encoder.encode(pcm[at : at + FRAME_SAMPLES]) for at in range(0, last, FRAME_SAMPLES))


@dataclass(frozen=True, slots=True)
class _Target:
    """A server that runs."""

    base: str
    headers: dict[str, str]
    http: aiohttp.ClientSession

    @classmethod
    def of(cls, served: Served) -> _Target:
        return cls(served.client.base, served.client.headers, served.http)

    async def stats(self, seconds: float) -> dict[str, Any]:
        """What it tells of itself; loop lag of the last ``seconds``."""
        url = f"{self.base}/v1/stats?lag_seconds={seconds:g}"
        async with self.http.get(url, headers=self.headers) as response:
            if response.status != 200:
                raise BenchError(f"the server tells nothing of itself: HTTP {response.status}")
            found: dict[str, Any] = await response.json()
        return found


@contextlib.asynccontextmanager
async def _alone(options: argparse.Namespace, answer: Pcm, detectors: Path, calls: int) -> AsyncIterator[_Target]:
    """A server for calls alone, as a process of its own."""
    with tempfile.TemporaryDirectory(prefix="voicechat-bench-") as folder:
        np.save(sound := Path(folder) / "answer.npy", answer)
        words = ["--sound", str(sound), "--detectors", str(detectors), "--sessions", str(calls + 1)]
        if options.profile is not None:
            words += ["--profile", str(options.profile)]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "voicechat.bench.calls_server", *words, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(_START_S), aiohttp.ClientSession() as http:
                base = (await process.stdout.readline()).decode().strip()
            if not base:
                raise BenchError("the server for calls alone did not start")
            async with aiohttp.ClientSession() as http:
                yield _Target(base, {}, http)
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def _step(options: argparse.Namespace, target: _Target, packets: tuple[bytes, ...], calls: int) -> dict[str, Any]:
    """One number of calls."""
    processes = min(calls, options.client_processes or process_count(calls))
    say(f"{calls} calls for {options.seconds:g} s")
    heard = {"turn_detection": {"type": options.detection}, "transcription": {"model": "whisper-1"}}
    session = {"type": "realtime", "audio": {"input": heard}}
    ramp = calls * GAP_S + SETTLE_S
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        await asyncio.gather(*(loop.run_in_executor(pool, _warm) for _ in range(processes)))
        begin = time.time() + 0.3
        weather = Weather(loss=options.loss / 100, jitter_ms=options.jitter)
        work = []
        for number in range(processes):
            mine = tuple(range(number, calls, processes))
            plan = CallPlan(
                target.base, target.headers, session, packets, mine, begin, GAP_S, begin + ramp + options.seconds + 0.5,
                weather,
            )  # fmt: skip
            work.append(loop.run_in_executor(pool, call_all, plan))
        await asyncio.sleep(begin + ramp - time.time())
        before, since = await target.stats(1), time.time()
        await asyncio.sleep(options.seconds)
        after, until = await target.stats(min(60.0, options.seconds)), time.time()
        found = await asyncio.gather(*work)
    records = [record for some, _ in found for record in some]
    used = 100 * (after["cpu_s"] - before["cpu_s"]) / (until - since)
    return {
        "seconds": options.seconds,
        **measured(records, since, until),
        "core_percent": {"all": used, "call": used / calls},
        "loop_lag_ms": after["loop_lag_ms"],
        "client_processes": processes,
        "client_lag_ms": {"p50": max(lag[0] for _, lag in found), "p99": max(lag[1] for _, lag in found)},
    }


def measured(records: Sequence[CallRecord], since: float, until: float) -> dict[str, Any]:
    """The figures of calls, of their sound those from ``since`` to ``until``."""
    windows = [[packet for packet in record.packets if since <= packet.at <= until] for record in records]
    intervals = [value for packets in windows for value in intervals_ms(packets)]
    heard = [one for packets in windows if (one := buffered(packets)) is not None]
    connects = [1000 * (record.packets[0].at - record.posted) for record in records if record.packets]
    spread = {f"p{100 * share:g}": percentile(intervals, share) for share in (0.01, 0.5, 0.99)} if intervals else {}
    near = sum(abs(value - SPACING_MS) <= NEAR_MS for value in intervals)
    return {
        "calls": len(records),
        "failed": sum(record.error is not None for record in records),
        "errors": dict(collections.Counter(record.error for record in records if record.error is not None)),
        "good": sum(one.good for one in heard),
        "replies": sum(record.replies for record in records),
        "connect_ms": _dict(summarize(connects)),
        "interval_ms": spread or None,
        "sent_share": sum(map(len, windows)) / (50 * (until - since) * len(records)),
        "near_share": near / len(intervals) if intervals else None,
        "filled_share": sum(one.share for one in heard) / len(heard) if heard else None,
        "underruns": sum(one.underruns for one in heard),
        "longest_ms": 1000 * max((one.longest_s for one in heard), default=0.0),
        "buffer_ms": 1000 * sum(one.delay_s for one in heard) / len(heard) if heard else None,
    }


def _dict(summary: Summary | None) -> dict[str, Any] | None:
    return None if summary is None else asdict(summary)


def _warm() -> None:
    from voicechat.stages.host import die_with_parent

    die_with_parent()
    time.sleep(0.3)  # so that another process takes the next


def call_all(plan: CallPlan) -> tuple[list[CallRecord], tuple[float, float]]:
    """The callers of this process, and its event loop's lag in milliseconds, p50 and p99."""
    return uvloop.run(_call_all(plan))


async def _call_all(plan: CallPlan) -> tuple[list[CallRecord], tuple[float, float]]:
    lag = LoopLag()
    measuring = asyncio.create_task(lag.measure())
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            records = await asyncio.gather(*(_call(http, plan, number) for number in plan.numbers))
    finally:
        measuring.cancel()
    return records, (lag.percentile_ms(50), lag.percentile_ms(99))


async def _call(http: aiohttp.ClientSession, plan: CallPlan, number: int) -> CallRecord:
    # the golden ratio spreads the callers' turns, and their packets, evenly over time
    first = int(number * 0.618034 % 1 * len(plan.packets))
    await asyncio.sleep(plan.begin + number * plan.gap + 0.02 * (number * 0.618034 % 1) - time.time())
    client = CallClient(plan.packets, first, plan.weather, number, "127.0.0.1")
    try:
        await client.open(http, plan.base, plan.headers, plan.session)
        await asyncio.sleep(max(0.0, plan.end - time.time()))
    except LineError as error:
        client.record.error = str(error)
    finally:
        await client.close()
    return client.record


def as_text(report: Report) -> str:
    """A table, one line a number of calls."""
    machine = report["machine"]
    lines = [
        f"calls, {report['model']}: {machine['cpu']}, {machine['cores']} cores, load before {machine['load_before']}",
        "",
        f"{'calls':>5}{'failed':>7}{'good':>5}{'connect p50':>12}{'p95 ms':>7}{'core %':>8}{'a call':>7}{'lag p50':>8}"
        f"{'p99 ms':>7}{'interval p1':>12}{'p50':>6}{'p99 ms':>7}{'20±4 %':>7}{'filled %':>9}{'worst ms':>9}"
        f"{'buffer ms':>10}{'replies':>8}",
    ]
    for run in report["runs"]:
        connect, interval, lag = run["connect_ms"] or {}, run["interval_ms"] or {}, run["loop_lag_ms"]
        cost = run["core_percent"]
        lines.append(
            f"{run['calls']:5d}{run['failed']:7d}{run['good']:5d}{_n(connect.get('p50')):>12}{_n(connect.get('p95')):>7}"
            f"{cost['all']:8.1f}{cost['call']:7.2f}{lag['p50']:8.2f}{lag['p99']:7.1f}{_n(interval.get('p1'), 1):>12}"
            f"{_n(interval.get('p50'), 1):>6}{_n(interval.get('p99'), 1):>7}{_n(run['near_share'], 1, 100):>7}"
            f"{_n(run['filled_share'], 2, 100):>9}{run['longest_ms']:9.0f}{_n(run['buffer_ms']):>10}{run['replies']:8d}"
        )
    for run in report["runs"]:
        lines += [f"{run['calls']} calls: {count} x {text}" for text, count in run["errors"].items()]
    return "\n".join(lines)


def _n(value: float | None, digits: int = 0, scale: float = 1.0) -> str:
    return "-" if value is None or math.isnan(value) else f"{scale * value:.{digits}f}"
