"""Following an engine: what only rounds is near, a single fault is far."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.stages.following import Followed, Reference, Said
from tests.stages.test_talker import TEXTS, pieces_of
from voicechat.models.embedded.frontend import TextFrontend
from voicechat.models.embedded.progress import Progress
from voicechat.models.embedded.talker import BOS, EOS, Conditioner, export_hf, split
from voicechat.models.embedded.weights import WEIGHTS_DIR

THINKER, HIDDEN = "smollm2-135m", 576
MOST, WRONG = 400, 20
"""Steps at most, and the one with the fault."""


@dataclass
class Engine:
    """transformers once more, greedily, with a fault at one step: ``symbols`` of the step before, the ``token`` before
    the last, or a ``cache`` that is lost."""

    llama: Any
    conditioner: Conditioner
    fault: str = ""

    @torch.inference_mode()
    def speak(self, pieces: list[str], hidden: Tensor) -> Said:
        frontend, progress = TextFrontend(), Progress()
        rows = [row for piece in pieces for row in frontend.push(piece)] + frontend.finish()
        progress.add_rows([row.symbol for row in rows])
        embed, tokens, past = self.llama.get_input_embeddings(), [BOS], None
        windows: list[bytes] = []
        told = torch.ones(1, dtype=torch.bool), torch.zeros(1, dtype=torch.long)
        for step in range(MOST):
            fault = self.fault if step == WRONG else ""
            windows.append(progress.symbols())
            seen = windows[-2 if fault == "symbols" else -1]
            state = hidden[None, rows[min(progress.pointer, len(rows) - 1)].token]
            added = self.conditioner(torch.tensor([list(seen)]), state, *told)
            inputs = (embed(torch.tensor([tokens[-2 if fault == "token" else -1]])) + added).to(self.llama.dtype)
            past = None if fault == "cache" else past
            out = self.llama(inputs_embeds=inputs[None], past_key_values=past, use_cache=True)
            past = out.past_key_values
            tokens.append(int(out.logits[0, -1].argmax()))
            if tokens[-1] >= BOS:
                break
            progress.step(split(tokens[-1])[1])
        codes = [split(token)[0] for token in tokens[1:] if token < BOS]
        return Said(codes, b"".join(windows[: len(codes)]), tokens[-1] == EOS and progress.at_end)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import LlamaForCausalLM

    folder = tmp_path_factory.mktemp("talker")
    export_hf(WEIGHTS_DIR, folder)
    return LlamaForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def reference(llama: Any) -> Reference:
    return Reference(llama, Conditioner.from_weights(WEIGHTS_DIR, THINKER))


def states(number: int, pieces: list[str]) -> Tensor:
    generator = torch.Generator().manual_seed(number)
    return (3 * torch.randn(len(pieces), HIDDEN, generator=generator)).bfloat16().float()


def follow(reference: Reference, engine: Engine, texts: Sequence[str] = TEXTS[:3]) -> Followed:
    """All choices in several texts."""
    every = Followed()
    for number, text in enumerate(texts):
        pieces = pieces_of(text)
        one = reference.follow(engine.speak(pieces, states(number, pieces)), pieces, states(number, pieces))
        every.gaps += one.gaps
        every.rounding = max(every.rounding, one.rounding)
    return every


def test_the_same_path_has_no_gaps(llama: Any, reference: Reference) -> None:
    followed = follow(reference, Engine(llama, Conditioner.from_weights(WEIGHTS_DIR, THINKER)))
    assert followed.common == len(followed.gaps) > 100
    assert max(followed.gaps) == 0 < followed.rounding < 1


def test_bfloat16_stays_within_rounding(llama: Any, reference: Reference) -> None:
    rough = copy.deepcopy(llama).bfloat16()
    followed = follow(reference, Engine(rough, Conditioner.from_weights(WEIGHTS_DIR, THINKER)))
    parted = [gap for gap in followed.gaps if gap > 0]
    print(f"{len(parted)} of {len(followed.gaps)} choices parted: {parted}, rounding {followed.rounding:.3f}")
    assert 0 < max(followed.gaps) <= followed.rounding
    assert len(parted) < 0.05 * len(followed.gaps)


@pytest.mark.parametrize("fault", ["symbols", "token", "cache"])
def test_a_single_fault_is_far_off(llama: Any, reference: Reference, fault: str) -> None:
    followed = follow(reference, Engine(llama, Conditioner.from_weights(WEIGHTS_DIR, THINKER), fault))
    print(f"{fault}: {max(followed.gaps):.3f}, rounding {followed.rounding:.3f}")
    assert max(followed.gaps) > 1.5 * followed.rounding


def test_a_path_that_cannot_be_is_refused(llama: Any, reference: Reference) -> None:
    pieces = pieces_of(TEXTS[0])
    said = Engine(llama, Conditioner.from_weights(WEIGHTS_DIR, THINKER)).speak(pieces, states(0, pieces))
    with pytest.raises(AssertionError, match="nothing leads|another place"):
        reference.follow(Said(said.codes, said.symbols[9:] + said.symbols[:9], True), pieces, states(0, pieces))
    with pytest.raises(AssertionError, match="text did"):
        reference.follow(Said(said.codes[:0], b"", True), pieces, states(0, pieces))
