"""Thinkers in training: their replies (texts to speak) and their hidden states (rows beside the symbols)."""

from __future__ import annotations

import logging
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from voicechat.train.sentences import made_prompt

logger = logging.getLogger("voicechat.train")

SYSTEMS = (
    None,
    None,
    "You are a friendly voice assistant. Answer in one or two short spoken sentences.",
    "Answer briefly, in plain spoken English, without lists or markdown.",
    "You are a helpful assistant who talks with people. Keep your answers short.",
)
READ_PROMPT = "Say something."
MAX_CHARACTERS = 640


class TrainingThinker:
    """A chat model of any architecture, run by transformers. ``path``: a GGUF file or a model folder."""

    def __init__(self, path: Path, device: torch.device) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        folder, extra = (path.parent, {"gguf_file": path.name}) if path.suffix == ".gguf" else (path, {})
        self.device = device
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.tokenizer: Any = AutoTokenizer.from_pretrained(str(folder), **extra)
        self.model: Any = AutoModelForCausalLM.from_pretrained(str(folder), dtype=dtype, **extra).to(device).eval()
        self.width = int(self.model.config.get_text_config().hidden_size)
        self.ends = reply_ends(self.model, self.tokenizer)
        self.end = self.ends[0]

    def prompt_ids(self, prompt: str, system: str | None) -> list[int]:
        """Token ids of the chat up to where the reply begins."""
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": prompt})
        text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    @torch.inference_mode()
    def replies(self, prompts: list[list[int]], tokens: int, temperature: float = 0.8, batch: int = 2048) -> list[str]:
        """One sampled reply to each prompt."""
        out: list[str] = [""] * len(prompts)
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        for start in range(0, len(order), batch):
            part = order[start : start + batch]
            length = max(len(prompts[index]) for index in part)
            ids = torch.full((len(part), length), self.end)
            mask = torch.zeros_like(ids)
            for row, index in enumerate(part):
                ids[row, length - len(prompts[index]) :] = torch.tensor(prompts[index])
                mask[row, length - len(prompts[index]) :] = 1
            made = self.model.generate(
                input_ids=ids.to(self.device), attention_mask=mask.to(self.device), max_new_tokens=tokens,
                do_sample=True, temperature=temperature, top_p=0.95, top_k=0,
                eos_token_id=self.ends, pad_token_id=self.end,
            )[:, length:].cpu()  # fmt: skip
            for index, row_ids in zip(part, made, strict=True):
                finished = bool(torch.isin(row_ids, torch.tensor(self.ends)).any())
                text = self.tokenizer.decode(row_ids, skip_special_tokens=True)
                out[index] = tidy_reply(text, finished)
        return out

    @torch.inference_mode()
    def hidden_states(
        self, items: list[dict[str, str]], batch: int = 128
    ) -> tuple[npt.NDArray[np.float16], npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """Last hidden states (after the final norm) at the positions that predict each reply token.

        Returns states [tokens, width], tokens per item, and each token's end position in its text.
        """
        encoded = [
            self.tokenizer(item["text"], add_special_tokens=False, return_offsets_mapping=True) for item in items
        ]
        prompts = [self.prompt_ids(item["prompt"], item.get("system") or None) for item in items]
        counts = np.asarray([len(code["input_ids"]) for code in encoded], np.int64)
        starts = np.concatenate(([0], np.cumsum(counts)))
        states = np.zeros((int(starts[-1]), self.width), np.float16)
        order = sorted(range(len(items)), key=lambda index: len(prompts[index]) + int(counts[index]))
        for start in range(0, len(order), batch):
            part = order[start : start + batch]
            ids = [prompts[index] + encoded[index]["input_ids"] for index in part]
            padded = torch.full((len(part), max(map(len, ids))), self.end)
            for row, line in enumerate(ids):
                padded[row, : len(line)] = torch.tensor(line)
            # Padding on the right needs no mask under causal attention.
            made = self.model.base_model(input_ids=padded.to(self.device), use_cache=False)
            hidden = made.last_hidden_state.to(torch.float16).cpu().numpy()
            for row, index in enumerate(part):
                first = len(prompts[index]) - 1
                states[starts[index] : starts[index + 1]] = hidden[row, first : first + counts[index]]
        ends = np.asarray([end for code in encoded for _, end in code["offset_mapping"]], np.int32)
        return states, counts, ends


def reply_ends(model: Any, tokenizer: Any) -> list[int]:
    """Ids of the tokens that end a reply, by the model's generation settings and its tokenizer."""
    named = tokenizer.convert_tokens_to_ids("<|im_end|>")
    ends = [named] if isinstance(named, int) and 0 <= named != tokenizer.unk_token_id else []
    listed = model.generation_config.eos_token_id
    ends += listed if isinstance(listed, list) else [listed, tokenizer.eos_token_id]
    out = list(dict.fromkeys(int(end) for end in ends if end is not None))
    if not out:
        raise ValueError("neither generation_config.json nor the tokenizer says which token ends a reply")
    return out


def tidy_reply(text: str, finished: bool) -> str:
    """A reply that was cut at the token limit ends with its last whole sentence; none left gives ''."""
    text = text.strip()
    if not finished or len(text) > MAX_CHARACTERS:
        text = text[:MAX_CHARACTERS]
        text = text[: max(text.rfind(mark) for mark in ".!?") + 1]
    return text


def make_replies(
    thinker: TrainingThinker, name: str, count: int, nouns: list[str], seed: int, tokens: int
) -> list[dict[str, str]]:
    """Prompts and the Thinker's replies, without repetitions and without replies that are mostly not English."""
    rng = random.Random(f"{name}-{seed}")
    asked = [(made_prompt(rng, nouns), rng.choice(SYSTEMS)) for _ in range(count)]
    begun = time.monotonic()
    replies = thinker.replies([thinker.prompt_ids(prompt, system) for prompt, system in asked], tokens)
    items, seen = [], set()
    for (prompt, system), text in zip(asked, replies, strict=True):
        plain = sum(character.isascii() for character in text)
        if len(text) < 2 or plain < 0.97 * len(text) or text in seen:
            continue
        seen.add(text)
        items.append({"prompt": prompt, "system": system or "", "text": text})
    logger.info("texts %s: %d replies in %.0f s", name, len(items), time.monotonic() - begun)
    return items
