"""What tests of all rooms share: assembled models, and servers with every stage real.

A test that asks for ``real_server``, ``embedded_server`` or a cascade of its own runs after all others, and engines of
two kinds are never alive at once, so that two cores and a few GB of memory are enough. With ``--lane engines`` these
run alone, with ``--lane others`` all but these, so that two processes can run all of them side by side.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.real_server import RealServer, Servers
from voicechat.assemble import AssembledPaths, assemble
from voicechat.config import Settings, load_settings

TINY = "embedded-tiny"
_ORDER = ("servers", "stage_host", "embedded_server", "tiny_server", "last_tiny_server", "coordinator")
"""Fixtures that start engines, in the order in which tests that use them run."""

_NOT_INSTALLED = ("could not import", "not installed", "is missing")
"""Words of a skip for want of an installation."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--slow``, the lane, and how long fuzzers may go on."""
    parser.addoption("--lane", choices=("engines", "others"), help="only tests that start engines, or only others")
    parser.addoption("--slow", action="store_true", help="also run the tests that are marked as slow")
    parser.addoption("--minutes", type=float, default=0.0, help="of each fuzzer; unset: a short form of it")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests without engines first, then kind by kind; the order is else kept. Slow ones only if they are asked for,
    those of GPUs only where there is one."""
    if not config.getoption("--slow"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]

    if gpu := [item for item in items if item.get_closest_marker("gpu")]:
        import torch

        if not torch.cuda.is_available():
            for item in gpu:
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))

    def rank(item: pytest.Item) -> int:
        names = getattr(item, "fixturenames", ())
        return max((index for index, name in enumerate(_ORDER, 1) if name in names), default=0)

    items.sort(key=rank)
    if lane := config.getoption("--lane"):
        items[:] = [item for item in items if (rank(item) > 0) == (lane == "engines")]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name what did not run, and why."""
    why: Counter[str] = Counter()
    for report in terminalreporter.getreports("skipped"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        why[f"{report.nodeid.partition('::')[0]}: {reason.removeprefix('Skipped: ')}"] += 1
    for item in terminalreporter.getreports("deselected"):
        if item.get_closest_marker("slow"):
            why[f"{item.nodeid}: slow, runs with --slow"] += 1
    if why:
        terminalreporter.section("not run, and why")
        for line, count in sorted(why.items()):
            terminalreporter.line(f"{count:>4}  {line}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Show the end of the real server's log with a failed test that used it. In CI what is skipped for want of an
    installation has failed."""
    report = yield
    if report.skipped and os.environ.get("CI") == "true" and call.excinfo is not None:
        reason = str(call.excinfo.value)
        if any(words in reason for words in _NOT_INSTALLED):
            report.outcome = "failed"
            report.longrepr = f"{reason}; in CI nothing is skipped for want of an installation"
    if report.failed and (servers := getattr(item, "funcargs", {}).get("servers")) is not None and servers.log:
        report.sections.append(("log of the real server", "\n".join(servers.log.splitlines()[-60:])))
    return report


@pytest.fixture(scope="session")
def tiny_settings() -> Settings:
    """Settings of ``embedded-tiny`` as a plain ``voicechat serve`` takes them."""
    return load_settings(TINY)


@pytest.fixture(scope="session")
def models(tiny_settings: Settings) -> AssembledPaths:
    """Folders of ``embedded-tiny``, assembled if they are not there yet."""
    return assemble(tiny_settings)


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """All real servers of the run."""
    made = Servers(tmp_path_factory.mktemp("servers"))
    yield made
    made.stop()


@pytest.fixture
def tiny_server(servers: Servers) -> RealServer:
    """A running server of ``embedded-tiny``."""
    return servers.get(TINY)


@pytest.fixture
def last_tiny_server(tiny_server: RealServer) -> RealServer:
    """The same server, for a test that ends it: runs after all others that use it."""
    return tiny_server


@pytest.fixture
def real_server(tiny_server: RealServer) -> str:
    """Base URL, without ``/v1``, of a running server of ``embedded-tiny``."""
    return tiny_server.url


@pytest.fixture
def embedded_server(servers: Servers) -> str:
    """Base URL, without ``/v1``, of a running server of ``embedded``, the default model."""
    return servers.get("embedded").url
