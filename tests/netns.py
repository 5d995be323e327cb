"""Network namespaces in which only loopback exists, and cables between some of them, so that nothing that a test starts
can reach anything else."""

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

    def run(self, *argv: str) -> None:
        """Run a command inside; raises ``CalledProcessError``."""
        subprocess.run(self.command(argv), capture_output=True, check=True)


def join(one: Namespace, other: Namespace, ours: Sequence[str], theirs: Sequence[str], mtu: int = 1500) -> None:
    """A cable between two namespaces: the addresses (with their prefixes) of its ends."""
    ends = [f"v{secrets.token_hex(4)}" for _ in range(2)]
    assert one.name is not None and other.name is not None
    argv = ["ip", "link", "add", ends[0], "netns", one.name, "type", "veth", "peer", "name", ends[1]]
    subprocess.run([*argv, "netns", other.name], capture_output=True, check=True)
    for space, end, addresses in ((one, ends[0], ours), (other, ends[1], theirs)):
        for address in addresses:
            space.run("ip", "address", "add", address, "dev", end, *(["nodad"] if ":" in address else []))
        space.run("ip", "link", "set", end, "mtu", str(mtu), "up")


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
