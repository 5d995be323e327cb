"""``voicechat watermark``: look for marks in files, and show what this deployment's own mark is."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from voicechat.config import ConfigError, Settings, load_settings
from voicechat.contract.provenance import CannotCheck, MarkReport, MarkSpan
from voicechat.marking import known_keys, own_mark
from voicechat.watermark.keys import Key
from voicechat.watermark.store import payload_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FOUND, NOT_FOUND, FAILED, USAGE_ERROR = 0, 1, 3, 2
"""Exit codes of ``detect``: a mark in every file; some file without one; some file that could not be looked into."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommand's own subcommands."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    detect = commands.add_parser(
        "detect",
        help="look for marks in audio and video files",
        description="Look for marks in audio and video files of any length. Exit code 0: every file is marked; 1: some "
        "file is not; 3: some file could not be read.",
    )
    detect.add_argument("files", nargs="+", type=Path, metavar="FILE", help="anything that FFmpeg reads")
    detect.add_argument("--json", action="store_true", help="print one JSON object a line, one for each file")
    detect.add_argument("--plot", type=Path, metavar="PNG", help="draw the scores and marked parts; needs matplotlib")
    detect.add_argument(
        "--key",
        dest="keys",
        action="append",
        metavar="HEX",
        help="key to look by, in place of those of the settings; may be repeated",
    )
    detect.set_defaults(what=_detect)
    show = commands.add_parser("show", help="show the payload and the key's public name of this deployment")
    show.set_defaults(what=_show)
    for command in (detect, show):
        command.add_argument("--model", metavar="NAME", help="a name in configs/ or a YAML file; default embedded")
        command.add_argument(
            "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="any setting"
        )


def main(options: argparse.Namespace) -> int:
    """Run it; the exit code."""
    try:
        code: int = options.what(options, load_settings(options.model, overrides=options.overrides))
    except (ConfigError, ValueError, OSError) as error:
        print(f"voicechat: {error}", file=sys.stderr)
        return USAGE_ERROR
    return code


def _show(_: argparse.Namespace, settings: Settings) -> int:
    mark = own_mark(settings, make=False)
    print(f"payload  {mark.payload:04x} ({mark.payload})")
    print(f"key      {mark.key_id}")
    print(f"marking  {'on' if settings.watermark.enabled else 'off'}")
    return 0


def _detect(options: argparse.Namespace, settings: Settings) -> int:
    from voicechat.provenance import detect_file

    keys = [Key.parse(text) for text in options.keys] if options.keys else known_keys(settings, make=False)
    expected = [] if options.keys else [payload_of(settings.watermark.payload)]  # others' keys mark other payloads
    reports: dict[Path, MarkReport] = {}
    code = FOUND
    for path in options.files:
        try:
            report = reports[path] = detect_file(path, keys, expected=expected)
        except (CannotCheck, OSError) as error:
            code = FAILED
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            name = error.code if isinstance(error, CannotCheck) else "unreadable"
            if options.json:
                print(msgspec.json.encode({"file": str(path), "error": {"code": name, "message": reason}}).decode())
            else:
                print(f"{path}: {reason}", file=sys.stderr)
            continue
        if not report.detected:
            code = max(code, NOT_FOUND)
        if options.json:
            print(msgspec.json.encode({"file": str(path), **msgspec.structs.asdict(report)}).decode(), flush=True)
        else:
            print(describe(path, report), flush=True)
    if options.plot is not None and reports:
        plot(options.plot, reports)
    return code


def describe(path: Path, report: MarkReport) -> str:
    """A report for people: a line for the file, one for each marked part."""
    what = "marked" if report.detected else "no mark found"
    lines = [f"{path}: {what}, p = {report.p_value:.2g}, {report.duration_s:.1f} s of sound"]
    return "\n".join([*lines, *map(_line, report.spans)])


def _line(span: MarkSpan) -> str:
    payload = "payload not readable" if span.payload is None else f"payload {span.payload:04x} ({span.payload})"
    return f"  {span.start_s:9.2f} to {span.end_s:9.2f} s  {payload}  key {span.key_id}  p = {span.p_value:.2g}"


def plot(path: Path, reports: dict[Path, MarkReport]) -> None:
    """Scores over time, a panel for each file, the marked parts shaded. Raises ValueError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("--plot needs matplotlib: pip install matplotlib") from None
    figure = Figure(figsize=(10, 2.4 * len(reports)), layout="constrained")
    FigureCanvasAgg(figure)
    panels: list[Axes] = list(figure.subplots(len(reports), 1, squeeze=False)[:, 0])
    for panel, (name, report) in zip(panels, reports.items(), strict=True):
        panel.step(np.arange(len(report.scores)), report.scores, where="post", color="#5b4ee6")
        for span in report.spans:
            panel.axvspan(span.start_s, span.end_s, color="#5b4ee6", alpha=0.15)
        panel.set(title=name.name, xlabel="seconds", ylabel="score", xlim=(0, max(1.0, report.duration_s)))
    figure.savefig(path, dpi=120)
