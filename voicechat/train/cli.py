"""Command line of the training steps."""

from __future__ import annotations

import argparse
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from voicechat.models.embedded.untrained import random_weights
from voicechat.models.embedded.weights import WEIGHTS_DIR, TalkerConfig, VoiceBoxConfig

if TYPE_CHECKING:
    from voicechat.train.talker import TalkerPlan
    from voicechat.train.voicebox import VoiceBoxPlan

STEPS = ("texts", "speech", "voicebox", "decoder", "talker", "evaluate", "pack", "thinker")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``voicechat train``."""
    parser.add_argument("step", choices=STEPS, help="what to do; all but the last build on each other")
    parser.add_argument("--work", type=Path, help="folder for everything that training makes")
    parser.add_argument("--tiny", action="store_true", help="a few seconds on a CPU: to try the steps out")
    parser.add_argument("--device", help="torch device (default: the first GPU, else the CPU)")
    parser.add_argument("--watch", action="store_true", help="begin on what is there and wait for the rest")
    parser.add_argument(
        "--seconds", type=float, help="speech, voicebox and decoder (first phase), talker, thinker: stop after so long"
    )
    parser.add_argument("--plain-seconds", type=float, help="decoder (second phase): stop after so long")
    parser.add_argument("--gan-seconds", type=float, help="voicebox, decoder (last phase): stop after so long")
    parser.add_argument(
        "--total-seconds", type=float, help="voicebox, decoder: end the last phase so long after the start"
    )
    parser.add_argument("--eager", action="store_true", help="voicebox, decoder: no CUDA graphs")
    parser.add_argument(
        "--snapshots", type=float, metavar="SECONDS", help="voicebox, decoder: leave a decoder so often in snapshots/"
    )
    parser.add_argument("--gan-after", type=Path, metavar="FILE", help="voicebox: the last phase waits for this file")
    parser.add_argument("--wordnet", type=Path, help="texts: wordnet-base .deb or folder with WordNet's data files")
    parser.add_argument(
        "--thinker", action="append", default=[], metavar="NAME=PATH",
        help="texts: GGUF file or model folder; repeat. thinker: folder of the LLM that gets a projection",
    )  # fmt: skip
    parser.add_argument(
        "--reference", metavar="NAME=DIR", help="thinker: LLM that the Talker knows (default: the first one assembled)"
    )
    parser.add_argument("--replies", type=int, help="texts, thinker: replies per Thinker")
    parser.add_argument("--partial", action="store_true", help="texts: more Thinkers follow in a later call")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="speech: parallel processes")
    parser.add_argument(
        "--teacher", action="append", default=[], metavar="VOICE=KIND[:ARGUMENT]",
        help="speech, evaluate: hibari[:SIZE], piper:FILE.onnx, command:COMMAND LINE; repeat, the default voice first",
    )  # fmt: skip
    parser.add_argument(
        "--share", action="append", default=[], metavar="VOICE=FRACTION", help="speech: share of the texts it speaks"
    )
    parser.add_argument("--whisper", type=Path, help="evaluate: folder of a CTranslate2 Whisper model")
    parser.add_argument("--count", type=int, default=40, help="evaluate: held-out replies")
    parser.add_argument(
        "--weights", type=Path, default=WEIGHTS_DIR, help="packed weights (evaluate, thinker, decoder, pack)"
    )
    parser.add_argument(
        "--encoder", type=Path, help="decoder: the encoder of its codes, if it was kept (encoder.safetensors)"
    )
    parser.add_argument("--out", type=Path, help="pack, thinker: folder for the result")
    parser.add_argument("--plain-decoder", action="store_true", help="pack: the decoder as it was before the GAN")
    parser.add_argument(
        "--keep-talker", action="store_true", help="pack: only the decoder is new, the rest is that of --weights"
    )
    parser.add_argument("--random", action="store_true", help="pack: untrained weights of the final shape")


def main(args: argparse.Namespace) -> int:
    """Run one step; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", force=True)
    if args.step == "pack" and args.random:
        random_weights(args.out or WEIGHTS_DIR)
        return 0
    if args.step == "thinker":
        from voicechat.train.projection import thinker_command

        return thinker_command(args)
    if args.work is None:
        raise SystemExit("--work is needed")
    _run(args)
    return 0


def _run(args: argparse.Namespace) -> None:
    from voicechat.train.common import Work, pick_device, thinker_paths

    work = Work(args.work)
    device = pick_device(args.device) if args.step in {"texts", "voicebox", "decoder", "talker"} else None
    if args.step == "speech":
        from voicechat.train.speech import speech_step
        from voicechat.train.teachers import voice_plans

        speech_step(work, voice_plans(args.teacher, args.share), args.processes, args.watch, args.seconds)
    elif args.step == "texts":
        from voicechat.train.texts import texts_step

        assert device is not None
        texts_step(
            work, wordnet=args.wordnet, thinkers=thinker_paths(args.thinker), device=device, partial=args.partial,
            made=16 if args.tiny else 14_000, definitions=8 if args.tiny else 20_000, tokens=16 if args.tiny else 110,
            replies=args.replies or (8 if args.tiny else 6_000),
        )  # fmt: skip
    elif args.step in {"voicebox", "decoder"}:
        from voicechat.train.voicebox import voicebox_step

        assert device is not None
        voicebox_step(work, _voicebox_plan(args), device, args.watch)
    elif args.step == "talker":
        from voicechat.train.talker import TalkerPlan, talker_step

        assert device is not None
        talker_step(work, tiny_talker_plan() if args.tiny else TalkerPlan(seconds=args.seconds), device, args.watch)
    elif args.step == "evaluate":
        from voicechat.train.evaluate import evaluate_step
        from voicechat.train.teachers import voice_plans

        evaluate_step(work, args.weights, args.whisper, args.count, voice_plans(args.teacher, args.share))
    elif args.keep_talker:
        from voicechat.train.pack import pack_decoder

        pack_decoder(work, args.weights, args.out or args.weights, args.plain_decoder)
    else:
        from voicechat.train.pack import pack_step

        talker, voicebox = (TINY_TALKER, TINY_VOICEBOX) if args.tiny else (TalkerConfig(), VoiceBoxConfig())
        pack_step(work, args.out or WEIGHTS_DIR, talker, voicebox, args.plain_decoder)


def _voicebox_plan(args: argparse.Namespace) -> VoiceBoxPlan:
    from voicechat.train.voicebox import VoiceBoxPlan

    return replace(
        tiny_voicebox_plan() if args.tiny else VoiceBoxPlan(),
        codec_seconds=args.seconds,
        plain_seconds=args.plain_seconds,
        gan_seconds=args.gan_seconds,
        gan_after=args.gan_after,
        total_seconds=args.total_seconds,
        capture=not args.eager,
        snapshot_seconds=args.snapshots,
        weights=args.weights if args.step == "decoder" else None,
        encoder=args.encoder if args.step == "decoder" else None,
    )


TINY_TALKER = TalkerConfig(layers=2, width=64, heads=2, feed_forward=128)
TINY_VOICEBOX = VoiceBoxConfig(width=32, expansion=2, token_blocks=3, frame_blocks=2)


def tiny_voicebox_plan() -> VoiceBoxPlan:
    """A plan for seconds on a CPU."""
    from voicechat.train.voicebox import VoiceBoxPlan

    return VoiceBoxPlan(
        config=TINY_VOICEBOX, encoder_width=32, encoder_blocks=1, hours=0.2, first_hours=0.0, held_out=2, batch=4,
        window=12, codec_steps=120, plain_steps=20, gan_batch=2, judged=3, gan_steps=4, judges_alone=1, steering=1,
        report=40,
    )  # fmt: skip


def tiny_talker_plan() -> TalkerPlan:
    """A plan for seconds on a CPU."""
    from voicechat.train.talker import TalkerPlan

    return TalkerPlan(
        config=TINY_TALKER, voicebox=TINY_VOICEBOX, held_out=2, batch_steps=600, steps=30, warm_up=5, report=10, speak=2
    )
