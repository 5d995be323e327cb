"""Network namespaces in which only loopback exists, so that nothing that a test starts can reach anything else."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path


class Namespace:
    """Where commands run: in a namespace of its own, or, if ``name`` is None, on the machine as it is."""

    def __init__(self, name: str | None) -> None:
        self.name = name

    def command(self, argv: Sequence[str]) -> list[str]:
        """``argv`` as it must be run to be inside."""
        return list(argv) if self.name is None else ["ip", "netns", "exec", self.name, *argv]

    def script(self, path: Path, executable: str) -> Path:
        """A shell script at ``path`` that runs ``executable`` inside, with the arguments it is given."""
        line = " ".join(shlex.quote(part) for part in self.command([executable]))
        path.write_text(f'#!/bin/sh\nexec {line} "$@"\n')
        path.chmod(0o755)
        return path


@contextlib.contextmanager
def fresh() -> Iterator[Namespace]:
    """A new namespace with ``lo`` up, deleted afterwards; the machine itself where that is not possible."""
    name = f"voicechat-{secrets.token_hex(4)}"
    if os.geteuid() != 0 or shutil.which("ip") is None or _ip("netns", "add", name) != 0:
        yield Namespace(None)
        return
    try:
        if _ip("-n", name, "link", "set", "lo", "up") == 0 and _ip("netns", "exec", name, "true") == 0:
            yield Namespace(name)
        else:
            yield Namespace(None)
    finally:
        _ip("netns", "delete", name)


def _ip(*arguments: str) -> int:
    return subprocess.run(["ip", *arguments], capture_output=True, check=False).returncode
