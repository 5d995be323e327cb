"""transformers on the path that an engine took: how much less than its own choice the engine's is worth to it.

Two greedy decoders of different precision part where two tokens are worth about the same, and what they say from there
on cannot be compared. So the reference is led: at each step it is told what the engine chose, and asked by how much it
would have preferred another. Rounding makes that some tenths. A single step at which symbols, the token before or the
cache are not the right ones makes it 1 to 30; but of the Thinker's states the Talker takes so little that a wrong row
cannot be told from rounding by what is said.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from voicechat.models.embedded.frontend import TextFrontend
from voicechat.models.embedded.progress import Progress
from voicechat.models.embedded.talker import ADVANCES, BOS, EOS, SYMBOL_WINDOW, Conditioner

LIKELY = 16
"""Tokens whose logits are compared between two precisions: an engine chooses none that is farther down."""


@dataclass
class Said:
    """What an engine said: its codes, and the nine symbols that it saw at each (bytes, one after the other).

    ``ended``: it found the end of the text by itself.
    """

    codes: list[int]
    symbols: bytes
    ended: bool

    def seen(self, number: int) -> bytes:
        """The symbols at one code; none behind the last."""
        return self.symbols[SYMBOL_WINDOW * number : SYMBOL_WINDOW * (number + 1)]


@dataclass
class Followed:
    """``gaps``: at each of the engine's choices, the reference's best logit less that of the choice.

    ``rounding``: how far such a gap moves at most, of any likely token at any of the steps, if the reference counts
    in bfloat16 itself.
    """

    gaps: list[float] = field(default_factory=list)
    rounding: float = 0.0

    @property
    def common(self) -> int:
        """Choices from the beginning that are the reference's own, too."""
        return next((number for number, gap in enumerate(self.gaps) if gap > 0), len(self.gaps))


class Reference:
    """The Talker in transformers, float32. ``llama``: a ``LlamaForCausalLM`` on the CPU."""

    def __init__(self, llama: Any, conditioner: Conditioner) -> None:
        self._llama = llama
        self._rough = copy.deepcopy(llama).bfloat16()
        self._conditioner = conditioner

    @torch.inference_mode()
    def follow(self, said: Said, pieces: list[str], hidden: Tensor) -> Followed:
        """Go an engine's way through a text.

        ``hidden`` [R, H]: the Thinker's states, a row for each of the ``pieces``. Raises ``AssertionError`` where no
        choice at all explains what the engine saw next.
        """
        frontend = TextFrontend()
        rows = [row for piece in pieces for row in frontend.push(piece)] + frontend.finish()
        progress = Progress()
        progress.add_rows([row.symbol for row in rows])
        embed, token, past = self._llama.get_input_embeddings(), BOS, None
        made, inputs, logits, number, skips = Followed(), [], [], 0, False
        while number < len(said.codes) or said.ended:
            window = progress.symbols()
            assert skips or said.seen(number) in {window, b""}, f"code {number} was spoken from another place"
            state = hidden[None, min(rows[min(progress.pointer, len(rows) - 1)].token, len(hidden) - 1)]
            told = torch.ones(1, dtype=torch.bool), torch.zeros(1, dtype=torch.long)
            added = self._conditioner(torch.tensor([list(window)]), state, *told)
            inputs.append(embed(torch.tensor([token])) + added)
            out = self._llama(inputs_embeds=inputs[-1][None], past_key_values=past, use_cache=True)
            past = out.past_key_values
            logits.append(out.logits[0, -1])
            ends = number == len(said.codes)
            if skips or ends:
                token = EOS
            else:
                token, skips = _chosen(said, number, progress, logits[-1])
            made.gaps.append((logits[-1].max() - logits[-1][token]).item())
            if token != EOS:
                number += 1
                restart = progress.step(token % ADVANCES)
            elif ends:
                assert progress.at_end, "the reply ended before its text did"
                break
            else:
                skips, restart = False, progress.skip()
            if restart:
                made.rounding = max(made.rounding, self._rounding(inputs, logits))
                token, past, inputs, logits = BOS, None, [], []
        if inputs:
            made.rounding = max(made.rounding, self._rounding(inputs, logits))
        return made

    def _rounding(self, inputs: list[Tensor], logits: list[Tensor]) -> float:
        """Of one window, from all that was put in [1, width] and what came out [vocabulary]."""
        exact = torch.stack(logits)
        rough = self._rough(inputs_embeds=torch.stack(inputs, 1).bfloat16()).logits[0].float()
        likely = exact.topk(LIKELY).indices
        moved = rough.gather(1, likely) - exact.gather(1, likely)
        return (moved - moved[:, :1]).abs().max().item()


def _chosen(said: Said, number: int, progress: Progress, logits: Tensor) -> tuple[int, bool]:
    """The token that an engine chose, and whether an end of its window follows that it found too early.

    A code comes without its advance; that shows in what was seen at the next code.
    """
    last = number + 1 == len(said.codes)
    fitting: list[tuple[bool, float, int]] = []
    for advance in range(ADVANCES):
        token = said.codes[number] * ADVANCES + advance
        after = copy.deepcopy(progress)
        after.step(advance)
        if last:
            fits, skipped = after.at_end or not said.ended, False
        else:
            fits = after.symbols() == said.seen(number + 1)
            skipped = not fits and after.skip() and after.symbols() == said.seen(number + 1)
        if fits or skipped:
            fitting.append((not skipped, logits[token].item(), token))
    assert fitting, f"nothing leads from code {number} to what was seen next"
    plain, _, token = max(fitting)
    return token, not plain
