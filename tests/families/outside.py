"""Makes the chimes an installed package of their own, in a folder of a test's: its code, and what pip would note."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

HERE = Path(__file__).parent
ENTRY = "[voicechat.families]\nchimes = chimes.family:FAMILY\n"


def install(folder: Path) -> dict[str, str]:
    """Put the package into ``folder``; the environment in which it is installed."""
    shutil.copytree(HERE / "chimes", folder / "chimes", ignore=shutil.ignore_patterns("__pycache__"))
    info = folder / "chimes-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: chimes\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path}
