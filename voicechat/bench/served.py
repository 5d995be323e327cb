"""The server that is measured or asked: one that runs already, or one that is started for as long as it is needed."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import os
import shlex
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from voicechat.assemble import AssembledPaths, AssembleError, assemble
from voicechat.bench.chat_client import ChatClient, ClientError
from voicechat.bench.child import child_server
from voicechat.bench.machine import machine_facts
from voicechat.bench.outcome import API_KEY, BenchError
from voicechat.config import ConfigError, Settings, load_settings

_PROGRESS_S = 15.0
"""Seconds between two lines of progress where there is no terminal."""


@dataclass(frozen=True, slots=True)
class Served:
    """A server that is ready. ``start_s``: seconds until it was, if it was started here."""

    settings: Settings
    client: ChatClient
    model: str
    start_s: float | None
    started: str
    machine: dict[str, Any]

    @property
    def http(self) -> aiohttp.ClientSession:
        """For requests that the client does not know."""
        return self.client.http

    def report(self, schema: str, kind: str, settings: dict[str, Any]) -> dict[str, Any]:
        """How every report begins; ``settings`` are the kind's own."""
        return {
            "schema": schema,
            "kind": kind,
            "command": shlex.join(["voicechat", *sys.argv[1:]]),
            "started": self.started,
            "settings": settings,
            "machine": self.machine,
            "model": self.model,
            "server_start_s": self.start_s,
        }

    async def stats(self) -> dict[str, Any] | None:
        """What the server tells of itself; None if it does not."""
        try:
            stats: dict[str, Any] = await self.client.get_json("/v1/stats")
        except ClientError as error:
            say(f"no figures from inside the server: {error}")
            return None
        return stats

    def reach_loopback(self) -> None:
        """Let this process's peer connections use 127.0.0.1, which aiortc would not, if the server is there."""
        from voicechat.media.aioice_adapter import use_host_addresses
        from voicechat.media.ice import IceSettings

        host = urlsplit(self.client.base).hostname or ""
        if host == "localhost" or host.startswith("127."):
            use_host_addresses(IceSettings(interfaces=("none",), loopback=True))


def settings_of(options: argparse.Namespace) -> Settings:
    """The settings of the server that is to be started."""
    overrides = list(options.overrides)
    if options.device is not None:
        overrides.append(f"device={options.device}")
    try:
        return load_settings(options.model, overrides=overrides)
    except ConfigError as error:
        raise BenchError(str(error), 2) from None


@contextlib.asynccontextmanager
async def serving(options: argparse.Namespace) -> AsyncIterator[Served]:
    """The server of ``options``, looked at. Raises :class:`BenchError` where there is none."""
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    machine, settings = machine_facts(), settings_of(options)
    limits = aiohttp.ClientTimeout(total=None, sock_connect=60)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=limits) as http:
        async with _running(options, settings, http) as (base, start_s, key):
            client = ChatClient(http, base, api_key=key)
            yield Served(settings, client, await client.look(), start_s, started, machine)


@contextlib.asynccontextmanager
async def _running(
    options: argparse.Namespace, settings: Settings, http: aiohttp.ClientSession
) -> AsyncIterator[tuple[str, float | None, str | None]]:
    """Address of the server, seconds that it took to start if it was started here, and its key."""
    if options.server is not None:
        yield options.server.rstrip("/"), None, os.environ.get(API_KEY)
        return
    arguments = [word for override in options.overrides for word in ("--set", override)]
    for name in ("model", "device"):
        if (value := getattr(options, name)) is not None:
            arguments += [f"--{name}", value]
    key = settings.server.api_keys[0] if settings.server.api_keys else None
    await assembled(settings)
    say(f"starting {settings.model.name}; this takes a while")
    async with child_server(arguments, http=http, timeout_s=300.0) as (base, start_s):
        yield base, start_s, key


async def assembled(settings: Settings) -> AssembledPaths:
    """The folders of the model, made if need be. Raises :class:`BenchError`."""
    try:
        return await asyncio.to_thread(assemble, settings)
    except AssembleError as error:
        raise BenchError(str(error)) from None


def say(text: str) -> None:
    """Tell whoever watches."""
    print(text, file=sys.stderr, flush=True)


class Progress:
    """One line on standard error: kept up to date on a terminal, else every so often."""

    def __init__(self, who: str, what: str, total: int) -> None:
        self._who, self._what, self._total, self._done = who, what, total, 0
        self._begun = self._told = time.monotonic()

    def step(self) -> None:
        """One more is done."""
        self.tell(self._done + 1)

    def tell(self, done: int) -> None:
        """So many are done."""
        self._done = done
        now, terminal, last = time.monotonic(), sys.stderr.isatty(), done == self._total
        if not (terminal or last or now - self._told > _PROGRESS_S):
            return
        self._told = now
        left = (now - self._begun) / done * (self._total - done)
        line = f"{self._who}{done} of {self._total} {self._what}, {left / 60:.0f} min left"
        print(f"\r{line}" if terminal else line, end="\n" if last or not terminal else "", file=sys.stderr, flush=True)
