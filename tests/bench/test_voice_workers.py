"""Judges and teachers in threads and in processes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voicechat.bench.voice_sounds import Kept, Text
from voicechat.bench.voice_workers import Workers

TEXT = Text("a", "some words")


class Teachers:
    """Speaks as many samples as the seed says, all of them its process's number."""

    def speak(self, voice: str, text: str, seed: int) -> np.ndarray:
        if voice != "anna":
            raise ValueError(f"nobody taught {voice}")
        return np.full(seed, os.getpid(), np.int64)


class Panel:
    """Says who it is, how long the sound is, and how often it was asked here."""

    def __init__(self) -> None:
        self.times = 0

    def judge(self, pcm: np.ndarray, asked: tuple[str, ...]) -> dict[str, Any]:
        self.times += 1
        return {"pid": os.getpid(), "samples": len(pcm), "asked": list(asked), "times": self.times}


def work(processes: int, folder: Path) -> tuple[list[np.ndarray], list[dict[str, Any]]]:
    kept = Kept(folder)
    kept.write("anna", "quality", TEXT, {}, np.zeros(240, np.int16))

    async def run() -> tuple[list[np.ndarray], list[dict[str, Any]]]:
        with Workers(processes, kept, Teachers(), Panel()) as workers:  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="nobody taught ben"):
                await workers.speak("ben", "some words", 1)
            spoken = await asyncio.gather(*(workers.speak("anna", "some words", seed) for seed in (3, 5)))
            judged = await asyncio.gather(*(workers.judge("anna", "quality", TEXT, ("pitch",)) for _ in range(4)))
            return list(spoken), list(judged)

    return asyncio.run(run())


@pytest.mark.parametrize("processes", [1, 2])
def test_who_works_where(processes: int, tmp_path: Path) -> None:
    spoken, judged = work(processes, tmp_path)
    assert [len(pcm) for pcm in spoken] == [3, 5]
    assert [(said["samples"], said["asked"]) for said in judged] == [(240, ["pitch"])] * 4
    pids = {said["pid"] for said in judged} | {int(pcm[0]) for pcm in spoken}
    if processes == 1:
        assert pids == {os.getpid()}
        assert sorted(said["times"] for said in judged) == [1, 2, 3, 4], "one panel, and one at a time"
    else:
        assert os.getpid() not in pids and len(pids) <= 2
