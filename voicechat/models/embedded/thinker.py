"""The Thinker: any LLM for text with a chat template, and how it is prompted. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from voicechat.contract.family import EngineModel, Prompt
from voicechat.contract.messages import Generate, Turn
from voicechat.contract.requests import AudioPart, ImagePart
from voicechat.contract.tools import as_text

SYSTEM_PROMPT = (
    "You are a friendly voice assistant. Answer in one or two short, plain spoken sentences, without lists or markdown."
)


class EmbeddedThinker:
    """See :class:`voicechat.contract.family.ThinkerModel`: an LLM for text, as it is."""

    def __init__(self, folder: str, dtype: str) -> None:
        self.engine = EngineModel(folder=folder, dtype=dtype)

    def prompter(self, tokenizer: Any, system_prompt: str) -> ChatPrompt:
        """See :class:`voicechat.contract.family.ThinkerModel`."""
        return ChatPrompt(tokenizer, system_prompt)

    def rows(self, model: Any, hidden: Any) -> Any:
        """The last hidden states."""
        return hidden


class ChatPrompt:
    """Turns a conversation into token ids by the tokenizer's own chat template.

    Some templates know no system turn: they refuse one, or leave it out. There the system's text goes before the first
    thing that the user says. Raises ValueError if the tokenizer has no template.
    """

    def __init__(self, tokenizer: Any, system_prompt: str) -> None:
        self._tokenizer = tokenizer
        self._system = system_prompt
        probe = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello!"}]
        self._render(probe[1:])
        try:
            self._takes_system = "Be brief." in self._render(probe)
        except ValueError:
            self._takes_system = False

    def prompt(self, message: Generate, media: Mapping[int, AudioPart | ImagePart]) -> Prompt:
        """See :class:`voicechat.contract.family.Prompter`: the family has no eyes, and its ears are not the
        Thinker's."""
        return Prompt(self.ids(as_text(message, self._system)))

    def ids(self, turns: Sequence[Turn]) -> list[int]:
        """Token ids of the prompt, up to where the reply begins.

        Without a system turn of the caller's the voice prompt is put in front. Raises ValueError for a conversation
        that the template refuses.
        """
        messages = [{"role": turn.role, "content": turn.text} for turn in turns]
        if not any(turn.role == "system" for turn in turns):
            messages.insert(0, {"role": "system", "content": self._system})
        if not self._takes_system:
            messages = _without_system(messages)
        return list(self._tokenizer.encode(self._render(messages), add_special_tokens=False))

    def _render(self, messages: list[dict[str, str]]) -> str:
        from jinja2 import TemplateError

        try:
            text: str = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except TemplateError as error:
            raise ValueError(f"the model's chat template refuses this conversation: {error}") from None
        return text


def _without_system(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    """The same conversation without system turns: their text stands before the user turn that follows them."""
    out: list[dict[str, str]] = []
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "system":
            waiting.append(message["content"])
        elif message["role"] == "user":
            out.append({**message, "content": "\n\n".join([*waiting, message["content"]])})
            waiting = []
        else:
            out.append(message)
    if waiting:
        out.append({"role": "user", "content": "\n\n".join(waiting)})
    return out
