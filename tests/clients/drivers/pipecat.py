"""PyPI ``pipecat-ai``: a pipeline of ``OpenAIRealtimeLLMService`` and an end that plays as its transports do."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipecat.frames.frames import (
    BotStoppedSpeakingFrame,
    EndFrame,
    ErrorFrame,
    Frame,
    InputAudioRawFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    ProposedUserStartedSpeakingFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.runner import PipelineRunner
from pipecat.pipeline.task import PipelineTask
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.realtime.events import SessionProperties
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService

from tests.clients.talk import INSTRUCTIONS, Microphone, Sound, Talk
from voicechat.contract.sound import PCM_RATE


class Speaker(FrameProcessor):
    """The end of the pipeline: tells the service when the loudspeaker has become quiet."""

    def __init__(self, talk: Talk, service: OpenAIRealtimeLLMService) -> None:
        super().__init__()
        self._talk = talk
        self._service = service
        self._items: list[str] = []
        service.add_event_handler("on_conversation_item_created", self._on_item)

    async def _on_item(self, _: Any, item_id: str, item: Any) -> None:
        if item.role == "assistant":
            self._items.append(item_id)

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        talk = self._talk
        match frame:
            case LLMFullResponseStartFrame():
                talk.answer()
            case TTSAudioRawFrame():
                talk.sound(frame.audio)
            case TTSTextFrame():
                talk.text(frame.text)
            case LLMFullResponseEndFrame():
                talk.done()
                talk.start(self._play_out())
            case ProposedUserStartedSpeakingFrame() if len(talk.answers) == 2:
                talk.start(self._look_at_history(self._items[-1]))
            case ErrorFrame():
                talk.errors.append(frame.error)
        await self.push_frame(frame, direction)

    async def _play_out(self) -> None:
        answer = self._talk.answers[-1]
        await self._talk.played(answer)
        await self.push_frame(BotStoppedSpeakingFrame(), FrameDirection.UPSTREAM)

    async def _look_at_history(self, item_id: str) -> None:
        """The service has just truncated this item."""
        item = await self._service.retrieve_conversation_item(item_id)
        (part,) = item.content
        self._talk.keep(item_id, len(base64.b64decode(part.audio)) * 500 // PCM_RATE, part.transcript)


class Subtitles(FrameProcessor):
    """The beginning of the pipeline, where the transcripts of the user come up."""

    def __init__(self, talk: Talk) -> None:
        super().__init__()
        self._talk = talk

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TranscriptionFrame):
            self._talk.asked.append(frame.text)
        elif isinstance(frame, ErrorFrame):
            self._talk.errors.append(frame.error)
        await self.push_frame(frame, direction)


async def converse(base: str, questions: Sequence[Sound], folder: Path) -> Talk:
    """Hold the conversation with the server at ``base``."""
    talk = Talk()
    settings = OpenAIRealtimeLLMService.Settings(session_properties=SessionProperties(instructions=INSTRUCTIONS))
    url = base.replace("http", "ws", 1) + "/v1/realtime"
    service = OpenAIRealtimeLLMService(api_key="none", base_url=url, settings=settings)
    task = PipelineTask(Pipeline([Subtitles(talk), service, Speaker(talk, service)]))
    running = asyncio.create_task(PipelineRunner(handle_sigint=False).run(task))

    async def send(data: bytes) -> None:
        await task.queue_frame(InputAudioRawFrame(audio=data, sample_rate=PCM_RATE, num_channels=1))

    async def retrieve(_: str) -> None:
        """It has already been asked for."""

    async with Microphone(send) as microphone:
        await talk.hold(microphone.say, questions, retrieve)
    await task.queue_frame(EndFrame())
    await asyncio.wait_for(running, 10)
    return talk
