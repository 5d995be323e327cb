"""A real Prometheus scrapes the server by the configuration that we ship, and knows every query of the dashboard and
every alert."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests import needed
from tests.cascade_double import DoubleCascade
from tests.deploy.test_alerts import DEPLOY, metric_names
from tests.ws_server import Server, serving, spoken
from voicechat.contract.errors import Overloaded
from voicechat.faces.app import FaceSettings
from voicechat.faces.metrics import METRICS, Status
from voicechat.media.quality import Quality

DASHBOARD = DEPLOY / "grafana" / "voicechat.json"
CHAT = {"model": "double", "messages": [{"role": "user", "content": "Hello"}]}
SPOKEN = {**CHAT, "modalities": ["text", "audio"], "audio": {"voice": "anna", "format": "wav"}}


def queries() -> list[str]:
    """What the dashboard asks for, with its variables as for all servers."""
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    found = [target["expr"] for panel in panels for target in panel["targets"]]
    return [query.replace("$instance", ".*").replace("$__rate_interval", "10s") for query in found]


def test_the_dashboard_asks_for_metrics_that_are_there() -> None:
    asked = {name for query in queries() for name in re.findall(r"voicechat_\w+", query)}
    names = metric_names()
    assert asked <= names, asked - names
    shown = {re.sub("_(bucket|count|sum)$", "", name) for name in asked}
    assert shown == {re.sub("_(bucket|count|sum)$", "", name) for name in names}, "and each of them is on it"


def test_grafana_finds_the_dashboard_where_compose_puts_it() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    mounts = dict(volume.split(":")[:2] for volume in compose["services"]["grafana"]["volumes"])
    for source in mounts:
        assert (DEPLOY / source).exists(), source
    provisioning = DEPLOY / "grafana" / "provisioning"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "voicechat.yaml").read_text(encoding="utf-8"))[
        "providers"
    ]
    assert str(Path(mounts["./grafana/voicechat.json"]).parent) == provider["options"]["path"]
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text(encoding="utf-8"))[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090" and "prometheus" in compose["services"]


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """Of everything that is counted something has happened, or is about to."""
    async with serving() as start:
        made = await start(DoubleCascade(word_delay=0.001, first_delay=0.001), FaceSettings())
        status = Status(
            False, {"talker": "down"}, {"talker": 1}, {"total": 4, "free": 3, "waiting": 0}, 1, 1 << 20, 0,
            {"0.5": 0.001, "0.99": 0.2},
        )  # fmt: skip
        made.app[METRICS].watch(lambda: status)
        call = Quality(100, 2, 0, 0, 0.004, 0.05)
        made.app[METRICS].watch_calls(lambda: (call, [call]))
        yield made


@pytest.fixture
async def prometheus(server: Server, tmp_path: Path) -> AsyncIterator[str]:
    """Base URL of a Prometheus with our configuration, but for the address and a quicker beat."""
    program = needed.program("prometheus")
    settings = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text(encoding="utf-8"))
    settings["global"] = {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"}
    settings["rule_files"] = [str(DEPLOY / name) for name in settings["rule_files"]]
    (job,) = settings["scrape_configs"]
    job["static_configs"] = [{"targets": [server.base.removeprefix("http://")]}]
    config = tmp_path / "prometheus.yaml"
    config.write_text(yaml.safe_dump(settings))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with (tmp_path / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            program, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address={address}", stdout=log, stderr=log,
        )  # fmt: skip
    try:
        async with asyncio.timeout(60), aiohttp.ClientSession() as http:
            while True:
                assert process.returncode is None, (tmp_path / "log").read_text()
                try:
                    async with http.get(f"http://{address}/-/ready") as reply:
                        if reply.status == 200:
                            break
                except aiohttp.ClientConnectionError:
                    pass
                await asyncio.sleep(0.1)
        yield f"http://{address}"
    finally:
        process.terminate()
        await process.wait()


async def ask(http: aiohttp.ClientSession, url: str, **query: str) -> Any:
    """``data`` of an answer of the API."""
    async with http.get(url, params=query) as reply:
        found = await reply.json()
    assert found["status"] == "success", (query, found)
    return found["data"]


async def until(check: Callable[[], Awaitable[list[str]]]) -> None:
    """Wait until nothing is missing any more."""
    missing: list[str] = []
    try:
        async with asyncio.timeout(60):
            while missing := await check():  # noqa: ASYNC110 - it is another process
                await asyncio.sleep(0.2)
    except TimeoutError:
        pytest.fail(f"still missing: {missing}")


async def test_prometheus_answers_the_dashboard_and_evaluates_the_alerts(server: Server, prometheus: str) -> None:
    async with aiohttp.ClientSession() as http:
        async with server.raw() as raw:
            await raw.say(spoken())
            await raw.until("response.done")
        for body in (CHAT, SPOKEN):
            assert (await http.post(f"{server.base}/v1/chat/completions", json=body)).status == 200
        server.cascade.fail_respond = Overloaded("full")
        assert (await http.post(f"{server.base}/v1/chat/completions", json=CHAT)).status == 429

        async def unanswered() -> list[str]:
            api = f"{prometheus}/api/v1/query"
            return [query for query in queries() if not (await ask(http, api, query=query))["result"]]

        await until(unanswered)

        async def unevaluated() -> list[str]:
            groups = (await ask(http, f"{prometheus}/api/v1/rules"))["groups"]
            return [rule["name"] for group in groups for rule in group["rules"] if rule["health"] != "ok"]

        await until(unevaluated)
        groups = (await ask(http, f"{prometheus}/api/v1/rules"))["groups"]
        states = {rule["name"]: rule["state"] for group in groups for rule in group["rules"]}
        assert len(states) >= 8
        down = {"VoicechatNotReady", "VoicechatStageDown", "VoicechatLoopLag"}
        assert {name for name, state in states.items() if state != "inactive"} >= down, states
        assert states["VoicechatRowFaults"] == "inactive"
