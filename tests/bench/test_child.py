"""A server as a child: what happens when it does not come up. One that does needs models and is tested elsewhere."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import aiohttp
import pytest

from voicechat.bench import child
from voicechat.bench.child import ServerError, child_server, free_port


def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Run ``body`` instead of the server."""
    script = tmp_path / "python"
    program = tmp_path / "server.py"
    program.write_text(textwrap.dedent(body), encoding="utf-8")
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setattr(child.sys, "executable", str(script))


async def test_a_server_that_ends_at_once_leaves_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, "import sys\nprint('no room on the disk', file=sys.stderr)\nsys.exit(3)")
    async with aiohttp.ClientSession() as http:
        with pytest.raises(ServerError, match=r"exit code 3(.|\n)*no room on the disk"):
            async with child_server([], http=http, timeout_s=20):
                pass


async def test_a_server_that_is_never_ready_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, "import time\nprint('loading', flush=True)\ntime.sleep(60)")
    async with aiohttp.ClientSession() as http:
        with pytest.raises(ServerError, match=r"not ready within 1 s(.|\n)*loading"):
            async with child_server([], http=http, timeout_s=1):
                pass


async def test_a_server_that_is_ready_is_used_and_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(
        tmp_path,
        monkeypatch,
        """
        import http.server, sys
        assert sys.argv[1:4] == ["-m", "voicechat", "serve"] and sys.argv[-2:] == ["--model", "some"], sys.argv
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.end_headers()
        port = int(sys.argv[sys.argv.index("--port") + 1])
        http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
        """,
    )
    async with aiohttp.ClientSession() as http:
        async with child_server(["--model", "some"], http=http, timeout_s=20) as (base, start_s):
            assert start_s > 0
            async with http.get(f"{base}/readyz") as response:
                assert response.status == 200
        with pytest.raises(aiohttp.ClientError):
            await http.get(f"{base}/readyz")


def test_a_free_port_is_free() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", free_port()))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_the_server_does_not_outlive_a_killed_benchmark(tmp_path: Path) -> None:
    program = tmp_path / "bench.py"
    program.write_text(
        textwrap.dedent(
            """
            import asyncio, sys
            from voicechat.bench import child

            async def main():
                words = [sys.executable, "-c", "import time; time.sleep(60)"]
                process = await asyncio.create_subprocess_exec(*words, preexec_fn=child._end_with_parent)
                print(process.pid, flush=True)
                await process.wait()

            asyncio.run(main())
            """
        ),
        encoding="utf-8",
    )
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    for _ in range(500):
        status = Path(f"/proc/{pid}/stat")
        if not status.exists() or status.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    raise AssertionError("it lives on")
