"""The report: one JSON object, or a table for people.

``schema``      "voicechat-bench/1"
``kind``        "rest" or "webrtc"
``command``     the command line; ``started`` when, as ISO 8601 in UTC
``settings``    users, turns, warmup, spoken, voice of the questions, latency_first, max_tokens, naive, one_call
``machine``     processor, cores, memory, load before the run, versions
``model``       name of the served model; ``server_start_s`` seconds from spawn to ready if the run started the server
``figures``     name -> {p50, p95, mean, least, most, count}; names end in their unit (``_s`` seconds, ``_us``
                microseconds), ``rtf`` has none:
                ``ttfa_s`` request sent -> first event with sound; ``first_text_s``; ``whole_reply_s``;
                ``rtf`` seconds until the last sound per second of sound; ``leading_silence_s`` at the sound's start;
                ``voice_to_voice_s`` last voiced sample of the question sent -> packet of the first audible sample of
                the answer received; ``voice_to_ear_s`` the same until it has left aiortc's jitter buffer
                (over WebSocket: until a simulated player plays it);
                ``response_latency_s`` end of turn decided by the server -> first sound sent;
                ``worst_underrun_s`` and ``all_underruns_s`` of a simulated player (over WebRTC: how much longer the
                answer played than it is)
``stages``      name -> the same, seconds: over REST since the request entered the cascade, over WebRTC since the end of
                the turn was decided (``thinker_…``, ``talker_…``, ``voicebox_…``: since the cascade was asked);
                ``endpointing`` is the silence waited for
``totals``      turns, failed, wall_s, audio_s, audio_s_per_s, requests_per_s, good_share (streams whose worst underrun
                is at most 0.1 s), all_good
``handoff``     of rows between Thinker and Talker, means over the run from the server's counters:
                ``write_us_per_row`` copying a hidden state into the pool, ``rows_written``;
                ``read_us_per_step`` gathering the rows of a Talker step *and computing its input from them*,
                ``steps_read``; and ``announcement_us``, the distribution over turns of each turn's median time from a
                piece of text's announcement by the Thinker's process to its rows lying ready for the Talker
                (text to phonemes included); ``write_share_of_ttfa``: one row's write, part of the median TTFA
``loop_lag_ms`` p50 and p99 of the server's event loop in the last minute of the run; null if it does not tell
``naive``       null, or the baseline's ``facts`` (types and threads), ``figures`` (``ttfa_s`` until the whole sound,
                which is when a program without a cascade has any; ``rtf``), ``stages`` (seconds from the question until
                each stage had ended), ``ratio`` of the p50 of TTFA (over WebRTC: of voice-to-voice, the same silence
                waited for) to the baseline's, and ``turns``
``turns``       every turn as it was
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from voicechat.bench.loop import Outcome
from voicechat.bench.measures import summarize
from voicechat.bench.turn import Turn

SCHEMA = "voicechat-bench/1"

Table = dict[str, dict[str, float]]


def summaries(rows: Iterable[Mapping[str, float]]) -> Table:
    """The summary of each name in ``rows``, in the order in which names first occur."""
    columns: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    return {name: asdict(found) for name, values in columns.items() if (found := summarize(values)) is not None}


def turn_figures(turns: Sequence[Turn]) -> Table:
    """Figures of all turns that went well, continuity among them."""
    rows = []
    for turn in turns:
        row = {name: value for name, value in turn.figures.items() if name != "announcement_us"}
        if turn.continuity is not None:
            row["worst_underrun_s"] = turn.continuity.worst_s
            row["all_underruns_s"] = turn.continuity.total_s
        rows.append(row)
    return summaries(rows)


def totals(outcome: Outcome) -> dict[str, Any]:
    """Counts and throughput."""
    good = [turn for turn in outcome.turns if turn.error is None]
    played = [turn.continuity.good for turn in good if turn.continuity is not None]
    audio_s, wall_s = sum(turn.audio_s for turn in good), outcome.wall_s
    return {
        "turns": len(outcome.turns),
        "failed": len(outcome.turns) - len(good),
        "wall_s": wall_s,
        "audio_s": audio_s,
        "audio_s_per_s": audio_s / wall_s if wall_s else 0.0,
        "requests_per_s": len(good) / wall_s if wall_s else 0.0,
        "good_share": sum(played) / len(played) if played else None,
        "all_good": bool(played) and all(played) and len(good) == len(outcome.turns),
    }


def measured(outcome: Outcome, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> dict[str, Any]:
    """What is told of a closed loop; ``before`` and ``after`` are the server's ``/v1/stats`` around it."""
    good = [turn for turn in outcome.turns if turn.error is None]
    figures = turn_figures(good)
    return {
        "figures": figures,
        "stages": summaries(turn.stages for turn in good),
        "totals": totals(outcome),
        "handoff": handoff(outcome.turns, before, after, median(figures, "ttfa_s")),
        "loop_lag_ms": after["loop_lag_ms"] if after is not None else None,
    }


def handoff(
    turns: Sequence[Turn], before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, ttfa_s: float | None
) -> dict[str, Any]:
    """Handoff of rows; ``before`` and ``after`` are the server's ``/v1/stats`` around the run."""
    counts = dict.fromkeys(("rows_written", "write_ns", "rows_read", "read_ns"), 0)
    if before is not None and after is not None:
        counts = {name: after["pool"][name] - before["pool"][name] for name in counts}
    write_us = counts["write_ns"] / counts["rows_written"] / 1000 if counts["rows_written"] else None
    announced = summarize(turn.figures.get("announcement_us") for turn in turns if turn.error is None)
    return {
        "write_us_per_row": write_us,
        "rows_written": counts["rows_written"],
        "read_us_per_step": counts["read_ns"] / counts["rows_read"] / 1000 if counts["rows_read"] else None,
        "steps_read": counts["rows_read"],
        "announcement_us": asdict(announced) if announced is not None else None,
        "write_share_of_ttfa": write_us / 1e6 / ttfa_s if write_us is not None and ttfa_s else None,
    }


def median(table: Mapping[str, Mapping[str, float]], name: str) -> float | None:
    """The median of one figure, if it was taken."""
    return table[name]["p50"] if name in table else None


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """Ours as a part of theirs."""
    return ours / theirs if ours is not None and theirs else None


_UNITS = {"_s": ("s", 1.0, 3), "_us": ("µs", 1.0, 0), "_ms": ("ms", 1.0, 1)}


def as_text(report: Mapping[str, Any]) -> str:
    """The report for people."""
    settings, all_, machine = report["settings"], report["totals"], report["machine"]
    lines = [
        f"{report['model']} over {report['kind']}: {settings['users']} at a time, {all_['turns']} turns"
        f" ({all_['failed']} failed), {'spoken' if settings['spoken'] else 'typed'} questions",
        f"{machine['cpu']}, {machine['cores']} cores, load before {machine['load_before']}",
        "",
        f"{'':30}{'p50':>10}{'p95':>10}{'count':>8}",
    ]
    lines += rows_of(report["figures"])
    lines += ["", "stages (seconds since the request, or the end of the turn)", *rows_of(report["stages"], unit="s")]
    lines += ["", "handoff of rows"]
    hand = report["handoff"]
    if hand["write_us_per_row"] is not None:
        share = hand["write_share_of_ttfa"]
        part = f", {share:.3%} of TTFA" if share is not None else ""
        lines.append(
            f"  writing a row               {hand['write_us_per_row']:10.0f} µs (mean of {hand['rows_written']}{part})"
        )
    if hand["read_us_per_step"] is not None:
        lines.append(
            f"  reading and conditioning    {hand['read_us_per_step']:10.0f} µs (mean of {hand['steps_read']})"
        )
    if hand["announcement_us"] is not None:
        lines += rows_of({"announcement to rows ready_us": hand["announcement_us"]})
    good = all_["good_share"]
    lines += [
        "",
        f"throughput   {all_['audio_s_per_s']:.2f} s of sound a second, {all_['requests_per_s']:.2f} answers a second",
        f"continuity   {'not taken' if good is None else f'{good:.0%} of the streams good'}",
    ]
    if report["loop_lag_ms"] is not None:
        lag = report["loop_lag_ms"]
        lines.append(f"loop lag     p50 {lag['p50']:.1f} ms, p99 {lag['p99']:.1f} ms")
    if report["server_start_s"] is not None:
        lines.append(f"server start {report['server_start_s']:.1f} s until ready")
    if report["naive"] is not None:
        lines += _naive_text(report["naive"])
    lines += [f"failed: {turn['question']} {turn['error']}" for turn in report["turns"] if turn["error"]]
    return "\n".join(lines)


def _naive_text(naive: Mapping[str, Any]) -> list[str]:
    facts = ", ".join(f"{name} {value}" for name, value in naive["facts"].items() if "trial" not in name)
    lines = ["", f"one stage after another ({facts})", *rows_of(naive["figures"])]
    lines += rows_of({f"{name} done": values for name, values in naive["stages"].items()}, unit="s")
    if naive["ratio"] is not None:
        lines.append(f"  {naive['compared']}, p50 to p50: {naive['ratio']:.2f} times the baseline's")
    return lines


def rows_of(table: Mapping[str, Mapping[str, float]], unit: str | None = None) -> list[str]:
    """The lines of a table of figures."""
    lines = []
    for name, found in table.items():
        ending = next((end for end in _UNITS if name.endswith(end)), "")
        shown, scale, digits = _UNITS.get(ending, (unit or "", 1.0, 3))
        label = f"{name.removesuffix(ending).replace('_', ' ')}{f' ({shown})' if shown else ''}"
        p50, p95 = found["p50"] * scale, found["p95"] * scale
        lines.append(f"  {label:28}{p50:10.{digits}f}{p95:10.{digits}f}{found['count']:8d}")
    return lines
