"""``voicechat bench KIND``: its options. What each kind does is told by the module that runs it, see :data:`KINDS`.

Without ``--server`` a server is started for the run on a free port of this machine, and stopped after it.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from voicechat.bench.outcome import API_KEY

KINDS = {
    "rest": "voicechat.bench.asking",
    "webrtc": "voicechat.bench.asking",
    "realtime": "voicechat.bench.realtime",
    "load": "voicechat.bench.load",
    "calls": "voicechat.bench.calls",
    "loss": "voicechat.bench.loss",
    "chaos": "voicechat.bench.chaos",
    "soak": "voicechat.bench.soak",
    "voice": "voicechat.bench.voice",
    "watermark": "voicechat.bench.watermark",
}
"""The module whose ``main`` runs each kind."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommand's arguments, for each kind of benchmark its own."""
    kinds = parser.add_subparsers(dest="kind", metavar="kind", required=True)
    _add_user_arguments(kinds.add_parser("rest", help="users over REST"))
    _add_user_arguments(kinds.add_parser("webrtc", help="users in calls over WebRTC"))
    _add_realtime_arguments(kinds.add_parser("realtime", help="a scripted set of recordings, over realtime sessions"))
    _add_load_arguments(kinds.add_parser("load", help="more and more users, over REST and WebSocket"))
    _add_call_arguments(kinds.add_parser("calls", help="what calls cost and how they sound, more and more of them"))
    _add_loss_arguments(kinds.add_parser("loss", help="what lost and late packets do to the words, without a server"))
    _add_chaos_arguments(kinds.add_parser("chaos", help="kills, stalls, floods and rude callers, under load"))
    _add_soak_arguments(kinds.add_parser("soak", help="many short turns and connects; what is held after them"))
    _add_voice_arguments(kinds.add_parser("voice", help="the voices, judged on held-out texts beside their teachers"))
    _add_watermark_arguments(
        kinds.add_parser("watermark", help="what the mark survives, how it is read, what it costs")
    )


def _add_watermark_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the watermark's bench."""
    parser.add_argument(
        "--clips", type=Path, metavar="DIR", help="unmarked clips of our own voices (spoken by a server, and kept)"
    )
    parser.add_argument("--count", type=_positive, default=35, metavar="N", help="texts, in each voice and mode (35)")
    parser.add_argument(
        "--texts", type=Path, metavar="FILE", help='JSON list of {"key", "text"}; else the held-out ones'
    )
    parser.add_argument(
        "--quality",
        type=_count,
        default=60,
        metavar="N",
        help="clips judged by PESQ, DNSMOS and WER too (60)",
    )
    parser.add_argument("--ears", type=Path, metavar="DIR", help="faster-whisper tiny.en (the one that is served with)")
    parser.add_argument("--unmarked", type=Path, action="append", default=[], metavar="DIR", help="sound without mark")
    parser.add_argument("--made-hours", type=float, default=1.0, metavar="H", help="of made music and noise (1)")
    parser.add_argument("--unmarked-keys", type=_positive, default=2, metavar="N", help="keys it is searched with (2)")
    parser.add_argument("--limit", type=_positive, metavar="N", help="at most so many clips")
    parser.add_argument("--windows", type=_positive, metavar="N", help="at most so many of 2 s, and of 5 s, a clip")
    parser.add_argument("--records", type=Path, metavar="FILE", help="go on with what is here, and add what is found")
    parser.add_argument("--processes", type=_positive, default=1, metavar="N", help="at a time (1)")
    parser.add_argument("--perth", action="store_true", help="ask resemble-perth too (pip install resemble-perth)")
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw the ROC")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the report as JSON")
    _add_server_arguments(parser)


def _add_user_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the kinds with users in a closed loop."""
    parser.add_argument("--concurrency", type=_positive, default=1, metavar="N", help="users at a time (1)")
    parser.add_argument(
        "--turns", type=_positive, default=20, metavar="M", help="timed turns of all users together (20)"
    )
    parser.add_argument(
        "--warmup",
        type=_count,
        default=2,
        metavar="K",
        help="turns before, not timed; at least one of each user, 0 for none (2)",
    )
    parser.add_argument(
        "--naive", action="store_true", help="also run the models one stage after another, turn about with the server"
    )
    parser.add_argument("--spoken", action="store_true", help="ask aloud over REST too (WebRTC always does)")
    parser.add_argument(
        "--voice", choices=("hibari", "espeak-ng"), help="who speaks the questions (the first that is installed)"
    )
    parser.add_argument("--quality", action="store_true", help="rest: ask for the best sound rather than the soonest")
    parser.add_argument("--one-call", action="store_true", help="webrtc: one call for all turns of a user")
    parser.add_argument("--max-tokens", type=_positive, metavar="N", help="longest answer in the Thinker's tokens")
    parser.add_argument("--timeout", type=float, default=180.0, metavar="S", help="longest turn in seconds (180)")
    _add_server_arguments(parser)


def _add_realtime_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the scripted set."""
    parser.add_argument(
        "--transport", choices=("ws", "webrtc", "both"), default="both", help="what the sessions go over (both)"
    )
    parser.add_argument(
        "--script",
        choices=("tuning", "held-out"),
        default="held-out",
        help="the set that turn-taking is tuned on, or the one that it is only measured on (held-out)",
    )
    parser.add_argument(
        "--simulate",
        action="store_true",
        help="without a server and without waiting: the sessions on a simulated clock, with the real detectors and ASR",
    )
    parser.add_argument(
        "--turns",
        type=_positive,
        metavar="N",
        help="turns over each transport, of all kinds (36); with --only or --simulate: all",
    )
    parser.add_argument("--only", default="", metavar="NAME", help="only turns whose name begins so, such as pause")
    parser.add_argument("--warmup", type=_count, default=1, metavar="K", help="questions before, not counted (1)")
    parser.add_argument(
        "--detection", choices=("semantic_vad", "server_vad"), default="semantic_vad", help="how turns are detected"
    )
    parser.add_argument("--eagerness", choices=("low", "medium", "high", "auto"), help="of semantic_vad (auto)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the sound and the events of every turn")
    _add_server_arguments(parser)


def _add_load_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of more and more users."""
    parser.add_argument(
        "--concurrency", type=_counts, default=(1, 8, 32, 64), metavar="N,…", help="users at a time (1,8,32,64)"
    )
    parser.add_argument("--transport", choices=("rest", "ws", "both"), default="both", help="(both)")
    parser.add_argument("--turns-each", type=_positive, default=2, metavar="N", help="turns of each user (2)")
    parser.add_argument("--least", type=_positive, default=8, metavar="N", help="fewest turns of a step (8)")
    parser.add_argument("--max-tokens", type=_positive, default=64, metavar="N", help="longest answer (64)")
    parser.add_argument(
        "--silence-ms", type=_positive, default=200, metavar="MS", help="ws: the pause that ends a turn (200)"
    )
    parser.add_argument("--naive", action="store_true", help="also run the models one stage after another, between")
    parser.add_argument(
        "--naive-turns", type=_positive, default=2, metavar="N", help="turns of the baseline after each step (2)"
    )
    parser.add_argument(
        "--profile", action="store_true", help="after each step, see where the time goes under the same load"
    )
    parser.add_argument(
        "--client-processes", type=_positive, metavar="N", help="processes of the users (by users and cores)"
    )
    parser.add_argument("--timeout", type=float, default=180.0, metavar="S", help="longest turn in seconds (180)")
    _add_server_arguments(parser)


def _add_call_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of more and more calls."""
    parser.add_argument(
        "--concurrency", type=_counts, default=(1, 20, 40), metavar="N,…", help="calls at a time (1,20,40)"
    )
    parser.add_argument("--seconds", type=float, default=20.0, metavar="S", help="measured, of each number (20)")
    parser.add_argument("--loss", type=float, default=0.0, metavar="P", help="percent of packets lost each way (0)")
    parser.add_argument("--jitter", type=float, default=0.0, metavar="MS", help="delay of packets, up to so much (0)")
    parser.add_argument(
        "--cascade",
        choices=("double", "served"),
        default="double",
        help="answers without models, or those of a whole server (double; served with --server)",
    )
    parser.add_argument(
        "--detection", choices=("semantic_vad", "server_vad"), default="semantic_vad", help="how turns are detected"
    )
    parser.add_argument(
        "--client-processes", type=_positive, metavar="N", help="processes of the callers (by calls and cores)"
    )
    parser.add_argument("--profile", type=Path, metavar="FILE", help="double: write the server's cProfile")
    _add_server_arguments(parser)


def _add_loss_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the simulated bad network."""
    parser.add_argument("--texts", type=_positive, default=40, metavar="N", help="spoken questions (40)")
    parser.add_argument("--loss", type=float, default=5.0, metavar="P", help="percent of packets lost (5)")
    parser.add_argument("--burst", type=float, default=1.0, metavar="N", help="packets lost in a row, on average (1)")
    parser.add_argument("--jitter", type=float, default=40.0, metavar="MS", help="delay of packets, up to so much (40)")
    _add_model_arguments(parser)


def _add_chaos_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the blows."""
    kinds = ("kill", "stall", "flood", "rude")
    parser.add_argument("--blows", type=_positive, default=12, metavar="N", help="in turn of each kind (12)")
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=list(kinds), help="of blows (all)")
    parser.add_argument("--concurrency", type=_positive, default=3, metavar="N", help="users all the while (3)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of moments and stages (1)")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="longest request in seconds (60)")
    _add_server_arguments(parser)


def _add_soak_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of many turns."""
    parser.add_argument("--turns", type=_positive, default=1000, metavar="N", help="(1000)")
    parser.add_argument("--concurrency", type=_positive, default=2, metavar="N", help="users at a time (2)")
    parser.add_argument("--max-tokens", type=_positive, default=8, metavar="N", help="longest answer (8)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of who is rude (1)")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="longest turn in seconds (60)")
    _add_server_arguments(parser)


def _add_voice_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the judging of voices."""
    parser.add_argument("--count", type=_positive, default=200, metavar="N", help="texts (200)")
    parser.add_argument(
        "--texts", type=Path, metavar="FILE", help='JSON list of {"key", "text"}; else the held-out ones'
    )
    parser.add_argument("--voices", nargs="+", default=[], metavar="VOICE", help="which voices (all of the server)")
    parser.add_argument(
        "--modes", nargs="+", choices=("latency", "quality"), default=["latency", "quality"], help="chunk modes (both)"
    )
    parser.add_argument(
        "--teacher",
        action="append",
        default=[],
        metavar="VOICE=KIND[:ARGUMENT]",
        help="who taught a voice, as for voicechat train; may be repeated (known for heart and joe)",
    )
    parser.add_argument("--concurrency", type=_positive, default=3, metavar="N", help="texts at a time (3)")
    parser.add_argument("--processes", type=_positive, default=1, metavar="N", help="of teachers and judges (1)")
    parser.add_argument("--ears", type=Path, metavar="DIR", help="faster-whisper tiny.en (the one that is served with)")
    parser.add_argument("--strong", type=Path, metavar="DIR", help="a stronger faster-whisper model, asked as well")
    parser.add_argument("--images", type=Path, metavar="DIR", help="draw spectrograms of a few texts of each voice")
    parser.add_argument("--work", type=Path, metavar="DIR", help="where sounds and words are kept (in the data folder)")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="S", help="longest request in seconds (300)")
    _add_server_arguments(parser)


def _add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Which server is measured, and how that is told."""
    _add_model_arguments(parser)
    parser.add_argument(
        "--server",
        metavar="URL",
        help=f"measure this running server; its key, if it needs one, is taken from ${API_KEY}",
    )


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Whose models are used, and how the report is told."""
    parser.add_argument("--model", metavar="NAME", help="a name in configs/ or a YAML file; default embedded")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="what the models run on, without --server")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="any setting; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _positive(text: str) -> int:
    """A whole number from 1 up."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return value


def _counts(text: str) -> tuple[int, ...]:
    values = tuple(int(part) for part in text.split(","))
    if not values or min(values) < 1:
        raise argparse.ArgumentTypeError("numbers from 1 up, with commas between")
    return values


def main(options: argparse.Namespace) -> int:
    """Run the benchmark; 0 if all went well (of realtime: if it ran), 1 if not, 2 if an option can't be used."""
    code: int = importlib.import_module(KINDS[options.kind]).main(options)
    return code
