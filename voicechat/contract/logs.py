"""Log lines of all processes: as text or JSON, with the names of the request and the trace that they belong to.

No line holds what users said or were told, unless content is asked for.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

NAMES: ContextVar[Mapping[str, str]] = ContextVar("names", default={})  # noqa: B039 - never written to
"""``request_id``, ``trace_id``, ``span_id``, of whatever is worked on in this context; some or none."""

_FORMAT, _CONTENT = "VOICECHAT_LOG__FORMAT", "VOICECHAT_LOG__CONTENT"
"""The settings' own names in the environment: how a spawned process learns of them."""


def share(form: str, *, content: bool) -> None:
    """Let this process, and those that it spawns, log so."""
    os.environ[_FORMAT], os.environ[_CONTENT] = form, "true" if content else "false"


def content() -> bool:
    """True if log lines may hold what users said and were told."""
    return os.environ.get(_CONTENT, "").lower() in ("true", "1", "yes")


def words_of(error: BaseException) -> str:
    """What a log line may tell of an error that has come out of a request: its words may be a user's own."""
    kind = type(error).__name__
    stage = getattr(error, "stage", None)
    named = f"{kind} ({stage})" if isinstance(stage, str) else kind
    return f"{named}: {error}" if content() else named


def configure(level: int, *, process: bool = False) -> None:
    """Send the log to standard error, unless it goes somewhere already; ``process``: with the process's name."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if os.environ.get(_FORMAT) == "json" else TextLines(process=process))
    handler.addFilter(name)
    logging.basicConfig(level=level, handlers=[handler])


def name(record: logging.LogRecord) -> bool:
    """Note the names when a line is written; a handler's filter runs in the context of whoever logs."""
    record.names = dict(NAMES.get())
    return True


class TextLines(logging.Formatter):
    """Lines for people."""

    def __init__(self, *, process: bool = False) -> None:
        super().__init__(
            f"%(asctime)s {'%(processName)s ' if process else ''}%(name)s %(levelname)s %(message)s%(named)s"
        )

    def format(self, record: logging.LogRecord) -> str:
        """One line, and a traceback if there is one."""
        request = getattr(record, "names", {}).get("request_id")
        record.named = f" [{request}]" if request else ""
        return super().format(record)


class JsonLines(logging.Formatter):
    """Lines for machines: one JSON object each."""

    def format(self, record: logging.LogRecord) -> str:
        """The object: ``time`` (RFC 3339), ``level``, ``process``, ``logger``, ``message``, names, ``exception``."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": record.processName,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "names", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
