"""The report of ``voicechat bench voice``: one JSON object, or tables for people.

``schema``    "voicechat-bench-voice/1"; ``command``, ``started``, ``machine``, ``model``, ``settings``; ``notes``:
              judges and teachers that are missing
``voices``    voice -> ``systems``, ``differences``, ``goals``, ``failed`` (requests that brought no sound: text and
              reason) and ``examples`` (every failure by its kind, with text and what was heard)
``systems``   "teacher", "latency" (``latency_first``), "quality" -> ``texts``, ``seconds``;
              ``wer``: transcriber -> percent, with ``low`` and ``high``, the 95 % bootstrap interval over texts, and
              ``words``; ``failures``: texts of each kind (see :mod:`voicechat.bench.voice_measures`), ``any`` and
              ``share``, and ``doubts``: those that the first transcriber alone made, for when it was given one phrase
              after another, it heard what it had left out (Whisper drops and repeats what is said twice);
              ``rate``: speech sounds a second between the first and the last, ``pitch_hz`` and
              ``pitch_range`` (semitones): means over texts; ``length``: mean, least and most part of the teacher's;
              ``dnsmos``: means; ``speaker``: mean cosine between the embeddings of a text's sound and the teacher's,
              of the teacher itself: between its texts in turn, which is what one and the same voice has
``differences``  "latency - teacher", "quality - teacher", "latency - quality" -> ``wer``: transcriber -> points, with
              ``low`` and ``high``; ``dnsmos``: OVRL
``goals``     what is asked for -> ``value``, ``goal``, ``met``
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from voicechat.bench.voice_judges import HEARD, PHRASES, RATE
from voicechat.bench.voice_measures import FAILURES, failures
from voicechat.bench.voice_sounds import TEACHER
from voicechat.train.transcripts import Compared, compare, error_rate, error_rate_difference
from voicechat.train.voice_figures import sounds_of

SCHEMA = "voicechat-bench-voice/1"
Known = Mapping[str, Any]
"""What the work folder knows of one sound."""

GOAL_WER, GOAL_DNSMOS, GOAL_FAILURES = 2.0, 0.15, 0.005
GOAL_MODES_WER, GOAL_MODES_DNSMOS = 1.0, 0.1


def voice_report(known: Mapping[str, Mapping[str, Known]], transcribers: Sequence[str]) -> dict[str, Any]:
    """Figures of one voice. ``known``: system -> key of the text -> what is known; failures and goals go by the first
    of ``transcribers``."""
    compared = {
        system: {
            name: {key: compare(entry["text"], entry[f"{HEARD}{name}"]) for key, entry in entries.items()}
            for name in transcribers
        }
        for system, entries in known.items()
    }
    teacher, doubt = known.get(TEACHER, {}), f"{PHRASES}{transcribers[0]}"
    systems: dict[str, Any] = {}
    examples: list[dict[str, Any]] = []
    for system, entries in known.items():
        found = {key: found_failures(entry, teacher.get(key), transcribers[0]) for key, entry in entries.items()}
        systems[system] = _figures(entries, compared[system], teacher, found, doubt, is_teacher=system == TEACHER)
        for key, kinds in found.items():
            if kinds:
                heard = {name: entries[key][f"{HEARD}{name}"] for name in transcribers}
                if doubt in entries[key]:
                    heard[doubt] = entries[key][doubt]
                examples.append(
                    {"system": system, "key": key, "kinds": list(kinds), "text": entries[key]["text"], "heard": heard}
                )
    differences = {
        f"{one} - {other}": _difference(known[one], known[other], compared[one], compared[other])
        for one, other in (("latency", TEACHER), ("quality", TEACHER), ("latency", "quality"))
        if one in known and other in known and known[one].keys() & known[other].keys()
    }
    return {
        "systems": systems,
        "differences": differences,
        "goals": _goals(systems, differences, transcribers[0]),
        "examples": examples,
    }


def found_failures(entry: Known, teacher: Known | None, transcriber: str) -> tuple[str, ...]:
    """Kinds of failure of one sound by what ``transcriber`` heard, or none. If it has heard it by phrases too, by that,
    and none if it has not failed both times."""
    heard = [entry[name] for name in (f"{HEARD}{transcriber}", f"{PHRASES}{transcriber}") if name in entry]
    length = None if teacher is None else teacher["samples"]
    found = [failures(compare(entry["text"], words), entry["samples"], length) for words in heard]
    return found[-1] if all(found) else ()


def _figures(
    entries: Mapping[str, Known],
    compared: Mapping[str, Mapping[str, Compared]],
    teacher: Mapping[str, Known],
    failed: Mapping[str, tuple[str, ...]],
    doubt: str,
    *,
    is_teacher: bool,
) -> dict[str, Any]:
    lengths = [
        entry["samples"] / teacher[key]["samples"]
        for key, entry in entries.items()
        if key in teacher and teacher[key]["samples"]
    ]
    rates = [sounds_of(entry["text"]) / entry["spoken_s"] for entry in entries.values() if entry["spoken_s"]]
    pitches = [entry["pitch"] for entry in entries.values() if entry["pitch"] is not None]
    any_failed = sum(bool(kinds) for kinds in failed.values())
    return {
        "texts": len(entries),
        "seconds": round(sum(entry["samples"] for entry in entries.values()) / RATE, 1),
        "wer": {name: _rate(list(found.values())) for name, found in compared.items()},
        "failures": {
            **{kind: sum(kind in kinds for kinds in failed.values()) for kind in FAILURES},
            "any": any_failed,
            "share": any_failed / max(1, len(entries)),
            "doubts": sum(doubt in entries[key] for key, kinds in failed.items() if not kinds),
        },
        "rate": _mean(rates),
        "pitch_hz": _mean([pitch[0] for pitch in pitches]),
        "pitch_range": _mean([pitch[1] for pitch in pitches]),
        "length": None if not lengths else {"mean": _mean(lengths), "least": min(lengths), "most": max(lengths)},
        "dnsmos": _dnsmos(entries),
        "speaker": _own_likeness(entries) if is_teacher else _likeness(entries, teacher),
    }


def _counts(compared: Sequence[Compared]) -> list[tuple[int, int]]:
    return [(one.errors, one.words) for one in compared]


def _rate(compared: Sequence[Compared]) -> dict[str, float] | None:
    if not (words := sum(one.words for one in compared)):
        return None
    value, low, high = error_rate(_counts(compared))
    return {"percent": value, "low": low, "high": high, "words": words}


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _dnsmos(entries: Mapping[str, Known]) -> dict[str, float] | None:
    found = [entry["dnsmos"] for entry in entries.values() if entry.get("dnsmos")]
    return {name: float(np.mean([one[name] for one in found])) for name in found[0]} if found else None


def _likeness(entries: Mapping[str, Known], teacher: Mapping[str, Known]) -> float | None:
    pairs = [(entry.get("speaker"), teacher.get(key, {}).get("speaker")) for key, entry in entries.items()]
    return _mean([float(np.dot(one, other)) for one, other in pairs if one and other])


def _own_likeness(entries: Mapping[str, Known]) -> float | None:
    found = [entry["speaker"] for entry in entries.values() if entry.get("speaker")]
    return _mean([float(np.dot(one, other)) for one, other in zip(found, found[1:], strict=False)])


def _difference(
    one: Mapping[str, Known],
    other: Mapping[str, Known],
    heard_one: Mapping[str, Mapping[str, Compared]],
    heard_other: Mapping[str, Mapping[str, Compared]],
) -> dict[str, Any]:
    """Of the texts that both have."""
    keys = [key for key in one if key in other]
    wer: dict[str, Any] = {}
    for name in heard_one:
        ours, theirs = ([heard[name][key] for key in keys] for heard in (heard_one, heard_other))
        if sum(entry.words for entry in ours):
            value, low, high = error_rate_difference(_counts(ours), _counts(theirs))
            wer[name] = {"points": value, "low": low, "high": high}
    scores = [(_dnsmos({key: entries[key] for key in keys}) or {}).get("ovrl") for entries in (one, other)]
    first, second = scores
    return {
        "texts": len(keys),
        "wer": wer,
        "dnsmos": first - second if first is not None and second is not None else None,
    }


def _goals(systems: Mapping[str, Any], differences: Mapping[str, Any], transcriber: str) -> dict[str, Any]:
    goals: dict[str, Any] = {}

    def add(name: str, value: float | None, goal: float, met: bool) -> None:
        if value is not None:
            goals[name] = {"value": value, "goal": goal, "met": met}

    for mode in ("latency", "quality"):
        if f"{mode} - {TEACHER}" in differences:
            found = differences[f"{mode} - {TEACHER}"]
            points = found["wer"].get(transcriber, {}).get("points")
            add(f"{mode}: WER over the teacher's, points", points, GOAL_WER, points is not None and points <= GOAL_WER)
            lost = None if found["dnsmos"] is None else -found["dnsmos"]
            add(f"{mode}: DNSMOS under the teacher's", lost, GOAL_DNSMOS, lost is not None and lost <= GOAL_DNSMOS)
        if mode in systems:
            share = systems[mode]["failures"]["share"]
            add(f"{mode}: share of failures", share, GOAL_FAILURES, share <= GOAL_FAILURES)
    if (modes := differences.get("latency - quality")) is not None:
        points = modes["wer"].get(transcriber, {}).get("points")
        apart = None if points is None else abs(points)
        add("modes: WER apart, points", apart, GOAL_MODES_WER, apart is not None and apart <= GOAL_MODES_WER)
        apart = None if modes["dnsmos"] is None else abs(modes["dnsmos"])
        add("modes: DNSMOS apart", apart, GOAL_MODES_DNSMOS, apart is not None and apart <= GOAL_MODES_DNSMOS)
    return goals


def as_text(report: Mapping[str, Any]) -> str:
    """The report for people."""
    lines = [f"{report['model']}: {report['settings']['count']} held-out texts a voice", *report["notes"]]
    for voice, found in report["voices"].items():
        systems = found["systems"]
        lines += ["", f"{voice:28}" + "".join(f"{system:>22}" for system in systems)]
        for label, row in _rows(systems):
            lines.append(f"  {label:26}" + "".join(f"{cell:>22}" for cell in row))
        for name, difference in found["differences"].items():
            parts = [
                f"WER ({heard}) {value['points']:+.2f} ({value['low']:+.2f} to {value['high']:+.2f})"
                for heard, value in difference["wer"].items()
            ]
            if difference["dnsmos"] is not None:
                parts.append(f"DNSMOS {difference['dnsmos']:+.2f}")
            lines.append(f"  {name}: {', '.join(parts)}")
        for name, goal in found["goals"].items():
            lines.append(
                f"  {'met   ' if goal['met'] else 'MISSED'} {name}: {goal['value']:.3g}, goal {goal['goal']:g}"
            )
        for example in found["examples"]:
            lines.append(f"  {example['system']} {example['key']}: {', '.join(example['kinds'])}")
        lines += [f"  no sound: {failed['system']} {failed['key']}: {failed['error']}" for failed in found["failed"]]
    return "\n".join(lines)


def _rows(systems: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Label and cells of each line of a voice's table."""
    every = list(systems.values())
    rows: list[tuple[str, list[str]]] = [("texts", [str(one["texts"]) for one in every])]
    for name in every[0]["wer"]:
        cells = []
        for one in every:
            rate = one["wer"][name]
            cells.append("-" if rate is None else f"{rate['percent']:.2f} ({rate['low']:.2f}-{rate['high']:.2f})")
        rows.append((f"WER {name}, %", cells))
    rows.append(("DNSMOS OVRL", [_shown(one["dnsmos"] and one["dnsmos"]["ovrl"], 2) for one in every]))
    rows.append(("speaker similarity", [_shown(one["speaker"], 3) for one in every]))
    rows.append(("speech sounds a second", [_shown(one["rate"], 1) for one in every]))
    rows.append(("pitch, Hz", [_shown(one["pitch_hz"], 0) for one in every]))
    rows.append(("pitch range, semitones", [_shown(one["pitch_range"], 1) for one in every]))
    lengths = [one["length"] for one in every]
    cells = [f"{one['mean']:.2f} ({one['least']:.2f}-{one['most']:.2f})" if one else "-" for one in lengths]
    rows.append(("length of the teacher's", cells))
    for kind in (*FAILURES, "any"):
        rows.append((f"failures: {kind}", [str(one["failures"][kind]) for one in every]))
    return rows


def _shown(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
