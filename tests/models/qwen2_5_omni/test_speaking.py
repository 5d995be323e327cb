"""The checks of :mod:`tests.models.qwen2_5_omni.speaking_checks`, in a process of their own.

Whether torchvision is there, transformers decides when it is imported; here other tests have imported it before.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CHECKS = Path(__file__).with_name("speaking_checks.py")


def test_prompt_rows_and_codes_are_the_references() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CHECKS)]
    done = subprocess.run(command, cwd=CHECKS.parents[3], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "3 passed" in done.stdout
