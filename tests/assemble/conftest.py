"""Fixtures of the assembler's tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from voicechat.assemble.progress import Reporter


@pytest.fixture
def reporter() -> Reporter:
    """A reporter that prints nothing."""
    return Reporter(quiet=True)
