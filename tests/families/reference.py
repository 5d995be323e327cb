"""What the chimes have to say, by transformers and plain loops: nothing of the server's stages is used."""

from __future__ import annotations

from pathlib import Path

import torch
from chimes.family import MARKS, STEPS_PER_ROW
from chimes.talker import BOS, PROMPT, REPLY, Predictor, word_number
from chimes.voicebox import Chimes
from transformers import AutoTokenizer, LlamaForCausalLM

from voicechat.contract.messages import Decode
from voicechat.contract.sound import Pcm


class Reference:
    """Both models in float32. ``folder`` is that in which they were made."""

    def __init__(self, folder: Path, seed: int = 1) -> None:
        torch.set_num_threads(1)  # several of them only wait for each other beside a server
        self._thinker = LlamaForCausalLM.from_pretrained(folder / f"thinker-{seed}", dtype=torch.float32).eval()
        self._talker = LlamaForCausalLM.from_pretrained(folder / f"talker-{seed}", dtype=torch.float32).eval()
        self._tokenizer = AutoTokenizer.from_pretrained(folder / f"thinker-{seed}")
        self._predictor = Predictor(str(folder / f"talker-{seed}"))

    @torch.inference_mode()
    def write(self, prompt: list[int], count: int) -> tuple[list[int], torch.Tensor]:
        """The greedy reply of ``count`` tokens, and a row for each position but the last:
        ``[prompt + count - 1, 2 W]``."""
        ids = list(prompt)
        for _ in range(count):
            out = self._thinker(torch.tensor([ids]), output_hidden_states=True)
            ids.append(int(out.logits[0, -1].argmax()))
        states, embeddings = out.hidden_states[-1][0], out.hidden_states[0][0]
        return ids[len(prompt) :], torch.cat((states, embeddings), 1).bfloat16()

    def text(self, tokens: list[int]) -> str:
        """As the tokenizer shows it."""
        shown: str = self._tokenizer.decode(tokens)
        return shown

    @torch.inference_mode()
    def speak(self, words: list[str], voice: int, rows: torch.Tensor | None = None, prompt: int = 0) -> Pcm:
        """The sound of a text; with ``rows`` it is a reply behind a prompt of so many tokens."""
        weights, embed = self._predictor, self._talker.get_input_embeddings()
        text = [(PROMPT, row, 0) for row in range(prompt)]
        for number, word in enumerate(words):
            text.append((REPLY, prompt - 1 + number if rows is not None else -1, word_number(word)))
        inputs = [self._added(text[place], rows) for place in range(prompt)]
        steps, token, codes = [], BOS, None
        for step in range(STEPS_PER_ROW * (len(text) - prompt)):
            made = embed(torch.tensor(token)) + weights.voices[voice]
            if codes is not None:
                made = made + weights.of_codes(codes)
            inputs.append(made + self._added(text[prompt + step // STEPS_PER_ROW], rows))
            out = self._talker(inputs_embeds=torch.stack(inputs)[None], output_hidden_states=True)
            token = int(out.logits[0, -1].argmax())
            (codes,) = weights.further(torch.tensor([token]), out.hidden_states[-1][0, -1:])
            steps.append(bytes((token % 32, *codes.tolist())))
        return Chimes._decode(Decode(0, 0, b"".join(steps), 0, len(steps), 0, voice=voice)).pcm

    def _added(self, row: tuple[int, int, int], rows: torch.Tensor | None) -> torch.Tensor:
        kind, hidden, word = row
        return self._predictor.added(kind, None if hidden < 0 or rows is None else rows[hidden], word)


def mark(name: str) -> int:
    """Token of a mark."""
    return MARKS.index(name)
