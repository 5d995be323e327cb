"""The report of ``voicechat bench realtime``: one JSON object, or tables for people.

``schema``      "voicechat-bench-realtime/1"
``command``, ``started``, ``machine``, ``model``, ``server_start_s``  as in :mod:`voicechat.bench.report`
``settings``    transports, turns (of each transport), detection, eagerness, voices, missing (packages that would add
                voices), server, overrides, script (how many entries the set has)
``transports``  of each transport:
                ``figures`` name -> {p50, p95, mean, least, most, count}, seconds:
                ``voice_to_voice_s`` last voiced sample sent -> first audible sample of the answer received;
                ``voice_to_ear_s`` the same until it is played (by the simulated player, or out of aiortc's jitter
                buffer); ``turn_decided_s`` last voiced sample sent -> ``input_audio_buffer.committed`` received;
                ``decided_to_voice_s`` from there to the first audible sample received;
                ``barge_in_stop_s`` first voiced sample of an interruption sent -> last audible sample of the old reply
                played (WebSocket: by a player that stops at ``speech_started``) or received (WebRTC);
                ``stop_decided_s`` the same until the client was told; ``worst_underrun_s`` of answers in a player
                ``by_kind`` kind -> the same figures of that kind
                ``stages`` as the server tells them in the metadata of ``response.done``, since it decided that the turn
                was over (``endpointing`` is the silence waited for; ``thinker_…``, ``talker_…`` and ``voicebox_…``
                count from when the cascade was asked)
                ``behaviour`` fault -> {count, of, share}: of the turns at which it could happen
                ``kinds`` kind -> {turns, good, void, failed, faults}
                ``dips`` replies in which something was heard that were held, or stopped, and went on:
                {count, of, p50, most}. Over WebSocket the rest comes as another response; it is held against what was
                received of the first (:mod:`voicechat.bench.realtime_rest`)
                ``words_found`` mean share of the expected words in the transcripts
                ``late_s`` by how much the client's microphone was late at most, over all turns: above :data:`LATE_S`
                the machine was too busy for the figures to say much of the server
                ``conformance`` {events, violations, checked}; ``server_errors``: ``error`` events by their message
``turns``       every turn as it was
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from voicechat.bench.measures import GOOD_UNDERRUN_S, summarize
from voicechat.bench.realtime_judge import DIP_S, Fault, Verdict
from voicechat.bench.report import Table, rows_of, summaries
from voicechat.bench.script import Expect

SCHEMA = "voicechat-bench-realtime/1"

LATE_S = 0.06
"""A client that sends its sound later than this does not sound to the server as its user does."""

_SPOKEN = (Expect.ONE_TURN, Expect.INTERRUPTION)
_WHERE: dict[Fault, tuple[Expect, ...]] = {
    Fault.CUT_OFF: _SPOKEN,
    Fault.MISSED_TURN: _SPOKEN,
    Fault.FALSE_TURN: (Expect.NO_TURN, Expect.NO_INTERRUPTION),
    Fault.FALSE_INTERRUPT: (Expect.NO_INTERRUPTION,),
    Fault.MISSED_INTERRUPT: (Expect.INTERRUPTION,),
}
"""The turns at which each fault is looked for."""


def transport_report(verdicts: Sequence[Verdict], *, events: int, checked: bool) -> dict[str, Any]:
    """The measured part of the report of one transport."""
    good = [verdict for verdict in verdicts if verdict.error is None and verdict.void is None]
    kinds = list(dict.fromkeys(verdict.kind for verdict in verdicts))
    dips = [verdict.dip_s for verdict in good if verdict.dip_s is not None]
    held = summarize(dip for dip in dips if dip > DIP_S)
    found = summarize(verdict.words_found for verdict in good)
    return {
        "figures": _figures(good),
        "by_kind": {kind: _figures(verdict for verdict in good if verdict.kind == kind) for kind in kinds},
        "stages": summaries(verdict.stages for verdict in good),
        "behaviour": {fault.value: _share(fault, good) for fault in Fault},
        "kinds": {kind: _kind([verdict for verdict in verdicts if verdict.kind == kind]) for kind in kinds},
        "dips": None
        if not dips
        else {
            "count": 0 if held is None else held.count,
            "of": len(dips),
            "p50": None if held is None else held.p50,
            "most": None if held is None else held.most,
        },
        "taken_back": sum(verdict.taken_back > 0 for verdict in good),
        "words_found": None if found is None else found.mean,
        "late_s": asdict(late) if (late := summarize(verdict.late_s for verdict in verdicts)) is not None else None,
        "conformance": {
            "checked": checked,
            "events": events,
            "violations": dict(Counter(violation for verdict in verdicts for violation in verdict.violations)),
        },
        "server_errors": dict(Counter(error for verdict in verdicts for error in verdict.server_errors)),
    }


def _figures(verdicts: Iterable[Verdict]) -> Table:
    rows = []
    for verdict in verdicts:
        row = dict(verdict.figures)
        if verdict.continuity is not None:
            row["worst_underrun_s"] = verdict.continuity.worst_s
        rows.append(row)
    return summaries(rows)


def _share(fault: Fault, good: Sequence[Verdict]) -> dict[str, Any]:
    """How often a fault happened. One that happened where it is not looked for counts in both."""
    count = sum(fault in verdict.faults for verdict in good)
    among = sum(verdict.expect in _WHERE[fault] or fault in verdict.faults for verdict in good)
    return {"count": count, "of": among, "share": count / among if among else None}


def _kind(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    counted = [verdict for verdict in verdicts if verdict.error is None and verdict.void is None]
    return {
        "turns": len(verdicts),
        "good": sum(not verdict.faults for verdict in counted),
        "void": sum(verdict.void is not None for verdict in verdicts),
        "failed": sum(verdict.error is not None for verdict in verdicts),
        "faults": dict(Counter(fault.value for verdict in counted for fault in verdict.faults)),
    }


def as_text(report: Mapping[str, Any]) -> str:
    """The report for people."""
    settings, machine = report["settings"], report["machine"]
    detection = settings["detection"] + (f" ({settings['eagerness']})" if settings["eagerness"] else "")
    lines = [
        f"{report['model']}, realtime over {' and '.join(report['transports'])}: {settings['turns']} turns of the"
        f" {settings['set']} set of {settings['script']}, {detection}"
        + (", on a simulated clock" if settings["simulated"] else ""),
        f"voices: {', '.join(settings['voices'])}",
        *([f"more voices with: {', '.join(settings['missing'])}"] if settings["missing"] else []),
        f"{machine['cpu']}, {machine['cores']} cores, load before {machine['load_before']}",
    ]
    for transport, part in report["transports"].items():
        lines += ["", f"{transport:30}{'p50':>10}{'p95':>10}{'count':>8}", *rows_of(part["figures"])]
        lines += [f" stages of {transport}, by the server", *rows_of(part["stages"], unit="s")]
    lines += _behaviour(report["transports"])
    lines += _kinds(report["transports"])
    for transport, part in report["transports"].items():
        lines += ["", *_rest(transport, part)]
    lines += _troubles(report["turns"])
    return "\n".join(lines)


def _behaviour(parts: Mapping[str, Any]) -> list[str]:
    lines = ["", f"{'behaviour':30}" + "".join(f"{transport:>20}" for transport in parts)]
    for fault in Fault:
        cells = []
        for part in parts.values():
            found = part["behaviour"][fault.value]
            share = "" if found["share"] is None else f" ({found['share']:.1%})"
            cells.append(f"{found['count']} of {found['of']}{share}")
        lines.append(f"  {fault.value + 's':28}" + "".join(f"{cell:>20}" for cell in cells))
    return lines


def _kinds(parts: Mapping[str, Any]) -> list[str]:
    lines = ["", f"{'kind':22}{'':9}{'turns':>6}{'good':>6}{'void':>6}{'failed':>8}  {'v2v p50':>8}{'p95':>8}  faults"]
    for transport, part in parts.items():
        for kind, found in part["kinds"].items():
            v2v = part["by_kind"][kind].get("voice_to_voice_s")
            times = f"{'':16}" if v2v is None else f"{v2v['p50']:8.3f}{v2v['p95']:8.3f}"
            faults = ", ".join(f"{count} {name}" for name, count in found["faults"].items())
            lines.append(
                f"  {kind:20}{transport:9}{found['turns']:6}{found['good']:6}{found['void']:6}{found['failed']:8}"
                f"  {times}  {faults}"
            )
    return lines


def _rest(transport: str, part: Mapping[str, Any]) -> list[str]:
    lines = []
    if part["dips"] is not None:
        dips = part["dips"]
        long = "" if not dips["count"] else f", p50 {dips['p50']:.2f} s, longest {dips['most']:.2f} s"
        lines.append(f"{transport}: dips         {dips['count']} of {dips['of']} replies went on after one{long}")
    if part["taken_back"]:
        lines.append(f"{transport}: taken back   an end in {part['taken_back']} turns, whose speakers then went on")
    if part["words_found"] is not None:
        lines.append(f"{transport}: transcripts  {part['words_found']:.1%} of the expected words were heard")
    underrun = part["figures"].get("worst_underrun_s")
    if underrun is not None:
        good = "at most" if underrun["most"] <= GOOD_UNDERRUN_S else "up to"
        lines.append(f"{transport}: continuity   underruns of {good} {underrun['most']:.3f} s")
    if part["late_s"] is not None and part["late_s"]["p95"] > LATE_S:
        late = f"its microphone was up to {part['late_s']['p95']:.2f} s late (p95 of the turns)"
        lines.append(f"{transport}: this machine was too busy for true figures: {late}")
    conformance = part["conformance"]
    if conformance["checked"]:
        count = sum(conformance["violations"].values())
        lines.append(f"{transport}: conformance  {conformance['events']} events, {count} violations")
        lines += [f"  {count} x {violation}" for violation, count in conformance["violations"].items()]
    else:
        lines.append(f"{transport}: conformance  not checked: install voicechat[bench] for the openai package")
    lines += [f"{transport}: {count} x error event: {message}" for message, count in part["server_errors"].items()]
    return lines


def _troubles(turns: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for turn in turns:
        why = turn["error"] or turn["void"] or ", ".join(turn["faults"])
        if why:
            lines.append(
                f"  {turn['transport']:7} {turn['name']:24} {turn['voice']:18} {why}  heard: {turn['heard']!r}"
            )
    return ["", "turns that did not go as they must", *lines] if lines else []
