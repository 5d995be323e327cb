"""Step ``thinker``: a matrix for another chat LLM, so that the packaged Talker reads its hidden states too.

Everything is kept in ``projections/NAME`` of the work folder, and a broken run goes on where it was: the LLM's replies,
its hidden states, the reference's; in a folder for each Talker what it says and the gradient steps. The result is
``projection.safetensors`` with its card, and a file of settings that ``voicechat serve --model`` takes.

In the work folder of a whole training the held-out replies and the codes of the teacher's speech are taken instead: a
Talker has learnt the others by heart, and nothing that is true of unseen text can be learnt from them.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from voicechat.assemble.store import AssembleError
from voicechat.config import load_settings
from voicechat.contract.artifacts import sha256_file
from voicechat.models.embedded.projection import PROJECTION_FILE, ProjectionCard, talker_sha256
from voicechat.models.embedded.talker import TalkerNet, load_talker
from voicechat.models.embedded.voicebox import load_voicebox
from voicechat.models.embedded.weights import WEIGHTS_DIR, load_voice_config, save_tensors, write_atomic
from voicechat.models.folder import has_chat_template, hidden_size
from voicechat.train.common import HELD_OUT, Work, pick_device, thinker_paths, to_pcm, write_json
from voicechat.train.generate import Prompt, generate
from voicechat.train.projection_codes import coded_replies, has_codes
from voicechat.train.projection_data import distilled_replies
from voicechat.train.projection_fit import FitPlan, ProjectionFit

logger = logging.getLogger("voicechat.train")

ORIGIN_FILE = "fit.json"


@dataclass(frozen=True, slots=True)
class ProjectionPlan:
    """Sizes of the step: replies of at most ``tokens`` tokens, and the gradient steps."""

    replies: int = 240
    tokens: int = 48
    held_out: int = HELD_OUT
    """In the work folder of a training: how many replies of each Thinker it has kept out."""
    fit: FitPlan = field(default_factory=FitPlan)


def find_reference(thinkers: list[str], data_dir: Path) -> tuple[str, Path] | None:
    """A Thinker that the Talker knows and whose folder is assembled, the first that there is."""
    for name in thinkers:
        for folder in (data_dir / "thinkers" / name, data_dir / "thinkers" / f"{name}-int8"):
            if (folder / "config.json").is_file():
                return name, folder
    return None


def thinker_step(
    root: Path,
    *,
    name: str,
    folder: Path,
    reference: tuple[str, Path] | None,
    weights: Path,
    plan: ProjectionPlan,
    device: torch.device,
    out: Path | None = None,
) -> dict[str, Any]:
    """Fit and write the projection of the LLM in ``folder``; returns what was measured, as the card has it.

    ``reference``: name and folder of a Thinker that the Talker knows; not needed where ``root`` is the work folder of a
    training with codes. Raises ValueError for a name, a folder or a reference that cannot be used, or when
    ``projections/NAME`` holds the fit of something else.
    """
    if has_codes(Work(root)):
        reference = None
    elif reference is None:
        raise ValueError(
            "the Talker is taught by a Thinker that it knows, and none is assembled; "
            "run `voicechat assemble --model embedded-tiny`, or give --reference NAME=DIR"
        )
    _check(name, folder, reference, weights)
    work = Work(root / "projections" / name)
    origin = _origin(folder, reference, plan)
    kept = work.file(ORIGIN_FILE)
    if kept.exists() and json.loads(kept.read_text(encoding="utf-8")) != origin:
        raise ValueError(f"{work.root} holds a fit of something else; remove it or choose another --work")
    write_json(kept, origin)
    talker = talker_sha256(weights)
    mine = Work(work.root / f"talker-{talker[:8]}")
    net = load_talker(weights).to(device)
    if reference is None:
        items = coded_replies(Work(root), work, folder, net.config.voices, device, plan.held_out)
    else:
        sampling = load_voice_config(weights).sampling
        items = distilled_replies(
            work, mine, net, name, folder, reference, sampling, plan.replies, plan.tokens, device
        )  # fmt: skip
    fit = ProjectionFit(net, items, device)
    fit.run(mine, plan.fit)
    measured = report(fit, reference[0] if reference else None)
    out = out or work.root
    write_projection(out, fit.best.weight, ProjectionCard(name, *_shape(fit.best.weight), talker, measured))
    write_settings(out / f"{name}.yaml", name, folder, out / PROJECTION_FILE, weights)
    sample(mine, net, fit, weights)
    logger.info("projection: serve it with  voicechat serve --model %s", out / f"{name}.yaml")
    return measured


def _check(name: str, folder: Path, reference: tuple[str, Path] | None, weights: Path) -> None:
    if not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
        raise ValueError(f"--thinker: {name!r} is no name for a file: letters, digits, '.', '_' and '-' only")
    for path in (folder, reference[1] if reference else folder):
        if not (path / "config.json").is_file():
            raise ValueError(f"{path} is no model folder: it has no config.json")
    if not has_chat_template(folder):
        raise ValueError(f"{folder}: its tokenizer has no chat template; put it there as chat_template.jinja")
    if reference is None:
        return
    known = dict(load_voice_config(weights).talker.thinkers)
    if reference[0] not in known:
        raise ValueError(f"the Talker in {weights} knows no Thinker {reference[0]!r}; it knows {', '.join(known)}")
    if (width := hidden_size(reference[1])) != known[reference[0]]:
        raise ValueError(f"{reference[1]} is not {reference[0]}: {width} wide, not {known[reference[0]]}")


def _origin(folder: Path, reference: tuple[str, Path] | None, plan: ProjectionPlan) -> dict[str, Any]:
    """What the kept files depend on."""
    return {
        "thinker": str(folder.absolute()),
        "config": sha256_file(folder / "config.json"),
        "reference": reference[0] if reference else None,
        "replies": plan.replies,
        "tokens": plan.tokens,
    }


def report(fit: ProjectionFit, reference: str | None) -> dict[str, Any]:
    """Losses on the replies that neither taught nor chose."""
    items = fit.reported
    without, agreed_without = fit.measure(items, None)
    fitted, agreed = fit.measure(items, fit.best)
    measured: dict[str, Any] = {
        "what": "cross-entropy in nats a step, held-out replies; target: "
        + (
            f"the Talker's own reading with the states of {reference}"
            if fit.distilled
            else "codes of the teacher's speech"
        ),
        "replies": len(items),
        "steps": sum(len(item.rows) for item in items),
        "without_hidden": round(without, 5),
        "with_hidden": round(fitted, 5),
        "same_code_without": round(agreed_without, 4),
        "same_code_with": round(agreed, 4),
    }
    if fit.distilled:
        measured["reference"] = round(floor := fit.measure_reference(items), 5)
        measured["gap_closed"] = round((without - fitted) / max(without - floor, 1e-9), 3)
    logger.info("projection: held-out %s", measured)
    if fitted > without:
        logger.warning("projection: on these replies the Talker is no better with the hidden states than without")
    return measured


def _shape(weight: Tensor) -> tuple[int, int]:
    """Hidden size and width."""
    return int(weight.shape[1]), int(weight.shape[0])


def write_projection(out: Path, weight: Tensor, card: ProjectionCard) -> None:
    """Write the matrix [width, hidden size] and its card into the folder ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    save_tensors(out / PROJECTION_FILE, {"weight": weight})
    write_atomic((out / PROJECTION_FILE).with_suffix(".json"), card.to_json().encode())


def write_settings(path: Path, name: str, folder: Path, projection: Path, weights: Path) -> None:
    """A file for ``voicechat serve --model``, like those in ``configs/``."""
    model: dict[str, Any] = {
        "name": name,
        "family": "embedded",
        "thinker": {"dir": str(folder.absolute())},
        "talker": {"quantization": "int8", "projection": str(projection.absolute())},
    }
    if weights.resolve() != WEIGHTS_DIR:
        model["weights"] = str(weights.absolute())
    write_atomic(path, yaml.safe_dump({"model": model}, sort_keys=False).encode())


def sample(work: Work, net: TalkerNet, fit: ProjectionFit, weights: Path) -> None:
    """Speak one held-out reply without and with the fitted matrix, to be heard."""
    item, voicebox = fit.reported[0], load_voicebox(weights)
    net.thinkers.append(fit.best)
    with_hidden = Prompt(item.symbols, item.states[item.tokens], len(net.thinkers) - 1, item.voice)
    sampling = load_voice_config(weights).sampling
    for label, prompt in (("without", Prompt(item.symbols, voice=item.voice)), ("with", with_hidden)):
        (made,) = generate(net, [prompt], temperature=sampling.temperature, top_k=sampling.top_k)
        if made.codes:
            with torch.inference_mode():
                codes, voices = torch.tensor([made.codes]), torch.tensor([item.voice])
                sound = voicebox.decode(codes, made.windows[None], voices)[0].numpy()
            work.keep_sample(label, to_pcm(sound))
    write_atomic(work.file("samples", "text.txt"), f"{item.text}\n".encode())


def thinker_command(args: argparse.Namespace) -> int:
    """``voicechat train thinker``: the options to :func:`thinker_step`; returns the exit code."""
    data_dir = load_settings().data_dir
    plan = TINY_PLAN if args.tiny else ProjectionPlan(fit=FitPlan(seconds=args.seconds))
    if args.replies:
        plan = replace(plan, replies=args.replies)
    try:
        named = list(thinker_paths(args.thinker).items())
        if len(named) != 1:
            raise ValueError("give one --thinker NAME=DIR")
        known = [name for name, _ in load_voice_config(args.weights).talker.thinkers]
        given = list(thinker_paths([args.reference]).items()) if args.reference else [find_reference(known, data_dir)]
        thinker_step(
            args.work or data_dir, name=named[0][0], folder=named[0][1], reference=given[0], weights=args.weights,
            plan=plan, device=pick_device(args.device), out=args.out,
        )  # fmt: skip
    except (ValueError, AssembleError) as error:
        raise SystemExit(f"thinker: {error}") from None
    return 0


TINY_PLAN = ProjectionPlan(
    replies=16, tokens=12, fit=FitPlan(steps=12, batch_steps=3_000, report=4, warm_up=2, rate=1e-3)
)
"""A plan for seconds on a CPU."""
