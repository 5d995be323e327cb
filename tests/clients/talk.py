"""A conversation as every client holds it: three spoken turns, the second answer interrupted by the third question."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.cascade.listening import error_rate, for_ears, words_right
from tests.speech import silence
from voicechat.contract.sound import PCM_RATE, EarsPcm, Pcm
from voicechat.media.resample import to_pcm

QUESTIONS = (
    "How many legs does a spider have?",
    "Please tell me a very long story about a little dog.",
    "What is the largest ocean on earth?",
)
SPEAKERS = ("espeak-us", "teacher", "espeak-gb-female")
"""Who asks which; see :mod:`tests.cascade.listening`."""

INSTRUCTIONS = "You are a friendly assistant. Answer in one short sentence, but tell stories at length."
INTERRUPT_AFTER = 0.8
"""Seconds of the second answer that are played before the third question begins: a small model may tell no more of a
story than two seconds."""
PATIENCE = 60.0
"""Bound in seconds on any wait."""

_CHUNK = PCM_RATE // 10

Sound = npt.NDArray[np.float32]
"""Mono at 24 kHz."""


def to_bytes(sound: Sound) -> bytes:
    """pcm16, as it goes over the wire."""
    return to_pcm(sound.astype(np.float32)).astype("<i2").tobytes()


@dataclass
class Answer:
    """What a client was given: ``text`` as it shows it, ``sound`` pcm16 at 24 kHz."""

    text: str = ""
    sound: bytearray = field(default_factory=bytearray)
    done: bool = False
    began: float = 0.0

    def begin(self) -> None:
        """It begins to sound."""
        self.began = self.began or time.monotonic()

    def add(self, data: bytes) -> None:
        """More of its sound."""
        self.begin()
        self.sound += data

    @property
    def pcm(self) -> Pcm:
        return np.frombuffer(bytes(self.sound), "<i2").astype(np.int16)

    @property
    def milliseconds(self) -> float:
        return len(self.sound) / 2 * 1000 / PCM_RATE


@dataclass
class Talk:
    """What came of a conversation.

    ``asked``: what the client was told that its user had said. ``kept_ms`` and ``kept_text``: what the server says is
    left of the second answer after the interruption. ``history``: roles and texts of the client's own history, if it
    keeps one.
    """

    asked: list[str] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    cut_item: str = ""
    kept_ms: int | None = None
    kept_text: str | None = None
    history: list[tuple[str, str]] | None = None
    errors: list[Any] = field(default_factory=list)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    # -- what a client's driver reports -------------------------------------------------------------------------------

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` until it, or the conversation, ends."""

        def on_done(task: asyncio.Task[None]) -> None:
            self.tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                self.errors.append(error)

        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(on_done)

    def answer(self) -> Answer:
        """An answer begins."""
        self.answers.append(Answer())
        return self.answers[-1]

    def text(self, delta: str) -> None:
        """More of its transcript."""
        self.answers[-1].text += delta

    def sound(self, data: bytes) -> None:
        """More of its sound."""
        self.answers[-1].add(data)

    def done(self) -> None:
        """The answer has ended."""
        self.answers[-1].done = True

    def on_server_event(self, event: dict[str, Any]) -> None:
        """What is left of the second answer, from the server's own events."""
        if event["type"] == "conversation.item.truncated":
            self.cut_item, self.kept_ms = event["item_id"], event["audio_end_ms"]
        elif event["type"] == "conversation.item.retrieved" and event["item"]["id"] == self.cut_item:
            self.keep(self.cut_item, self.kept_ms or 0, event["item"]["content"][0]["transcript"])

    def keep(self, item_id: str, milliseconds: int, text: str) -> None:
        """What is left of the second answer."""
        self.cut_item, self.kept_ms, self.kept_text = item_id, milliseconds, text

    # -- the conversation ---------------------------------------------------------------------------------------------

    async def played(self, answer: Answer) -> None:
        """Wait until a loudspeaker would have played it, and a moment more."""
        end = answer.began + answer.milliseconds / 1000 + 0.5
        await asyncio.sleep(max(0.0, end - time.monotonic()))

    def played_ms(self) -> int:
        """How much of the last answer a loudspeaker would have played by now."""
        answer = self.answers[-1]
        return int(min(answer.milliseconds, (time.monotonic() - answer.began) * 1000))

    async def hold(
        self,
        say: Callable[[Sound], None],
        questions: Sequence[Sound],
        retrieve: Callable[[str], Awaitable[object]],
    ) -> None:
        """Hold the conversation: ``say`` puts a question before the microphone, ``retrieve`` asks the server for an
        item of its history. Ends all that was :meth:`started <start>`."""
        try:
            await self._hold(say, questions, retrieve)
        finally:
            tasks = set(self.tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _hold(
        self,
        say: Callable[[Sound], None],
        questions: Sequence[Sound],
        retrieve: Callable[[str], Awaitable[object]],
    ) -> None:
        say(questions[0])
        await self._until(lambda: len(self.answers) == 1 and self.answers[0].done)
        await self.played(self.answers[0])
        say(questions[1])
        await self._until(lambda: len(self.answers) == 2 and self.answers[1].began > 0)
        await asyncio.sleep(INTERRUPT_AFTER)
        say(questions[2])
        await self._until(lambda: self.kept_ms is not None and self.answers[1].done)
        await retrieve(self.cut_item)
        await self._until(lambda: self.kept_text is not None)
        await self._until(lambda: len(self.answers) == 3 and self.answers[2].done and len(self.asked) == 3)

    async def _until(self, condition: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                while not condition():
                    assert not self.errors, self.errors
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"this is as far as the conversation came: {self}") from None

    def __str__(self) -> str:
        answers = [f"{a.text!r} ({a.milliseconds:.0f} ms{', done' if a.done else ''})" for a in self.answers]
        return f"asked {self.asked}, answers {answers}, kept {self.kept_ms} ms {self.kept_text!r}, {self.errors}"


class Microphone:
    """Sends in real time, 0.1 s at a time, what is :meth:`said <say>`, and the noise of a quiet room otherwise.

    Used as an async context manager: it sends while that is open. ``send`` takes pcm16 at 24 kHz.
    """

    def __init__(self, send: Callable[[bytes], Awaitable[object]]) -> None:
        self._send = send
        self._pending = np.zeros(0, np.float32)
        self._room = silence(0.1, PCM_RATE)

    def say(self, sound: Sound) -> None:
        """Speak."""
        self._pending = np.concatenate([self._pending, sound])

    async def __aenter__(self) -> Microphone:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.result()

    async def _run(self) -> None:
        begun = time.monotonic()
        count = 0
        while True:
            part, self._pending = self._pending[:_CHUNK], self._pending[_CHUNK:]
            chunk = self._room.copy()
            chunk[: len(part)] += part
            await self._send(to_bytes(chunk))
            count += 1
            await asyncio.sleep(max(0.0, begun + count * 0.1 - time.monotonic()))


Listen = Callable[[EarsPcm], str]


def judge(talk: Talk, listen: Listen, bound: float, answers: Sequence[str] | None = None) -> None:
    """Check a conversation: ``listen`` transcribes sound, ``bound`` is the highest word error rate of the answers.

    ``answers`` are what was to be said, if that is known. An interrupted sound ends in the middle of a word, so the
    last two words of what was kept of it may be wrong.
    """
    print(talk)  # shown with a failure
    assert not talk.errors
    assert len(talk.asked) == len(talk.answers) == 3
    for question, asked in zip(QUESTIONS, talk.asked, strict=True):
        assert error_rate(question, asked) <= 0.3, (question, asked)
    first, cut, last = talk.answers
    if answers is not None:
        assert [first.text, last.text] == [answers[0], answers[2]]
        assert answers[1].startswith(cut.text)
        assert len(cut.text) < len(answers[1]), "the interruption stops the answer"
    said = f"{first.text} {last.text}"
    heard = " ".join(listen(for_ears(answer.pcm)) for answer in (first, last))
    assert error_rate(said, heard) <= bound, (said, heard)
    assert talk.kept_ms is not None and talk.kept_text is not None
    assert 0 < talk.kept_ms <= cut.milliseconds
    assert talk.kept_text
    assert cut.text.startswith(talk.kept_text)
    assert len(talk.kept_text) < len(cut.text), "the history is cut too"
    if talk.history is not None:
        turns = zip(talk.asked, (first.text, talk.kept_text, last.text), strict=True)
        assert talk.history == [turn for asked, text in turns for turn in (("user", asked), ("assistant", text))]
    heard = listen(for_ears(cut.pcm[: talk.kept_ms * PCM_RATE // 1000]))
    kept = len(talk.kept_text.split())
    right = words_right(talk.kept_text, heard)
    assert kept <= 2 or right >= max(1, (1 - bound) * (kept - 2)), (talk.kept_text, heard)
