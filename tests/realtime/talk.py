"""A session whose client plays, with a reply of which nothing can be lost unseen."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.realtime.bench import WORD, Bench
from voicechat.contract.events import AudioDelta, TextDelta
from voicechat.realtime.outbox import PlayAudio

WORDS = [f" w{number}" for number in range(40)]


class Talk(Bench):
    """The reply's words are numbered, and its sound counts its own samples, so that nothing can be lost unseen."""

    def __init__(self, **limits: Any) -> None:
        super().__init__(**limits)
        self.words = self.samples = 0

    def speak(self, words: int, ahead: int = 0) -> None:
        """The cascade makes the sound of so many words; the text of ``ahead`` more is there too."""
        generation = max(self.running)
        for _ in range(words):
            self.text_to(self.samples // WORD + 1 + ahead, generation)
            sound = (np.arange(self.samples, self.samples + WORD) % 30_000).astype(np.int16)
            self.samples += WORD
            self.take(self.session.on_cascade(generation, AudioDelta(sound)))

    def text_to(self, count: int, generation: int) -> None:
        for word in WORDS[self.words : count]:
            self.take(self.session.on_cascade(generation, TextDelta(word)))
        self.words = max(self.words, count)

    def ask(self, words: int = 10, finish: bool = False, ahead: int = 0) -> None:
        self.turn()
        self.speak(words, ahead)
        if finish:
            self.finish()
        self.pass_time(0.5)

    def spoken_items(self) -> list[str]:
        added = self.all("response.output_item.added")
        return [event["item"]["id"] for event in added if event["item"]["type"] == "message"]

    def stop(self, milliseconds: int) -> None:
        """What a client does when it is told of speech."""
        self.tell(
            "conversation.item.truncate",
            item_id=self.spoken_items()[-1],
            content_index=0,
            audio_end_ms=milliseconds,
        )

    def murmur(self, milliseconds: int | None, text: str = "Mm-hm.", voice: float = 0.3, after: float = 0.26) -> None:
        """The user says something short in the reply, and the client stops there."""
        self.hear(voice, True)
        if milliseconds is not None:
            self.stop(milliseconds)
        self.hear(0.24, False)
        self.understand(text)
        self.hear(after, False)

    def heard(self) -> np.ndarray:
        """The sound of all items as the client was to hear it: what it truncated is cut off."""
        parts: dict[str, list[np.ndarray]] = {}
        for output in self.outputs:
            if isinstance(output, PlayAudio):
                parts.setdefault(output.place.item_id, []).append(output.pcm)
        sound = {item: np.concatenate(pieces) for item, pieces in parts.items()}
        for event in self.all("conversation.item.truncated"):
            sound[event["item_id"]] = sound[event["item_id"]][: event["audio_end_ms"] * 24]
        return np.concatenate([sound[item] for item in self.spoken_items() if item in sound])

    def transcript(self) -> str:
        return "".join(self.session.conversation.get(item).text() for item in self.spoken_items())


def all_was_heard(talk: Talk) -> None:
    assert np.array_equal(talk.heard(), (np.arange(talk.samples) % 30_000).astype(np.int16))
    assert talk.transcript() == "".join(WORDS[: talk.words])
    talk.tell("response.create")
    told = [text for role, text in talk.asked() if role == "assistant"]
    assert told == ["".join(WORDS[: talk.words])], "one turn, heard in full"
    talk.check()
