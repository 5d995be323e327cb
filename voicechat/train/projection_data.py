"""What a projection is fitted on: a new Thinker's replies, its hidden states for them, and how the Talker says them.

The packaged Talker reads the replies with the hidden states of a Thinker that it knows (the *reference*); the new
Thinker's matrix has to bring it to speak in the same way from the new Thinker's states.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from voicechat.contract.messages import Turn
from voicechat.models.embedded.frontend import read_text, token_at
from voicechat.models.embedded.talker import ADVANCES, BOS, EOS, TalkerNet
from voicechat.models.embedded.thinker import SYSTEM_PROMPT, ChatPrompt
from voicechat.models.embedded.weights import Sampling
from voicechat.train.common import Work, write_arrays, write_json
from voicechat.train.generate import Prompt, condition_table, generate
from voicechat.train.sentences import TOPICS
from voicechat.train.thinkers import TrainingThinker, make_replies

logger = logging.getLogger("voicechat.train")

REPLIES_FILE = "replies.json"
FEWEST = 6
"""Replies below this number cannot be split into three parts that mean anything."""


class ServedThinker(TrainingThinker):
    """A Thinker that is asked as the server asks it: the voice prompt where nobody gives another, its own template."""

    def __init__(self, path: Path, device: torch.device) -> None:
        super().__init__(path, device)
        if not self.tokenizer.is_fast:
            raise ValueError(
                f"{path}: its tokenizer does not tell where tokens end; a fast one (tokenizer.json) is needed"
            )
        self._chat = ChatPrompt(self.tokenizer, SYSTEM_PROMPT)

    def prompt_ids(self, prompt: str, system: str | None) -> list[int]:
        """Token ids of the chat up to where the reply begins."""
        turns = [Turn("system", system)] if system else []
        return self._chat.ids([*turns, Turn("user", prompt)])


@dataclass(frozen=True, slots=True)
class Spoken:
    """One reply. ``symbols`` [R]; ``tokens`` [R]: the Thinker's token of each row, an index into ``states`` [n, H].

    ``targets`` [T]: what is said at each step, EOS the last one if it ended; ``rows`` [T]: where the pointer stands.
    ``reference`` [R, width]: the condition at each row with the reference's states; None: the targets are real speech.
    """

    text: str
    symbols: Tensor
    tokens: Tensor
    states: Tensor
    targets: Tensor
    rows: Tensor
    voice: int
    reference: Tensor | None

    @property
    def inputs(self) -> Tensor:
        """Input token of each step [T]."""
        return torch.cat((torch.tensor([BOS]), self.targets[:-1].clamp(max=BOS - 1)))


def write_replies(work: Work, thinker: TrainingThinker, name: str, count: int, tokens: int, group: int = 24) -> int:
    """Let the Thinker answer prompts until ``count`` different replies are there; goes on where it was broken off.

    Raises ValueError if it hardly writes anything that can be read aloud.
    """
    path = work.file(REPLIES_FILE)
    items: list[dict[str, str]] = []
    asked = 0
    if path.exists():
        kept = json.loads(path.read_text(encoding="utf-8"))
        items, asked = kept["items"], kept["asked"]
    begun, seen = time.monotonic(), {item["text"] for item in items}
    while len(items) < count and asked < 4 * count:
        part = make_replies(thinker, name, min(group, count), TOPICS, asked, tokens)
        asked += min(group, count)
        for item in part:
            if item["text"] not in seen and len(read_text(item["text"])) > 2:
                seen.add(item["text"])
                items.append(item)
        write_json(path, {"asked": asked, "items": items[:count]})
        logger.info("projection: %d of %d replies, %.0f s", min(len(items), count), count, time.monotonic() - begun)
    if len(items) < FEWEST:
        raise ValueError(
            f"{name} wrote {len(items)} replies that can be read aloud to {asked} prompts; at least {FEWEST} are needed"
        )
    return min(len(items), count)


def read_replies(work: Work) -> list[dict[str, str]]:
    """The replies that :func:`write_replies` kept."""
    items: list[dict[str, str]] = json.loads(work.file(REPLIES_FILE).read_text(encoding="utf-8"))["items"]
    return items


@dataclass(frozen=True, slots=True)
class States:
    """Hidden states of one Thinker for some texts: ``states`` [all tokens, H], tokens per text, and their ends."""

    states: npt.NDArray[np.float16]
    counts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int32]

    def of(self, index: int) -> tuple[Tensor, list[int]]:
        """States [n, H] and token ends of one text."""
        start = int(self.counts[:index].sum())
        end = start + int(self.counts[index])
        return torch.from_numpy(self.states[start:end]), self.ends[start:end].tolist()


def gather_states(path: Path, thinker: TrainingThinker | None, items: list[dict[str, str]], group: int = 16) -> States:
    """The Thinker's states for the texts, from the file if it is there (then no Thinker is needed)."""
    if not path.exists():
        assert thinker is not None
        begun, parts = time.monotonic(), []
        for start in range(0, len(items), group):
            parts.append(thinker.hidden_states(items[start : start + group], group))
            logger.info(
                "projection: %s for %d of %d texts, %.0f s",
                path.stem, min(start + group, len(items)), len(items), time.monotonic() - begun,
            )  # fmt: skip
        states, counts, ends = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        write_arrays(path, states=states, counts=counts, ends=ends)
    with np.load(path) as data:
        return States(data["states"], data["counts"], data["ends"])


def row_tokens(text: str, ends: list[int]) -> tuple[Tensor, Tensor]:
    """Symbols of a text's rows and the Thinker's token of each, [R] both, as the server makes them."""
    marks = read_text(text)
    symbols = torch.tensor([mark.symbol for mark in marks])
    return symbols, torch.tensor([token_at(ends, mark.end) for mark in marks])


def walk(targets: Tensor, rows: int) -> Tensor:
    """Where the pointer stands at each step [T], from what is said."""
    moves = torch.where(targets < BOS, targets % ADVANCES, 0)
    return torch.cat((torch.zeros(1, dtype=torch.long), moves.cumsum(0)[:-1])).clamp(max=rows - 1)


def speak(path: Path, net: TalkerNet, prompts: Sequence[Prompt], sampling: Sampling, group: int = 16) -> list[Tensor]:
    """What the Talker says to each prompt, tokens [T], EOS the last if it ended; done groups are kept in ``path``."""
    path.mkdir(parents=True, exist_ok=True)
    said = [torch.zeros(0, dtype=torch.long)] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index].symbols))
    begun, steps = time.monotonic(), 0
    for start in range(0, len(order), group):
        part, file = order[start : start + group], path / f"{start:06d}.npz"
        if not file.exists():
            made = generate(
                net, [prompts[index] for index in part], temperature=sampling.temperature, top_k=sampling.top_k,
                seed=start,
            )  # fmt: skip
            tokens = [np.asarray([*one.tokens, *([EOS] if one.ended else [])], np.int32) for one in made]
            counts = np.asarray([len(one) for one in tokens])
            write_arrays(file, tokens=np.concatenate(tokens), counts=counts)
        with np.load(file) as data:
            lines = np.split(data["tokens"].astype(np.int64), np.cumsum(data["counts"])[:-1])
            for index, line in zip(part, lines, strict=True):
                said[index] = torch.from_numpy(line)
            steps += int(data["counts"].sum())
        logger.info(
            "projection: the Talker spoke %d of %d replies, %d steps, %.0f s",
            min(start + group, len(order)), len(order), steps, time.monotonic() - begun,
        )  # fmt: skip
    return said


def distilled_replies(
    work: Work,
    mine: Work,
    net: TalkerNet,
    name: str,
    folder: Path,
    reference: tuple[str, Path],
    sampling: Sampling,
    replies: int,
    tokens: int,
    device: torch.device,
) -> list[Spoken]:
    """Replies of the LLM in ``folder`` as the Talker speaks them with the reference's states.

    As far as they are there, taken from ``work``, and what the Talker said from its own folder ``mine``.
    """
    states_file, reference_file = work.file("states.npz"), work.file("reference.npz")
    if not states_file.exists():
        thinker = ServedThinker(folder, device)
        write_replies(work, thinker, name, replies, tokens)
        gather_states(states_file, thinker, read_replies(work))
        del thinker
    items = read_replies(work)
    own = gather_states(states_file, None, items)
    known = ServedThinker(reference[1], device) if not reference_file.exists() else None
    theirs = gather_states(reference_file, known, items)
    del known
    number = [thinker for thinker, _ in net.config.thinkers].index(reference[0])
    voices = len(net.config.voices)
    prompts = [_prompt(item["text"], theirs, index, number, index % voices) for index, item in enumerate(items)]
    said = speak(mine.root / "speech", net, prompts, sampling)
    out = []
    for index, (item, prompt, targets) in enumerate(zip(items, prompts, said, strict=True)):
        states, ends = own.of(index)
        symbols, tokens = row_tokens(item["text"], ends)
        out.append(
            Spoken(
                text=item["text"], symbols=symbols, tokens=tokens, states=states.float(), targets=targets,
                rows=walk(targets, len(symbols)), voice=prompt.voice, reference=_table(net, prompt),
            )
        )  # fmt: skip
    return out


def _prompt(text: str, states: States, index: int, thinker: int, voice: int) -> Prompt:
    """A text's rows with the states of a Thinker that the Talker knows, and the voice that speaks it."""
    hidden, ends = states.of(index)
    symbols, tokens = row_tokens(text, ends)
    return Prompt(symbols, hidden[tokens].float(), thinker, voice)


def _table(net: TalkerNet, prompt: Prompt) -> Tensor:
    with torch.inference_mode():
        return condition_table(net, prompt).cpu()
