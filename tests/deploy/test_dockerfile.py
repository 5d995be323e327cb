"""The Dockerfile, as hadolint sees it; and the commands of its RUN lines, as the shell does."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import needed

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def test_hadolint_finds_nothing() -> None:
    """DL3008 aside: Debian keeps no old releases that could be pinned."""
    hadolint = needed.program("hadolint")
    command = [hadolint, "--ignore", "DL3008", str(DEPLOY / "Dockerfile")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_it_sources_and_calls_is_there() -> None:
    """``make_environment cpu`` and ``cuda``: of the script that ``scripts/serve`` uses too."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    assert text.count(". scripts/environment.sh && make_environment") == 2
    script = ". scripts/environment.sh && declare -F make_environment"
    done = subprocess.run(["bash", "-c", script], cwd=DEPLOY.parent, capture_output=True, text=True)
    assert done.stdout.strip() == "make_environment", done.stderr


def runs_of(stage: str) -> list[str]:
    """The commands of the RUN lines of one stage."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    stages = {part.split(" AS ")[1].split()[0]: part for part in text.split("\nFROM ")[1:]}
    return [line.removeprefix("RUN ") for line in stages[stage].splitlines() if line.startswith("RUN ")]


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="a root of one's own is root's to make")
def test_the_base_is_made_in_a_clean_root(tmp_path: Path) -> None:
    """Debian 12, whose Python is the image's; then what Docker would do, as far as the environment, whose making is
    that of ``scripts/serve`` (``tests/test_scripts.py``)."""
    root = tmp_path / "root"
    make = [needed.program("debootstrap"), "--variant=minbase", "--include=python3,python3-venv,ca-certificates",
            "bookworm", str(root)]  # fmt: skip
    subprocess.run(make, check=True, capture_output=True, timeout=900)
    for name in ("resolv.conf", "hosts"):
        shutil.copy(f"/etc/{name}", root / "etc" / name)
    (base,) = runs_of("base")
    chroot = needed.program("chroot")
    done = subprocess.run([chroot, str(root), "/bin/sh", "-c", base], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=DEPLOY.parent, capture_output=True, check=True).stdout
    for name in filter(None, tracked.decode().split("\0")):
        copy = root / "opt" / "voicechat" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(DEPLOY.parent / name, copy)
    subprocess.run(["chown", "-R", "10001", str(root / "opt" / "voicechat")], check=True)
    command = ". scripts/environment.sh && find_python && curl --version && gcc --version && touch /data/it"
    done = subprocess.run(
        [chroot, "--userspec=10001", str(root), "/bin/bash", "-c", f"cd /opt/voicechat && {command}"],
        env={"HOME": "/home/voicechat", "PATH": "/usr/local/bin:/usr/bin:/bin"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "/usr/bin/python3" in done.stdout
    refused = subprocess.run([chroot, "--userspec=10001", str(root), "/bin/touch", "/opt/it"], capture_output=True)
    assert refused.returncode != 0, "it is nobody's but root's"
