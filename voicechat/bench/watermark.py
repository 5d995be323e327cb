"""``voicechat bench watermark``: how often the mark is found and read after what happens to sound, and what it costs.

Clips of our own voices, unmarked, are spoken by a server that is started for it
(:mod:`voicechat.bench.watermark_clips`), or come from ``--clips``; what the mark does to the sound of some of them is
judged (:mod:`voicechat.bench.watermark_quality`).
Every clip is marked with a key of its own, sent through every attack of :mod:`voicechat.bench.watermark_attacks`, and
windows of 2 and 5 seconds of speech are taken from it, each given to the detector as a sound of its own. Unmarked sound
(``--unmarked``, and made sounds) is searched with several keys. ``--perth`` asks resemble-perth about the same windows,
and about windows of 2 and 5 s of the unmarked sound.
With ``--records`` what is found goes to a file as it comes; a run that finds it there does not do it again, so that a
long run may be broken off, done in parts, or reported on anew.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import contextlib
import importlib
import importlib.util
import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from voicechat.assemble.catalogue import EARS_NAME
from voicechat.bench.outcome import BenchError
from voicechat.bench.served import settings_of
from voicechat.bench.watermark_attacks import ATTACKS, ROWS, Floats
from voicechat.bench.watermark_clips import make_clips
from voicechat.bench.watermark_quality import JOB, quality_of, quality_summary
from voicechat.bench.watermark_sounds import made_sound, read_sound, sound_files
from voicechat.contract.sound import EARS_RATE, PCM_RATE, Pcm
from voicechat.media.resample import to_float
from voicechat.watermark.detect import Detector, detect
from voicechat.watermark.embed import Embedder
from voicechat.watermark.keys import Key
from voicechat.watermark.report import FALSE_POSITIVE_RATE
from voicechat.watermark.search import blind_log_p

LENGTHS_S = (2.0, 5.0)
_PERTH_SEES, _PERTH_SILENCE = 0.5, 1e-3
_QUIET_DB = 35.0
_SPEECH_SHARE = 0.6
"""A window counts as speech if so much of it is within :data:`_QUIET_DB` of the clip's loudest 20 ms."""


def main(options: argparse.Namespace) -> int:
    """Run the benchmark; 0, or 2 if there is nothing to run it on."""
    try:
        folder = options.clips or asyncio.run(make_clips(options))
        clips = sound_files(folder)[: options.limit]
        if not clips:
            raise BenchError(f"there are no sounds in {folder}", 2)
        ears = _ears(options)
    except BenchError as error:
        print(f"voicechat: {error}", file=sys.stderr)
        return error.code
    begun = time.monotonic()
    marked, unmarked, judged = _records(options, clips, ears)
    report = {
        "schema": "voicechat-watermark-1",
        "clips": len({one["clip"] for one in marked}),
        "table": table(marked),
        "attacks": table(marked, by="attack"),
        "wrong_key": _wrong(marked),
        "unmarked": _summary(unmarked),
        "quality": quality_summary(judged),
        "embed_share_of_a_core": float(np.median([one["embed"] for one in marked])),
        "detect_times_real_time": _speed(unmarked),
        "mark_in_silence_dbfs": max(one["silence_dbfs"] for one in marked),
        "seconds": time.monotonic() - begun,
    }
    if options.png:
        _draw(options.png, marked, unmarked)
    text = json.dumps(report, indent=1)
    if options.out:
        options.out.write_text(text)
    print(text if options.json else as_text(report))
    return 0


def _ears(options: argparse.Namespace) -> Path | None:
    """The transcriber by which WER is judged, if it is there with all that it needs."""
    if not options.quality or any(importlib.util.find_spec(name) is None for name in ("jiwer", "whisper_normalizer")):
        return None
    ears: Path = options.ears or settings_of(options).data_dir / "ears" / EARS_NAME
    return ears if (ears / "model.bin").is_file() else None


def _speed(unmarked: Sequence[dict[str, Any]]) -> float | None:
    """Seconds of unmarked sound that are searched, with all its keys, in a second of CPU."""
    asked = [one for one in unmarked if "cpu_s" in one]
    return sum(one["s"] for one in asked) / sum(one["cpu_s"] for one in asked) if asked else None


def _records(
    options: argparse.Namespace, clips: Sequence[Path], ears: Path | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """What was found in every marked window, in every stretch of unmarked sound, and what judges say; what is in the
    file, from there.
    """
    kept: list[dict[str, Any]] = []
    if options.records and options.records.exists():
        kept = [json.loads(line) for line in options.records.read_text().splitlines()]
    done = {one["job"] for one in kept}
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(concurrent.futures.ProcessPoolExecutor(options.processes))
        out = stack.enter_context(options.records.open("a")) if options.records else None
        jobs = [
            pool.submit(_unmarked, name, *job, options.perth)
            for name, job in _unmarked_jobs(options).items()
            if name not in done
        ]
        jobs += [pool.submit(_clip, path, options.perth, options.windows) for path in clips if path.stem not in done]
        some = clips[:: max(1, len(clips) // options.quality)][: options.quality] if options.quality else []
        jobs += [pool.submit(quality_of, path, ears) for path in some if f"{JOB}{path.stem}" not in done]
        for job in concurrent.futures.as_completed(jobs):
            kept += job.result()
            if out:
                out.writelines(json.dumps(one) + "\n" for one in job.result())
                out.flush()
    marked, unmarked, judged = ([one for one in kept if name in one] for name in ("attack", "kind", "quality"))
    return marked, unmarked, judged


def _clip(path: Path, perth: bool, most: int | None) -> list[dict[str, Any]]:
    """Windows of one clip, at most so many of each length, through every attack."""
    pcm = read_sound(path)
    rng = np.random.default_rng(list(path.stem.encode()))
    key, wrong, payload = Key(rng.bytes(32)), Key(rng.bytes(32)), int(rng.integers(1 << 16))
    embedder, begun = Embedder(key, payload), time.process_time()
    marked = np.concatenate([embedder.push(pcm), embedder.finish()])
    common = {
        "job": path.stem,
        "clip": path.stem,
        "embed": (time.process_time() - begun) / (len(pcm) / PCM_RATE),
        "silence_dbfs": _in_pauses(pcm, marked),
    }
    plain = _Perth() if perth else None
    perth_pcm = plain.mark(pcm) if plain else None
    out = []
    for name, attack in ATTACKS.items():
        sound, rate = attack.apply(marked, int(rng.integers(1 << 30)))
        theirs = attack.apply(perth_pcm, int(rng.integers(1 << 30)))[0] if perth_pcm is not None else None
        for length in LENGTHS_S:
            for first in windows(sound, rate, length)[:most]:
                piece = slice(first, first + int(length * rate))
                one = {**common, "attack": name, "row": attack.row, "length": length}
                one |= _asked(sound[piece], rate, key, payload)
                if name == "clean":
                    one["wrong"] = _asked(sound[piece], rate, wrong, payload)
                if plain and theirs is not None:
                    one["perth"] = plain.confidence(theirs[piece], rate)
                out.append(one)
    return out


def windows(sound: Floats, rate: int, length_s: float) -> list[int]:
    """First samples of windows of speech that do not lie over each other."""
    step = rate // 50
    count = len(sound) // step
    level = 10 * np.log10(np.square(sound[: count * step].reshape(count, step)).mean(1) + 1e-12)
    voiced = level > level.max() - _QUIET_DB
    found, size, at = [], int(length_s * 50), 0
    while at + size <= count:
        if voiced[at : at + size].mean() >= _SPEECH_SHARE:
            found.append(at * step)
            at += size
        else:
            at += 5
    return found


def _asked(sound: Floats, rate: int, key: Key, payload: int) -> dict[str, Any]:
    """What the detector says of one window: knowing which payload to expect, and not."""
    sound = np.ascontiguousarray(sound, np.float32)
    known = detect(sound, [key], rate, [payload])
    told = {span.payload for span in known.spans} - {None}
    score = max((span.score for span in known.spans), default=0.0)
    return {
        "p": known.p_value,
        "p_blind": math.exp(min(0.0, blind_log_p(score) + math.log(2))),  # of one or two windows
        "exact": told == {payload},
        "read_wrong": bool(told - {payload}),
        "score": max(known.scores, default=0.0),
    }


def _in_pauses(pcm: Pcm, marked: Pcm) -> float:
    """Level of the mark in the quietest tenth of a clip's pieces of 20 ms, in dBFS."""
    count = len(pcm) // 480
    own = np.square(pcm[: count * 480].astype(float).reshape(count, 480)).mean(1)
    mark = np.square((marked.astype(float) - pcm)[: count * 480].reshape(count, 480) / 32768).mean(1)
    return float(10 * np.log10(mark[own <= np.quantile(own, 0.1)].mean() + 1e-12))


class _Perth:
    """resemble-perth on the CPU: presence only, whole clips."""

    def __init__(self) -> None:
        perth = importlib.import_module("perth")

        self._perth = perth.PerthImplicitWatermarker(device="cpu")

    def mark(self, pcm: Pcm) -> Pcm:
        out = self._perth.apply_watermark(pcm.astype(np.float32) / 32768, watermark=None, sample_rate=PCM_RATE)
        return np.clip(np.rint(np.asarray(out) * 32768), -32768, 32767).astype(np.int16)[: len(pcm)]

    def confidence(self, sound: Floats, rate: int) -> float:
        return float(np.mean(self._perth.get_watermark(np.asarray(sound, np.float32), sample_rate=rate)))

    def found(self, sound: Floats, rate: int) -> dict[str, list[int]]:
        """By length: how many windows of a sound are not silent, and in how many of them Perth sees its mark."""
        out = {}
        for length in LENGTHS_S:
            size = int(length * rate)
            pieces = [sound[first : first + size] for first in range(0, len(sound) - size + 1, size)]
            asked = [self.confidence(one, rate) > _PERTH_SEES for one in pieces if one.std() > _PERTH_SILENCE]
            out[f"{length:g}"] = [len(asked), sum(asked)]
        return out


def _unmarked_jobs(options: argparse.Namespace) -> dict[str, tuple[list[Path] | int, int]]:
    """Stretches of unmarked sound by name: files one after the other, or the number of a made sound; and the keys."""
    jobs: dict[str, tuple[list[Path] | int, int]] = {}
    for folder in options.unmarked:
        files = sound_files(folder)
        for first in range(0, len(files), 40):
            jobs[f"{folder.name} {first}"] = files[first : first + 40], options.unmarked_keys
    for minute in range(round(options.made_hours * 60)):
        jobs[f"made {minute}"] = minute, options.unmarked_keys
    return jobs


def _unmarked(job: str, what: list[Path] | int, keys: int, perth: bool) -> list[dict[str, Any]]:
    """The p-value of a stretch of unmarked sound; all sounds of a list one after the other."""
    rng = np.random.default_rng(list(job.encode()))
    detector = Detector([Key(rng.bytes(32)) for _ in range(keys)], EARS_RATE, [0xACE1])
    if isinstance(what, int):
        kind, sound = made_sound(what)
    else:
        kind, sound = job.split()[0], to_float(np.concatenate([read_sound(path, EARS_RATE) for path in what]))
    begun = time.process_time()
    detector.feed(sound)
    report = detector.finish()
    cpu_s = time.process_time() - begun
    scores = report.scores
    spans, told = len(report.spans), sum(span.payload is not None for span in report.spans)
    common = {"job": job, "kind": kind, "keys": keys, "s": report.duration_s, "cpu_s": cpu_s}
    if perth:
        common["perth"] = _Perth().found(sound, EARS_RATE)
    return [{**common, "p": report.p_value, "scores": scores, "found": spans, "read": told}]


def _summary(unmarked: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "hours": sum(one["s"] for one in unmarked) / 3600,
        "hours_by_kind": {
            kind: sum(one["s"] for one in unmarked if one["kind"] == kind) / 3600
            for kind in sorted({one["kind"] for one in unmarked})
        },
        "keys": sorted({one["keys"] for one in unmarked}),
        "found": sum(one["found"] for one in unmarked),
        "read": sum(one["read"] for one in unmarked),
        "perth_windows_and_found": {
            f"{kind}, {length:g} s": np.sum([one["perth"][f"{length:g}"] for one in asked], 0).tolist()
            for kind in sorted({one["kind"] for one in unmarked})
            for length in LENGTHS_S
            if (asked := [one for one in unmarked if one["kind"] == kind and "perth" in one])
        },
        "lowest_p": min((one["p"] for one in unmarked), default=1.0),
        "highest_score": max((score for one in unmarked for score in one["scores"]), default=0.0),
    }


def _wrong(marked: Sequence[dict[str, Any]]) -> dict[str, Any]:
    asked = [one["wrong"] for one in marked if "wrong" in one]
    return {
        "windows": len(asked),
        "found": sum(one["p"] <= FALSE_POSITIVE_RATE for one in asked),
        "read": sum(one["exact"] or one["read_wrong"] for one in asked),
        "lowest_p": min((one["p"] for one in asked), default=1.0),
    }


def table(marked: Sequence[dict[str, Any]], by: str = "row") -> list[dict[str, Any]]:
    """Shares found and read, by row and length."""
    groups: dict[tuple[str, float], list[dict[str, Any]]] = defaultdict(list)
    for one in marked:
        groups[one[by], one["length"]].append(one)
    lines = []
    order = list(ROWS if by == "row" else ATTACKS)
    for (name, length), group in sorted(groups.items(), key=lambda item: (order.index(item[0][0]), item[0][1])):
        line = {
            by: name,
            "length": length,
            "windows": len(group),
            "found": float(np.mean([one["p"] <= FALSE_POSITIVE_RATE for one in group])),
            "found_blind": float(np.mean([one["p_blind"] <= FALSE_POSITIVE_RATE for one in group])),
            "exact": float(np.mean([one["exact"] for one in group])),
            "read_wrong": int(sum(one["read_wrong"] for one in group)),
            "score_5_percent": float(np.percentile([one["score"] for one in group], 5)),
        }
        if all("perth" in one for one in group):
            line["perth_found"] = float(np.mean([one["perth"] > _PERTH_SEES for one in group]))
        lines.append(line)
    return lines


def as_text(report: dict[str, Any]) -> str:
    """The report for people."""
    lines = [f"{report['clips']} clips; found at p <= {FALSE_POSITIVE_RATE:g}, payload expected or not; payload exact"]
    for line in report["attacks"] + report["table"]:
        perth = f"  perth {100 * line['perth_found']:5.1f} %" if "perth_found" in line else ""
        lines.append(
            f"{line.get('row', line.get('attack')):50} {line['length']:g} s {line['windows']:6} "
            f"{100 * line['found']:6.2f} {100 * line['found_blind']:6.2f} {100 * line['exact']:6.2f}{perth}"
        )
    for name in (
        "wrong_key",
        "unmarked",
        "quality",
        "embed_share_of_a_core",
        "detect_times_real_time",
        "mark_in_silence_dbfs",
    ):
        lines.append(f"{name}: {report[name]}")
    return "\n".join(lines)


def _draw(path: Path, marked: Sequence[dict[str, Any]], unmarked: Sequence[dict[str, Any]]) -> None:
    """True positives over the false-positive rate that the p-value bounds, by row, a panel for each length."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(LENGTHS_S), figsize=(11, 4.2), sharey=True, layout="constrained")
    rates = np.logspace(-12, 0, 100)
    for axes, length in zip(panels, LENGTHS_S, strict=True):
        for row in (row for row in ROWS if any(one["row"] == row for one in marked)):
            p = np.array([one["p"] for one in marked if one["row"] == row and math.isclose(one["length"], length)])
            found = 100 * np.array([(p <= rate).mean() for rate in rates])
            axes.plot(rates, found, label=f"{row}: {100 * (p <= FALSE_POSITIVE_RATE).mean():.2f} % of {len(p)}")
        axes.axvline(FALSE_POSITIVE_RATE, color="black", linewidth=0.8, linestyle=":")
        axes.set(
            xscale="log", xlabel="false-positive rate (bound)", title=f"from {length:g} s of speech", ylim=(90, 100.5)
        )
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, loc="lower right", title=f"found at {FALSE_POSITIVE_RATE:g}", title_fontsize=8)
    panels[0].set_ylabel("windows found, %")
    figure.savefig(path, dpi=70)
    pyplot.close(figure)
