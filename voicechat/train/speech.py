"""Step ``speech``: the teacher speaks every text, on all cores. Finished shards are kept, so a run can be resumed."""

from __future__ import annotations

import logging
import multiprocessing
import os
import time
from pathlib import Path

import numpy as np

from voicechat.train.common import SAMPLE_RATE, Work, write_arrays, write_wav
from voicechat.train.teacher import HibariTeacher, Speech, prepare_model

logger = logging.getLogger("voicechat.train")

SHARD = 64
"""Texts per file."""
TEXTS_COMPLETE = "texts.complete"
SPEECH_COMPLETE = "speech.complete"

_teacher: HibariTeacher | None = None


def shard_path(work: Work, name: str, start: int) -> Path:
    """File of the texts ``start .. start + SHARD - 1`` of a set."""
    return work.file("speech", name, f"{start:06d}.npz")


def _begin(model: str) -> None:
    global _teacher
    os.nice(5)
    _teacher = HibariTeacher(Path(model))


def _speak_shard(job: tuple[str, int, list[str], str]) -> float:
    """Speak one shard; returns seconds of sound. A text with nothing to say becomes an empty clip."""
    _, start, texts, path = job
    if _teacher is None:
        raise RuntimeError("the worker was not begun")
    sounds, symbols, ends, positions = [], [], [], []
    for index, text in enumerate(texts):
        marks = _teacher.read(text)
        rows = [mark.symbol for mark in marks]
        if len(rows) < 3:
            marks, rows = [], []
        empty = Speech(np.zeros(0, np.int16), np.zeros(0, np.int32))
        speech = _teacher.speak(rows, seed=start + index) if rows else empty
        sounds.append(speech.pcm)
        symbols.append(np.asarray(rows, np.int32))
        ends.append(speech.ends)
        positions.append(np.asarray([mark.end for mark in marks], np.int32))
    write_arrays(
        Path(path),
        samples=np.asarray([len(sound) for sound in sounds], np.int64),
        rows=np.asarray([len(clip) for clip in symbols], np.int64),
        pcm=np.concatenate(sounds),
        symbols=np.concatenate(symbols).astype(np.uint8),
        ends=np.concatenate(ends),
        positions=np.concatenate(positions),
    )
    return sum(len(sound) for sound in sounds) / SAMPLE_RATE


def speech_step(work: Work, processes: int, watch: bool = False) -> None:
    """Speak all text sets. With ``watch`` new sets are awaited until the texts are complete."""
    model = work.file("teacher.onnx")
    if not model.exists():
        prepare_model(model)
    begun = time.monotonic()
    done: set[str] = set()
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, _begin, (str(model),)) as pool:
        while True:
            complete = work.file(TEXTS_COMPLETE).exists() or not watch
            for name in work.text_sets():
                if name in done:
                    continue
                done.add(name)
                texts = [item["text"] for item in work.texts(name)]
                jobs = [
                    (name, start, texts[start : start + SHARD], str(shard_path(work, name, start)))
                    for start in range(0, len(texts), SHARD)
                ]
                jobs = [job for job in jobs if not Path(job[3]).exists()]
                seconds, since, shown = 0.0, time.monotonic(), time.monotonic()
                for count, part in enumerate(pool.imap_unordered(_speak_shard, jobs), 1):
                    seconds += part
                    if time.monotonic() - shown > 5 or count == len(jobs):
                        shown = time.monotonic()
                        speed = seconds / (shown - since)
                        logger.info(
                            "speech %s %d/%d shards, %.2f h, %.0f x real time",
                            name, count, len(jobs), seconds / 3600, speed,
                        )  # fmt: skip
            if complete:
                break
            time.sleep(0.5)
    work.file(SPEECH_COMPLETE).write_text("")
    _sample(work)
    logger.info("speech done in %.0f s", time.monotonic() - begun)


def _sample(work: Work) -> None:
    """Leave one audible clip of each set in ``samples/``."""
    for name in work.text_sets():
        path = shard_path(work, name, 0)
        if path.exists():
            with np.load(path) as shard:
                write_wav(work.file("samples", f"teacher-{name}.wav"), shard["pcm"][: int(shard["samples"][0])])
