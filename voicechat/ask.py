"""``voicechat ask``: one question, spoken or typed, answered aloud into a WAV file.

With ``--server`` a running server is asked over its API; without, the cascade is started in this process, which takes
as long as starting a server does. Exit codes: 0 answered, 1 not answered, 2 the question or an option can't be used.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from voicechat.bench.chat_client import ChatClient, ClientError, audio_part, text_part
from voicechat.bench.measures import last_voiced
from voicechat.contract.cascade import Cascade
from voicechat.contract.errors import CascadeError
from voicechat.contract.events import AudioDelta, Finished, Heard, TextDelta
from voicechat.contract.requests import AudioPart, Message, ResponseRequest, Sampling, TextPart
from voicechat.contract.sound import EARS_RATE, PCM_RATE, EarsPcm, Pcm
from voicechat.media.decode import AudioError, decode_audio
from voicechat.media.resample import to_pcm
from voicechat.media.wav import encode_wav

if TYPE_CHECKING:
    from voicechat.config import Settings

API_KEY = "VOICECHAT_API_KEY"
"""Environment variable with the bearer token for ``--server``."""

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


class AskError(Exception):
    """The question could not be answered; ``str()`` says why, ``code`` is the exit code."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


@dataclass(slots=True)
class Answer:
    """A question's answer. ``times`` are seconds since the question was asked; ``ttfa_s`` until the first sound."""

    model: str
    heard: str | None = None
    text: str = ""
    pcm: Pcm = field(default_factory=lambda: np.zeros(0, np.int16))
    finish_reason: str | None = None
    ttfa_s: float | None = None
    total_s: float = 0.0
    times: dict[str, float | None] = field(default_factory=dict)


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
        answer = asyncio.run(_ask_server(options, sound) if options.server else _ask_here(options, sound))
        if not len(answer.pcm):
            raise AskError(f"the answer has no sound: {answer.text!r}")
        try:
            options.output.write_bytes(encode_wav(answer.pcm, PCM_RATE))
        except OSError as error:
            raise AskError(f"{options.output}: {error.strerror}") from None
    except AskError as error:
        print(f"voicechat: {error}", file=sys.stderr)
        return error.code
    print(json.dumps(as_json(answer, options.output), ensure_ascii=False) if options.json else told(answer, options))
    return 0


def _read_question(options: argparse.Namespace) -> EarsPcm | None:
    """The spoken question, float32 mono at 16 kHz, if there is one. What is wrong with it is told before any start."""
    if options.max_tokens is not None and options.max_tokens < 1:
        raise AskError("--max-tokens must be at least 1", 2)
    if options.text is not None and not options.text.strip():
        raise AskError("--text is empty", 2)
    if not options.output.absolute().parent.is_dir():
        raise AskError(f"{options.output}: there is no such folder", 2)
    path: Path | None = options.question
    if path is None:
        if options.text is None:
            raise AskError("give a sound file with the question, or --text", 2)
        return None
    try:
        sound = decode_audio(path.read_bytes())
    except OSError as error:
        raise AskError(f"{path}: {error.strerror}", 2) from None
    except AudioError as error:
        raise AskError(f"{path}: {error}", 2) from None
    if last_voiced(sound, EARS_RATE) is None:
        raise AskError(f"{path}: there is only silence in it", 2)
    return sound


async def _ask_server(options: argparse.Namespace, sound: EarsPcm | None) -> Answer:
    import aiohttp

    parts: list[dict[str, Any]] = []
    if options.text is not None:
        parts.append(text_part(options.text))
    if sound is not None:
        parts.append(audio_part(encode_wav(to_pcm(sound), EARS_RATE)))
    async with aiohttp.ClientSession() as http:
        client = ChatClient(http, options.server, model=options.model, api_key=os.environ.get(API_KEY))
        try:
            reply = await client.ask(parts, latency_first=not options.quality, max_tokens=options.max_tokens)
        except ClientError as error:
            raise AskError(str(error)) from None
    _check_heard(options, sound, " ".join(reply.heard).strip())
    return Answer(
        model=client.model or "",
        heard=" ".join(reply.heard) if sound is not None else None,
        text=reply.text,
        pcm=reply.pcm,
        finish_reason=reply.finish_reason,
        ttfa_s=reply.ttfa_s,
        total_s=reply.done_s,
        times=reply.times,
    )


async def _ask_here(options: argparse.Namespace, sound: EarsPcm | None) -> Answer:
    settings = _settings(options)
    async with running_cascade(settings) as cascade:
        try:
            return await _ask_cascade(cascade, options, sound)
        except CascadeError as error:
            raise AskError(str(error)) from None


def _settings(options: argparse.Namespace) -> Settings:
    from voicechat.config import ConfigError, load_settings

    overrides = list(options.overrides)
    if options.device is not None:
        overrides.append(f"device={options.device}")
    try:
        return load_settings(options.model, overrides=overrides)
    except ConfigError as error:
        raise AskError(str(error), 2) from None


@contextlib.asynccontextmanager
async def running_cascade(settings: Settings) -> AsyncIterator[Cascade]:
    """The cascade of ``settings``, assembled if need be, warm; stopped at the end. Raises :class:`AskError`."""
    from voicechat.app import build
    from voicechat.assemble import AssembleError, assemble

    logging.basicConfig(level=logging.WARNING, format="%(name)s %(levelname)s %(message)s")
    try:
        coordinator = build(settings, assemble(settings))
    except (AssembleError, OSError) as error:
        raise AskError(str(error)) from None
    print(f"starting {settings.model.name}; this takes a while", file=sys.stderr)
    try:
        await coordinator.start()
    except RuntimeError as error:  # it has stopped itself
        raise AskError(str(error)) from None
    except BaseException:
        await coordinator.stop()
        raise
    try:
        yield coordinator
    finally:
        await coordinator.stop()


async def _ask_cascade(cascade: Cascade, options: argparse.Namespace, sound: EarsPcm | None) -> Answer:
    parts: list[TextPart | AudioPart] = []
    if options.text is not None:
        parts.append(TextPart(options.text))
    if sound is not None:
        parts.append(AudioPart(sound))
    answer, pieces, sounds = Answer(cascade.model.name), list[str](), list[Pcm]()
    asked = time.perf_counter()
    request = ResponseRequest(
        (Message("user", tuple(parts)),),
        latency_first=not options.quality,
        sampling=Sampling(max_tokens=options.max_tokens),
    )
    response = cascade.respond(request)
    try:
        async for event in response:
            match event:
                case Heard(transcripts):
                    answer.heard = " ".join(transcripts).strip()
                    _check_heard(options, sound, answer.heard)
                case TextDelta(text):
                    pieces.append(text)
                case AudioDelta(pcm):
                    answer.ttfa_s = answer.ttfa_s or time.perf_counter() - asked
                    sounds.append(pcm)
                case Finished():
                    answer.finish_reason = event.reason.value
                    answer.times = dataclasses.asdict(event.times)
    finally:
        response.cancel()
    answer.total_s = time.perf_counter() - asked
    answer.text = "".join(pieces)
    if sounds:
        answer.pcm = np.concatenate(sounds)
    return answer


def _check_heard(options: argparse.Namespace, sound: EarsPcm | None, heard: str) -> None:
    if sound is not None and options.text is None and not heard:
        raise AskError(f"{options.question}: no words could be made out in it")


def as_json(answer: Answer, output: Path) -> dict[str, Any]:
    """The object that ``--json`` prints: times in seconds since the question, ``handoff_us`` in microseconds."""
    audio_s = len(answer.pcm) / PCM_RATE
    return {
        "model": answer.model,
        "transcript": answer.heard,
        "answer": answer.text,
        "finish_reason": answer.finish_reason,
        "output": str(output),
        "audio_s": round(audio_s, 3),
        "ttfa_s": answer.ttfa_s,
        "total_s": answer.total_s,
        "rtf": answer.total_s / audio_s if audio_s else None,
        "times": answer.times,
    }


def told(answer: Answer, options: argparse.Namespace) -> str:
    """The answer for people."""
    asked = [text for text in (options.text, answer.heard) if text]
    seconds = len(answer.pcm) / PCM_RATE
    lines = [
        f"You:     {' / '.join(asked)}",
        f"Answer:  {answer.text.strip()}",
        f"Sound:   {options.output}, {seconds:.1f} s, made at {answer.total_s / seconds:.2f} times its length",
        f"Times:   {answer.ttfa_s or 0.0:6.3f} s  first sound received",
    ]
    for name, label in _STAGES.items():
        if (value := answer.times.get(name)) is not None:
            lines.append(f"         {value:6.3f} s  {label}")
    if (handoff := answer.times.get("handoff_us")) is not None:
        lines.append(
            f"         {handoff:6.0f} µs from a text's announcement to its being usable in the Talker (median)"
        )
    return "\n".join(lines)
