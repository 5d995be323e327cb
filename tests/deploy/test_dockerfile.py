"""The Dockerfile, as hadolint sees it; and the commands of its RUN lines, as the shell does."""

from __future__ import annotations

import subprocess
from pathlib import Path

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
