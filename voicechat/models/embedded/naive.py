"""The same models, one after another: what a program without a cascade does, as well as it can.

Ears (if asked aloud), then the whole text by ``transformers.generate``, then all speech codes by the Talker's own
plain torch net with a KV cache, then the whole sound by the VoiceBox. No stage begins before the one before it has
ended, and nothing is kept from one question to the next. Weights, prompt, sampling and bounds are the server's; the
Thinker's and Talker's weights are the unquantised ones, because transformers and plain torch have no fast int8 for
the CPU. Whether Thinker and Talker run in float32 or bfloat16, and on how many threads, is tried out on loading; the
fastest way is kept for each.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from voicechat.contract.family import PlainAnswer, PlainSpec
from voicechat.contract.messages import Turn
from voicechat.models.ears.whisper import Ears
from voicechat.models.embedded import frontend, talker, voicebox
from voicechat.models.embedded.speaking import SPARE_STEPS, STEPS_PER_SYMBOL
from voicechat.models.embedded.thinker import ChatPrompt

Way = tuple[torch.dtype, int]
"""How a net is run: its type and the number of threads."""

_TYPES = (torch.float32, torch.bfloat16)
_TRIAL_TOKENS = 6
_TRIAL_STEPS = 25
_TRIALS = 2


class OneAfterAnother:
    """All models in one process. ``facts`` says which way was found fastest for each, and what each trial took."""

    def __init__(self, config: PlainSpec) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()
        torch.set_num_threads(config.threads)
        self.config = config
        self.facts: dict[str, str | float] = {"threads": config.threads}
        self._threads: dict[str, int] = {}
        self._ears: Ears | None = None
        if config.ears_dir is not None:
            self._ears = Ears(config.ears_dir, threads=config.threads, beam_size=config.ears_beam_size)
        self._tokenizer = AutoTokenizer.from_pretrained(config.thinker["folder"])
        self._prompt = ChatPrompt(self._tokenizer, config.system_prompt)
        self._device = torch.device(config.device)
        dtype = torch.float32 if config.device == "cpu" else torch.bfloat16
        loaded = AutoModelForCausalLM.from_pretrained(config.thinker["folder"], dtype=dtype)
        self._thinker: Any = loaded.to(self._device).eval()
        self._talker = talker.load_talker(config.talker["weights"]).to(self._device)
        conditioner = talker.Conditioner.from_weights(config.talker["weights"], config.talker["thinker"])
        self._conditioner = conditioner.to(self._device)
        self._voicebox = voicebox.load_voicebox(config.talker["weights"]).to(self._device)
        frontend.load_g2p()
        self._choose_ways()

    def answer(self, text: str | None, sound: npt.NDArray[np.float32] | None, max_tokens: int | None) -> PlainAnswer:
        """Answer a typed question, or a spoken one (float32 mono ``[n]`` at 16 kHz)."""
        answer, begun = PlainAnswer(), time.perf_counter()
        if sound is not None:
            if self._ears is None:
                raise ValueError("there are no ears to hear the question with")
            text = answer.heard = self._ears.transcribe(sound)
            answer.times["ears"] = time.perf_counter() - begun
        with torch.inference_mode():
            torch.set_num_threads(self._threads["thinker"])
            ids, hidden = self._think(text or "", max_tokens or self.config.max_tokens)
            answer.times["thinker"] = time.perf_counter() - begun
            pieces = self._pieces(ids)
            torch.set_num_threads(self._threads["talker"])
            codes, symbols = self._talk(pieces, hidden)
            answer.times["talker"] = time.perf_counter() - begun
            torch.set_num_threads(self._threads["voicebox"])
            pcm = torch.zeros(1, 0)
            if codes:
                pcm = self._voicebox.decode(self._on_device([codes]), symbols[None]).cpu()
            answer.times["voicebox"] = time.perf_counter() - begun
        answer.total_s = answer.times["voicebox"]
        answer.text, answer.tokens, answer.steps = "".join(pieces), len(ids), len(codes)
        answer.audio_s = pcm.shape[1] / (25 * talker.STEP_SAMPLES)
        return answer

    def _on_device(self, numbers: Any) -> Tensor:
        """Whole numbers as a tensor where the nets are."""
        return torch.tensor(numbers, device=self._device)

    def _think(self, question: str, max_tokens: int, *, least: int = 0) -> tuple[list[int], Tensor]:
        """Token ids of the reply, and the hidden state [n, width] of the position that predicted each of them."""
        config = self.config
        prompt = self._on_device([self._prompt.ids([Turn("user", question)])])
        sampling: dict[str, Any] = {"do_sample": False}
        if config.temperature > 0:
            sampling = {"do_sample": True, "temperature": config.temperature, "top_p": config.top_p, "top_k": 0}
        out = self._thinker.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=max_tokens,
            min_new_tokens=least,
            repetition_penalty=config.repetition_penalty,
            pad_token_id=self._thinker.generation_config.pad_token_id or 0,
            return_dict_in_generate=True,
            output_hidden_states=True,
            **sampling,
        )
        ids = [int(number) for number in out.sequences[0, prompt.shape[1] :]]
        hidden = torch.stack([states[-1][0, -1] for states in out.hidden_states])
        return ids, hidden

    def _pieces(self, ids: list[int]) -> list[str]:
        """The text of each token; one that is not yet a whole character is empty, its text comes with the next."""
        pieces, done = [], ""
        for end in range(1, len(ids) + 1):
            text = self._tokenizer.decode(ids[:end], skip_special_tokens=True)
            whole = not text.endswith("\ufffd")
            pieces.append(text[len(done) :] if whole else "")
            done = text if whole else done
        return pieces

    def _talk(self, pieces: list[str], hidden: Tensor, *, most: int | None = None) -> tuple[list[int], Tensor]:
        """Speech codes of a whole text, and the window of symbols at the step of each, long [n, 9]."""
        reader = frontend.TextFrontend()
        rows = [row for piece in pieces for row in reader.push(piece)] + reader.finish()
        symbols = self._symbols(rows)
        if not rows:
            return [], symbols[:0]
        added = self._condition(rows, symbols, hidden)
        bound = most or min(len(rows) * STEPS_PER_SYMBOL + SPARE_STEPS, self._talker.config.max_positions - 2)
        cache = talker.Cache(self._talker.config, 1, bound, added.device, added.dtype)
        codes: list[int] = []
        stood: list[int] = []
        token, pointer = self._on_device([talker.BOS]), 0
        while len(codes) < bound:
            row = self._talker.embed(token) + added[pointer]
            drawn = self._draw(self._talker(row[None], cache)[0, -1])
            if drawn == talker.EOS:
                break
            code, advance = talker.split(drawn)
            codes.append(code)
            stood.append(pointer)
            pointer = min(pointer + advance, len(added) - 1)
            token = self._on_device([drawn])
        return codes, symbols[torch.tensor(stood, dtype=torch.long, device=self._device)]

    def _symbols(self, rows: list[frontend.Row]) -> Tensor:
        """The window of symbols at each place of the pointer, long [n, 9]; past the end all are like the last."""
        past = [talker.NONE_SYMBOL] * (talker.LEFT + 1)
        return talker.symbol_windows(self._on_device([*(row.symbol for row in rows), *past]))

    def _condition(self, rows: list[frontend.Row], symbols: Tensor, hidden: Tensor) -> Tensor:
        """The row added to the input at each place of the pointer, [n, width], where ``symbols`` are its windows."""
        places = torch.arange(len(symbols), device=self._device)
        tokens = self._on_device([row.token for row in rows])[places.clamp(max=len(rows) - 1)]
        states = hidden[tokens.clamp(max=len(hidden) - 1)].float() if self._conditioner.hidden is not None else None
        added = self._conditioner(symbols, states, torch.ones_like(places, dtype=torch.bool), torch.zeros_like(places))
        return added.to(self._talker.code_embed.dtype)

    def _draw(self, state: Tensor) -> int:
        """A token by temperature and top-k over all ids at once."""
        config = self.config
        code, advance, special = (part.float() for part in self._talker.factors(state))
        never = torch.full((1,), -torch.inf, device=self._device)
        logits = torch.cat([(code[:, None] + advance).flatten(), never, special[1:2]])
        if config.sampling["temperature"] <= 0:
            return int(logits.argmax())
        best, ids = logits.topk(config.sampling["top_k"] or len(logits))
        chances = torch.softmax(best / config.sampling["temperature"], -1)
        return int(ids[torch.multinomial(chances, 1)])

    def _trial_steps(self) -> tuple[Tensor, Tensor]:
        """Codes and symbols of a moment, for the VoiceBox."""
        codes = self._on_device([[0] * _TRIAL_STEPS])
        return codes, codes[..., None].expand(-1, -1, talker.SYMBOL_WINDOW)

    @torch.inference_mode()
    def _choose_ways(self) -> None:
        """Run each net in every way for a moment, in turn, and keep the fastest."""
        hidden = torch.zeros(1, self._thinker.config.hidden_size, device=self._device)
        nets: dict[str, tuple[Any, tuple[torch.dtype, ...], Callable[[], object]]] = {
            "thinker": (
                self._thinker,
                _TYPES,
                lambda: self._think("Why is the sky blue?", _TRIAL_TOKENS, least=_TRIAL_TOKENS),
            ),
            "talker": (
                self._talker,
                _TYPES,
                lambda: self._talk(["Hello there, this is how I speak."], hidden, most=_TRIAL_STEPS),
            ),
            "voicebox": (
                self._voicebox,
                (torch.float32,),
                lambda: self._voicebox.decode(*self._trial_steps()).cpu(),
            ),
        }
        for name, (net, types, work) in nets.items():
            most = self.config.threads if self._device.type == "cpu" else 1
            ways = [(dtype, threads) for dtype in types for threads in range(1, most + 1)]
            best: dict[Way, float] = dict.fromkeys(ways, float("inf"))
            for trial in range(_TRIALS + 1):
                for way in ways:
                    net.to(way[0])
                    torch.set_num_threads(way[1])
                    begun = time.perf_counter()
                    work()
                    if trial:  # the first is to warm up
                        best[way] = min(best[way], time.perf_counter() - begun)
            dtype, self._threads[name] = chosen = min(ways, key=best.__getitem__)
            net.to(dtype)
            self.facts[name] = _name(chosen)
            self.facts |= {f"{name}_trial_{_name(way)}_s": round(taken, 3) for way, taken in best.items()}


def _name(way: Way) -> str:
    return f"{str(way[0]).removeprefix('torch.')} x{way[1]}"
