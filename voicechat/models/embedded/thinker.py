"""How the embedded Thinkers are prompted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from voicechat.cascade.messages import Turn

SYSTEM_PROMPT = (
    "You are a friendly voice assistant. Answer in one or two short, plain spoken sentences, without lists or markdown."
)


class ChatPrompt:
    """Turns a conversation into token ids by the tokenizer's own chat template."""

    def __init__(self, tokenizer: Any, system_prompt: str) -> None:
        self._tokenizer = tokenizer
        self._system = system_prompt

    def ids(self, turns: Sequence[Turn]) -> list[int]:
        """Token ids of the prompt, up to where the reply begins.

        Without a system turn of the caller's the voice prompt is put in front. Raises ValueError for a conversation
        that the template refuses.
        """
        messages = [{"role": turn.role, "content": turn.text} for turn in turns]
        if not any(turn.role == "system" for turn in turns):
            messages.insert(0, {"role": "system", "content": self._system})
        text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return list(self._tokenizer.encode(text, add_special_tokens=False))
