"""From a benchmark's report to what is printed and the exit code: the same for every kind."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

Report = dict[str, Any]

API_KEY = "VOICECHAT_API_KEY"
"""Environment variable with the bearer token for ``--server``."""


class BenchError(Exception):
    """The benchmark can't be run; ``str()`` says why, ``code`` is the exit code."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


def outcome(
    options: argparse.Namespace,
    begin: Callable[[], Coroutine[Any, Any, Report]],
    as_text: Callable[[Report], str],
    failed: Callable[[Report], bool],
) -> int:
    """Run a benchmark and print its report, as JSON with ``options.json``.

    Returns the exit code: 0, 1 if the report is one of failure, the error's own if it can't be run, or 143 if it was
    terminated, which stops its server as Ctrl-C does. ``begin`` checks the options and may raise :class:`BenchError`.
    """
    try:
        report = asyncio.run(_terminable(begin()))
    except BenchError as error:
        print(f"voicechat: {error}", file=sys.stderr)
        return error.code
    except asyncio.CancelledError:
        print("voicechat: terminated", file=sys.stderr)
        return 128 + signal.SIGTERM
    print(json.dumps(report, ensure_ascii=False, indent=2) if options.json else as_text(report))
    return 1 if failed(report) else 0


async def _terminable(run: Coroutine[Any, Any, Report]) -> Report:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await run
