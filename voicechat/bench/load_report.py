"""The load benchmark's report for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def as_text(report: Mapping[str, Any]) -> str:
    """A table, one line a run."""
    machine = report["machine"]
    lines = [
        f"{report['model']} under load: {machine['cpu']}, {machine['cores']} cores,"
        f" load before {machine['load_before']}",
        "",
        f"{'':6}{'users':>6}{'failed':>7}{'TTFA p50':>10}{'p95 ms':>8}{'v2v p50':>9}{'RTF p95':>9}{'good':>6}"
        f"{'sound/s':>9}{'GPU %':>7}{'lag p99':>9}{'x naive':>9}",
    ]
    for run, ratio in zip(report["runs"], report["ratios"], strict=True):
        figures, totals = run["figures"], run["totals"]
        good = totals["good_share"]
        gpu = max((gpu["utilisation_mean"] for gpu in run["gpus"]), default=None)
        lag = run["loop_lag_ms"]["p99"] if run["loop_lag_ms"] is not None else None
        lines.append(
            f"{run['transport']:6}{run['users']:6d}{totals['failed']:7d}"
            f"{_shown(figures, 'ttfa_s', 'p50', 1000):>10}{_shown(figures, 'ttfa_s', 'p95', 1000):>8}"
            f"{_shown(figures, 'voice_to_voice_s', 'p50', 1000):>9}{_shown(figures, 'rtf', 'p95', 1, 2):>9}"
            f"{_number(None if good is None else 100 * good):>6}{totals['audio_s_per_s']:9.1f}"
            f"{_number(gpu):>7}{_number(lag, 1):>9}{_number(ratio['throughput'], 1):>9}"
        )
    lines += ["", "where the time goes, p50 in ms since the request or the end of the turn"]
    for run in report["runs"]:
        stages = ", ".join(f"{name} {1000 * found['p50']:.0f}" for name, found in run["stages"].items())
        lines.append(f"{run['transport']:6}{run['users']:6d}  {stages}")
    for run in report["runs"]:
        lines += [f"{run['transport']} {run['users']}: {count} x {text}" for text, count in run["errors"].items()]
        if run["row_faults"]:
            lines.append(f"{run['transport']} {run['users']}: {run['row_faults']} rows were read wrongly")
    for run in report["runs"]:
        if run["profile"] is not None:
            lines += [
                "",
                f"{run['transport']} {run['users']}: where each process's time goes",
                *_profile(run["profile"]),
            ]
    if report["naive"] is not None:
        naive = report["naive"]
        lines += [
            "",
            f"one stage after another: {naive['throughput']['audio_s_per_s']:.2f} s of sound a second, "
            f"whole answer p50 {1000 * naive['figures']['ttfa_s']['p50']:.0f} ms",
        ]
    return "\n".join(lines)


def _profile(profile: Mapping[str, Any]) -> list[str]:
    """Of each process: its event loop, and the steps of its engine."""
    lines = []
    for name, found in profile.items():
        if "error" in found:
            lines.append(f"  {name:10} {found['error']}")
            continue
        host, engine = found["host"], found["engine"]
        parts = ", ".join(f"{label} {share:.0%}" for label, share in host["share"].items())
        lines.append(
            f"  {name:10} loop {host['loop']:4.0%}, {host['messages_per_s']:6.0f} messages/s; {parts or 'no work'}"
        )
        if engine is None:
            continue
        step, gpu = engine["step_ms"], engine["gpu"]
        parts = ", ".join(f"{label} {share:.0%}" for label, share in engine["share"].items())
        if engine["steps"]:
            lines.append(f"  {'':10} {engine['steps']} steps of {_number(step, 1)} ms: {parts}")
        if gpu is not None:
            copies = gpu["to_host"]
            lines.append(
                f"  {'':10} GPU busy {gpu['busy']:.0%}, {gpu['kernels']} kernels;"
                f" to the host {copies['copies']} copies, {copies['bytes']} bytes, {gpu['rows_to_host']} of them rows"
            )
    return lines


def _shown(figures: Mapping[str, Mapping[str, float]], name: str, which: str, scale: float, digits: int = 0) -> str:
    return _number(figures[name][which] * scale if name in figures else None, digits)


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
