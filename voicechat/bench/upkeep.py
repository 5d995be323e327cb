"""What a server holds, seen from outside: slots, sessions, tasks, memory, descriptors and shared memory files."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from voicechat.bench.outcome import BenchError
from voicechat.bench.served import Served

_SETTLE_S = 40.0


@dataclass(frozen=True, slots=True)
class Holdings:
    """At one moment. ``rss_kb`` is that of the server's own process; what its stages hold is not counted."""

    slots_free: int
    slots_total: int
    waiting: int
    tasks: int
    rss_kb: int
    descriptors: int
    shared_files: int

    def to_dict(self) -> dict[str, int]:
        """As JSON."""
        return asdict(self)


async def stats_of(served: Served) -> dict[str, Any]:
    """The server's figures. Raises :class:`BenchError` if it tells none, or runs on another machine."""
    stats: dict[str, Any] = await served.client.get_json("/v1/stats")
    if "pid" not in stats or not _is_here(stats["pid"]):
        raise BenchError("the server's process can't be seen from here: run this on its machine, as its user", 2)
    return stats


async def holdings(served: Served) -> Holdings:
    """What it holds now."""
    stats = await stats_of(served)
    slots, (rss, descriptors, shared) = stats["slots"], _of_process(stats["pid"])
    return Holdings(
        slots_free=slots["free"],
        slots_total=slots["total"],
        waiting=slots["waiting"],
        tasks=stats["tasks"],
        rss_kb=rss,
        descriptors=descriptors,
        shared_files=shared,
    )


def _is_here(pid: int) -> bool:
    """Whether a process of this machine has that id, and may be looked into."""
    return os.access(f"/proc/{pid}/fd", os.R_OK)


def _of_process(pid: int) -> tuple[int, int, int]:
    """Resident KiB, open descriptors, and how many pools there are on this machine."""
    process = Path(f"/proc/{pid}")
    rss = next(line for line in (process / "status").read_text().splitlines() if line.startswith("VmRSS"))
    shared = len(list(Path("/dev/shm").glob("voicechat-*")))
    return int(rss.split()[1]), len(list((process / "fd").iterdir())), shared


async def at_rest(served: Served, before: Holdings | None = None) -> Holdings:
    """What it holds once all slots are free, and no more tasks and descriptors are there than ``before``; or after
    some time, as it is then."""
    end = time.monotonic() + _SETTLE_S
    while True:
        now = await holdings(served)
        if not lost(before or now, now) or time.monotonic() > end:
            return now
        await asyncio.sleep(0.25)


def lost(before: Holdings, after: Holdings) -> list[str]:
    """What has not come back, in words."""
    found = []
    if after.slots_free != after.slots_total or after.waiting:
        found.append(f"{after.slots_total - after.slots_free} slots are not free, {after.waiting} requests wait")
    for name, most in (("tasks", 2), ("descriptors", 4), ("shared_files", 0)):
        if (more := getattr(after, name) - getattr(before, name)) > most:
            found.append(f"{more} {name.replace('_', ' ')} more than before")
    return found


async def rude(served: Served) -> None:
    """Ask for a long answer, and be gone in its middle without a word."""
    body = {
        "model": served.model,
        "messages": [{"role": "user", "content": "Tell me a long story."}],
        "modalities": ["text", "audio"],
        "audio": {"voice": served.client.voice, "format": "pcm16"},
        "stream": True,
    }
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(30.0):
            url = f"{served.client.base}/v1/chat/completions"
            response = await served.http.post(url, json=body, headers=served.client.headers)
            await response.content.readany()
            response.close()  # not released: the connection is cut


async def connect(served: Served, *, rudely: bool) -> bool:
    """Open a realtime session and leave it, with or without closing it; False if it was refused."""
    url = f"{served.client.base}/v1/realtime?model={served.model}"
    try:
        ws = await served.http.ws_connect(url, headers=served.client.headers)
    except OSError:
        return False
    except Exception as error:  # aiohttp's refusals share no narrower base with a status
        if getattr(error, "status", None) is None:
            raise
        return False
    await ws.receive()
    if rudely:
        transport = ws._response.connection.transport if ws._response.connection is not None else None
        if transport is not None:
            transport.abort()
    await ws.close()
    return True
