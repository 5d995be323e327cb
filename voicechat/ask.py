"""``voicechat ask``: one question, spoken or typed, answered aloud into a WAV file.

With ``--server`` a running server is asked; without, one is started for the question, on a free port of this machine.
Exit codes: 0 answered, 1 not answered, 2 the question or an option can't be used.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voicechat.bench.chat_client import Reply, audio_part, text_part
from voicechat.bench.measures import last_voiced, real_time_factor
from voicechat.bench.outcome import API_KEY, BenchError
from voicechat.bench.served import serving
from voicechat.contract.sound import EARS_RATE, PCM_RATE, EarsPcm
from voicechat.media.decode import AudioError, decode_audio
from voicechat.media.resample import to_pcm
from voicechat.media.wav import encode_wav

_STAGES = {
    "ears": "heard",
    "thinker_first_token": "first word thought",
    "talker_first_code": "first speech code",
    "talker_first_chunk": "first chunk of codes",
    "voicebox_first_chunk": "first chunk of sound",
    "first_audio": "first sound",
    "thinker_done": "whole text",
    "done": "whole answer",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """A question's answer, and what was heard of the question if it was spoken."""

    model: str
    heard: str | None
    reply: Reply


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommand's arguments."""
    parser.add_argument(
        "question", nargs="?", type=Path, metavar="QUESTION.wav", help="the spoken question: WAV, MP3, FLAC or Ogg"
    )
    parser.add_argument("--text", metavar="TEXT", help="a typed question, instead of or together with a spoken one")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("answer.wav"), metavar="ANSWER.wav", help="default: answer.wav"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--model", metavar="NAME", help="a name in configs/ or a YAML file; default embedded")
    parser.add_argument(
        "--server", metavar="URL", help=f"ask this running server; its key, if it needs one, is taken from ${API_KEY}"
    )
    parser.add_argument("--quality", action="store_true", help="best sound rather than the soonest (large chunks)")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="longest answer in the Thinker's tokens")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="what the models run on, without --server")
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any setting, without --server",
    )


def main(options: argparse.Namespace) -> int:
    """Ask and answer; the exit code."""
    try:
        sound = _read_question(options)
        answer = asyncio.run(_ask(options, sound))
        if not len(answer.reply.pcm):
            raise BenchError(f"the answer has no sound: {answer.reply.text!r}")
        try:
            options.output.write_bytes(encode_wav(answer.reply.pcm, PCM_RATE))
        except OSError as error:
            raise BenchError(f"{options.output}: {error.strerror}") from None
    except BenchError as error:
        print(f"voicechat: {error}", file=sys.stderr)
        return error.code
    print(json.dumps(as_json(answer, options.output), ensure_ascii=False) if options.json else told(answer, options))
    return 0


def _read_question(options: argparse.Namespace) -> EarsPcm | None:
    """The spoken question, float32 mono at 16 kHz, if there is one. What is wrong with it is told before any start."""
    if options.max_tokens is not None and options.max_tokens < 1:
        raise BenchError("--max-tokens must be at least 1", 2)
    if options.text is not None and not options.text.strip():
        raise BenchError("--text is empty", 2)
    if not options.output.absolute().parent.is_dir():
        raise BenchError(f"{options.output}: there is no such folder", 2)
    path: Path | None = options.question
    if path is None:
        if options.text is None:
            raise BenchError("give a sound file with the question, or --text", 2)
        return None
    try:
        sound = decode_audio(path.read_bytes())
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}", 2) from None
    except AudioError as error:
        raise BenchError(f"{path}: {error}", 2) from None
    if last_voiced(sound, EARS_RATE) is None:
        raise BenchError(f"{path}: there is only silence in it", 2)
    return sound


async def _ask(options: argparse.Namespace, sound: EarsPcm | None) -> Answer:
    parts: list[dict[str, Any]] = []
    if options.text is not None:
        parts.append(text_part(options.text))
    if sound is not None:
        parts.append(audio_part(encode_wav(to_pcm(sound), EARS_RATE)))
    async with serving(options) as served:
        reply = await served.client.ask(parts, latency_first=not options.quality, max_tokens=options.max_tokens)
    heard = " ".join(reply.heard).strip()
    if sound is not None and options.text is None and not heard:
        raise BenchError(f"{options.question}: no words could be made out in it")
    return Answer(served.model, heard if sound is not None else None, reply)


def as_json(answer: Answer, output: Path) -> dict[str, Any]:
    """The object that ``--json`` prints: times in seconds since the question, ``handoff_us`` in microseconds."""
    reply = answer.reply
    return {
        "model": answer.model,
        "transcript": answer.heard,
        "answer": reply.text,
        "finish_reason": reply.finish_reason,
        "output": str(output),
        "audio_s": round(reply.audio_s, 3),
        "ttfa_s": reply.ttfa_s,
        "total_s": reply.done_s,
        "rtf": real_time_factor(reply.done_s, reply.audio_s),
        "times": reply.times,
    }


def told(answer: Answer, options: argparse.Namespace) -> str:
    """The answer for people."""
    asked, reply = [text for text in (options.text, answer.heard) if text], answer.reply
    speed = reply.done_s / reply.audio_s
    lines = [
        f"You:     {' / '.join(asked)}",
        f"Answer:  {reply.text.strip()}",
        f"Sound:   {options.output}, {reply.audio_s:.1f} s, made at {speed:.2f} times its length",
        f"Times:   {reply.ttfa_s or 0.0:6.3f} s  first sound received",
    ]
    for name, label in _STAGES.items():
        if (value := reply.times.get(name)) is not None:
            lines.append(f"         {value:6.3f} s  {label}")
    if (handoff := reply.times.get("handoff_us")) is not None:
        lines.append(
            f"         {handoff:6.0f} µs from a text's announcement to its being usable in the Talker (median)"
        )
    return "\n".join(lines)
