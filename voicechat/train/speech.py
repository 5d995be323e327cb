"""Step ``speech``: the teachers speak the texts, on all cores. Finished shards are kept, so a run can be resumed."""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import time
from pathlib import Path

import numpy as np

from voicechat.train.common import (
    HELD_OUT,
    PLAIN,
    SAMPLE_RATE,
    TEACHERS_FILE,
    VOICES_FILE,
    Work,
    write_arrays,
    write_json,
)
from voicechat.train.teacher import AlignmentError, Speech, Teacher
from voicechat.train.teachers import VoicePlan

logger = logging.getLogger("voicechat.train")

SHARD = 64
"""Texts per file."""
TEXTS_COMPLETE = "texts.complete"
SPEECH_COMPLETE = "speech.complete"
MOST_REJECTED = 0.2
"""A teacher that loses more of a shard's clips than this is of no use."""

Job = tuple[int, str, int, list[str], float]
"""Number of the voice, text set, first text's index, texts, and the time after which not to begin."""

_work: Work | None = None
_plans: list[VoicePlan] = []
_teachers: dict[int, Teacher] = {}


def shard_path(work: Work, voice: str, text_set: str, start: int) -> Path:
    """File of a voice's clips of the texts ``start .. start + SHARD - 1`` of a set."""
    return work.file("speech", voice, text_set, f"{start:06d}.npz")


def _begin(root: str, plans: list[VoicePlan]) -> None:
    global _work, _plans
    os.nice(5)
    _work, _plans = Work(Path(root)), plans


def _speak_shard(job: Job) -> tuple[int, float, int]:
    """Speak one shard; returns voice, seconds of sound and clips left out. Texts of other voices are empty clips."""
    number, text_set, start, texts, deadline = job
    if time.time() > deadline:
        return number, 0.0, 0
    if _work is None:
        raise RuntimeError("the worker was not begun")
    plan = _plans[number]
    if number not in _teachers:
        _teachers[number] = plan.make(_work)
    teacher = _teachers[number]
    empty = Speech(np.zeros(0, np.int16), np.zeros(0, np.int32))
    sounds, symbols, ends, positions = [], [], [], []
    spoken = rejected = 0
    for index, text in enumerate(texts, start):
        marks = teacher.read(text) if plan.speaks(number, text_set, index) else []
        rows = [mark.symbol for mark in marks]
        speech = empty
        if len(rows) >= 3:
            spoken += 1
            try:
                speech = teacher.speak(rows, index, text)
            except AlignmentError as error:
                logger.warning("%s, text %d of %s: %s", plan.name, index, text_set, error)
                rejected += 1
        if not len(speech.pcm):
            marks, rows = [], []
        sounds.append(speech.pcm)
        symbols.append(np.asarray(rows, np.int32))
        ends.append(speech.ends)
        positions.append(np.asarray([mark.end for mark in marks], np.int32))
    if rejected > max(2.0, MOST_REJECTED * spoken):
        raise AlignmentError(
            f"{plan.name}: {rejected} of {spoken} clips could not be aligned; this teacher is of no use"
        )
    write_arrays(
        shard_path(_work, plan.name, text_set, start),
        samples=np.asarray([len(sound) for sound in sounds], np.int64),
        rows=np.asarray([len(clip) for clip in symbols], np.int64),
        pcm=np.concatenate(sounds),
        symbols=np.concatenate(symbols).astype(np.uint8),
        ends=np.concatenate(ends),
        positions=np.concatenate(positions),
    )
    return number, sum(len(sound) for sound in sounds) / SAMPLE_RATE, rejected


def speech_step(
    work: Work, plans: list[VoicePlan], processes: int, watch: bool = False, seconds: float | None = None
) -> None:
    """All voices speak their share of all text sets.

    The order is shuffled, held-out texts first, so that any part of it is a fair sample. ``watch``: new sets are
    awaited until the texts are complete. ``seconds``: begin nothing new after so long; what is there is used.
    """
    for plan in plans:
        plan.prepare(work)
    write_json(work.file(TEACHERS_FILE), {plan.name: plan.describe() for plan in plans})
    write_json(work.file(VOICES_FILE), [plan.name for plan in plans])
    begun = time.monotonic()
    deadline = time.time() + seconds if seconds else float("inf")
    done: set[str] = set()
    progress = _Progress(plans)
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, _begin, (str(work.root), plans)) as pool:
        while True:
            complete = work.file(TEXTS_COMPLETE).exists() or not watch
            fresh = [name for name in work.text_sets() if name not in done]
            done.update(fresh)
            jobs = _jobs(work, plans, fresh, deadline)
            for result in pool.imap_unordered(_speak_shard, jobs):
                progress.add(*result, total=len(jobs))
            if complete:
                break
            time.sleep(0.5)
    work.file(SPEECH_COMPLETE).write_text("")
    _sample(work, plans)
    logger.info("speech done in %.0f s: %s", time.monotonic() - begun, progress.summary())


def _jobs(work: Work, plans: list[VoicePlan], text_sets: list[str], deadline: float) -> list[Job]:
    jobs: list[Job] = []
    for text_set in text_sets:
        texts = [item["text"] for item in work.texts(text_set)]
        for number, plan in enumerate(plans):
            for start in range(0, len(texts), SHARD):
                if not shard_path(work, plan.name, text_set, start).exists():
                    held = text_set != PLAIN and start < HELD_OUT
                    jobs.append(
                        (number, text_set, start, texts[start : start + SHARD], float("inf") if held else deadline)
                    )
    random.Random(0).shuffle(jobs)
    return sorted(jobs, key=lambda job: job[1] == PLAIN or job[2] >= HELD_OUT)


class _Progress:
    """Hours spoken by each voice, on the log every five seconds."""

    def __init__(self, plans: list[VoicePlan]) -> None:
        self._names = [plan.name for plan in plans]
        self._seconds = [0.0] * len(plans)
        self._count = self._rejected = 0
        self._since = self._shown = time.monotonic()

    def add(self, number: int, seconds: float, rejected: int, total: int) -> None:
        self._seconds[number] += seconds
        self._rejected += rejected
        self._count += 1
        if time.monotonic() - self._shown > 5:
            self._shown = time.monotonic()
            speed = sum(self._seconds) / (self._shown - self._since)
            logger.info("speech %d/%d shards, %s, %.0f x real time", self._count, total, self.summary(), speed)

    def summary(self) -> str:
        hours = [f"{name} {seconds / 3600:.2f} h" for name, seconds in zip(self._names, self._seconds, strict=True)]
        return ", ".join([*hours, *([f"{self._rejected} clips left out"] if self._rejected else [])])


def _sample(work: Work, plans: list[VoicePlan]) -> None:
    """Leave one audible clip of each voice and set in ``samples/``."""
    for plan in plans:
        for text_set in work.text_sets():
            path = shard_path(work, plan.name, text_set, 0)
            if path.exists():
                with np.load(path) as shard:
                    end = int(np.cumsum(shard["samples"])[shard["samples"].argmax(keepdims=True)][0])
                    first = end - int(shard["samples"].max())
                    work.keep_sample(f"teacher-{plan.name}-{text_set}", shard["pcm"][first:end])
