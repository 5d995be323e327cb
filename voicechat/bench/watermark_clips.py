"""Clips of a server's voices without the mark, for the watermark's bench: held-out texts in every voice and mode."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
from pathlib import Path

from voicechat.bench.chat_client import ClientError
from voicechat.bench.outcome import BenchError
from voicechat.bench.served import Progress, Served, say, serving, settings_of
from voicechat.bench.voice import HELD_OUT
from voicechat.bench.voice_sounds import MODES, Text, load_texts
from voicechat.media.encode import encode

_SEED = 30_000
_AT_ONCE = 2
_TIMEOUT_S = 300.0


async def make_clips(options: argparse.Namespace) -> Path:
    """Have the texts spoken by a server that marks nothing, as FLAC with the text beside; the folder.

    The server is started for it, unless ``options.server`` names one. Clips that are there are not made again. Raises
    :class:`BenchError`, also for a server that marks.
    """
    settings = settings_of(options)
    folder: Path = options.clips or settings.data_dir / "bench" / "watermark" / settings.model.name
    texts = load_texts(options.texts or HELD_OUT, options.count)
    unmarked = argparse.Namespace(**vars(options))
    unmarked.overrides = [*options.overrides, "watermark.enabled=false"]
    async with serving(unmarked) as served:
        if served.client.listed.get("watermark", {}).get("enabled"):
            raise BenchError("that server marks what it says; start it with --set watermark.enabled=false", 2)
        jobs = [
            _Clip(folder, voice, mode, number, text)
            for number, text in enumerate(texts)
            for voice in served.client.listed["voices"]
            for mode in MODES
        ]
        say(f"unmarked clips are kept in {folder}")
        await _speak(served, [job for job in jobs if not job.path.exists() or job.said() != job.text.text])
    return folder


@dataclasses.dataclass(frozen=True, slots=True)
class _Clip:
    folder: Path
    voice: str
    mode: str
    number: int
    text: Text

    @property
    def path(self) -> Path:
        return self.folder / f"{self.voice}-{self.mode}-{self.number:03}.flac"

    def said(self) -> str | None:
        """The text of the clip that is there."""
        beside = self.path.with_suffix(".txt")
        return beside.read_text(encoding="utf-8") if beside.exists() else None


async def _speak(served: Served, jobs: list[_Clip]) -> None:
    progress, turn = Progress("", "clips", len(jobs)), asyncio.Semaphore(_AT_ONCE)

    async def one(job: _Clip) -> None:
        async with turn:
            pcm = await served.client.speak(
                job.text.text,
                voice=job.voice,
                latency_first=MODES[job.mode],
                seed=_SEED + job.number,
                timeout_s=_TIMEOUT_S,
            )
        job.path.parent.mkdir(parents=True, exist_ok=True)
        draft = job.path.with_suffix(".part")
        draft.write_bytes(encode(pcm, "flac"))
        job.path.with_suffix(".txt").write_text(job.text.text, encoding="utf-8")
        draft.replace(job.path)
        progress.step()

    try:
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(one(job))
    except* ClientError as errors:
        raise BenchError(f"a clip could not be spoken: {errors.exceptions[0]}") from None
