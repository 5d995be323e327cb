"""A stage's process before anything heavy is imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system binds no process to cores")
def test_a_stage_runs_on_the_cores_it_is_given() -> None:
    one = min(os.sched_getaffinity(0))
    code = (
        "import os; from voicechat.stages.host import prepare_process; "
        f"prepare_process(1, cores=({one},)); print(sorted(os.sched_getaffinity(0)), os.getpgid(0) == os.getpid())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == f"[{one}] True"
