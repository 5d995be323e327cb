"""A bad network in a process: a UDP relay that loses, delays, reorders and doubles what goes through it.

:func:`through` makes the other side of a call go by way of a relay, in both directions. No netem is needed.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Weather:
    """What a network does to a packet. ``loss``: share lost; in runs of ``burst`` packets on average (Gilbert's model;
    1 is independent). ``delay_ms``: of every packet; ``jitter_ms``: up to so much more, evenly spread. ``reorder`` and
    ``duplicate``: shares that are sent late by 30 ms, or twice. ``keep_order``: a delayed packet delays those behind
    it, as in a queue."""

    loss: float = 0.0
    burst: float = 1.0
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    reorder: float = 0.0
    duplicate: float = 0.0
    keep_order: bool = True


class Path:
    """One direction: :meth:`fates` says when copies of a packet come out. ``now`` is in seconds. Pure."""

    def __init__(self, weather: Weather, seed: int) -> None:
        self.weather = weather
        self.blocked = False
        self.passed = self.lost = 0
        self._rng = random.Random(seed)
        self._losing = False
        self._latest = 0.0

    def fates(self, now: float) -> list[float]:
        """The moments at which the packet comes out: none if it is lost."""
        weather, rng = self.weather, self._rng
        if self.blocked or self._lose():
            self.lost += 1
            return []
        self.passed += 1
        due = now + (weather.delay_ms + rng.uniform(0, weather.jitter_ms)) / 1000
        if weather.keep_order:
            due = self._latest = max(due, self._latest)
        if rng.random() < weather.reorder:
            due += 0.03
        return [due, due] if rng.random() < weather.duplicate else [due]

    def _lose(self) -> bool:
        loss, burst = self.weather.loss, max(1.0, self.weather.burst)
        if loss <= 0:
            return False
        if burst == 1.0:
            return self._rng.random() < loss
        leave = 1 / burst
        enter = leave * loss / (1 - loss) if loss < 1 else 1.0
        self._losing = self._rng.random() >= leave if self._losing else self._rng.random() < enter
        return self._losing


class Relay:
    """Listens at :attr:`address` and passes on to ``target``; answers go back to whoever asked. ``up`` is the way to
    the target, ``down`` the way back."""

    def __init__(self, target: Address, weather: Weather, seed: int = 1) -> None:
        self.target = target
        self.address: Address = ("", 0)
        self.up, self.down = Path(weather, seed), Path(weather, seed + 1)
        self._front: asyncio.DatagramTransport | None = None
        self._backs: dict[Address, asyncio.DatagramTransport] = {}
        self._early: dict[Address, list[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, host: str = "127.0.0.1") -> Relay:
        """Open the front door."""
        loop = asyncio.get_running_loop()
        self._front, _ = await loop.create_datagram_endpoint(lambda: _Door(self._from_client), local_addr=(host, 0))
        self.address = self._front.get_extra_info("sockname")[:2]
        return self

    @property
    def blocked(self) -> bool:
        """True while nothing goes through."""
        return self.up.blocked

    @blocked.setter
    def blocked(self, blocked: bool) -> None:
        self.up.blocked = self.down.blocked = blocked

    def close(self) -> None:
        """Close all doors."""
        for task in self._tasks:
            task.cancel()
        for transport in [*self._backs.values(), *([] if self._front is None else [self._front])]:
            transport.close()

    def _from_client(self, data: bytes, client: Address) -> None:
        back = self._backs.get(client)
        if back is not None:
            self._later(self.up, lambda: back.sendto(data))
            return
        waiting = self._early.setdefault(client, [])
        waiting.append(data)
        if len(waiting) == 1:
            task = asyncio.get_running_loop().create_task(self._open(client))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _open(self, client: Address) -> None:
        loop = asyncio.get_running_loop()
        front = self._front
        assert front is not None
        transport, _ = await loop.create_datagram_endpoint(
            lambda: _Door(lambda data, _: self._later(self.down, lambda: front.sendto(data, client))),
            remote_addr=self.target,
        )
        self._backs[client] = transport
        for data in self._early.pop(client, []):
            self._from_client(data, client)

    def _later(self, path: Path, send: Callable[[], object]) -> None:
        now = time.monotonic()
        for due in path.fates(now):
            if due <= now:
                send()
            else:
                asyncio.get_running_loop().call_later(due - now, send)


class _Door(asyncio.DatagramProtocol):
    def __init__(self, take: Callable[[bytes, Address], object]) -> None:
        self._take = take

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        """Called by the event loop."""
        self._take(data, (addr[0], addr[1]))


async def through(answer: str, weather: Weather, seed: int = 1) -> tuple[str, Relay]:
    """An SDP answer whose only address is that of a relay to the first address in it, and the relay."""
    found = re.search(r"^a=candidate:\S+ \d+ udp \d+ (\S+) (\d+) typ host", answer, flags=re.MULTILINE | re.IGNORECASE)
    if found is None:
        raise ValueError("the answer has no address of a host")
    relay = await Relay((found[1], int(found[2])), weather, seed).start()
    host, port = relay.address
    lines = [line for line in answer.splitlines() if not line.startswith("a=candidate:")]
    made = f"a=candidate:relay 1 udp 2130706431 {host} {port} typ host"
    with_it = [more for line in lines for more in ([line, made] if line.startswith("a=ice-pwd:") else [line])]
    return "\r\n".join(with_it) + "\r\n", relay
