"""PyPI ``pipecat-ai``: a pipeline around ``OpenAIRealtimeLLMService``."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from tests.cascade_double import DoubleCascade
from tests.speech import voice
from tests.ws_server import spoken
from voicechat.media.resample import to_pcm

llm = pytest.importorskip("pipecat.services.openai.realtime.llm")

from pipecat.frames.frames import (  # noqa: E402
    EndFrame,
    ErrorFrame,
    Frame,
    InputAudioRawFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    TTSAudioRawFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline  # noqa: E402
from pipecat.pipeline.runner import PipelineRunner  # noqa: E402
from pipecat.pipeline.task import PipelineTask  # noqa: E402
from pipecat.processors.aggregators.llm_context import LLMContext  # noqa: E402
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor  # noqa: E402


class Sink(FrameProcessor):
    """Keeps what comes out of the service."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: asyncio.Queue[Frame] = asyncio.Queue()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        self.seen.put_nowait(frame)
        await self.push_frame(frame, direction)

    async def until(self, kind: type[Frame]) -> list[Frame]:
        frames: list[Frame] = []
        async with asyncio.timeout(20):
            while not frames or not isinstance(frames[-1], kind):
                frames.append(await self.seen.get())
                assert not isinstance(frames[-1], ErrorFrame), frames[-1]
        return frames


def sound(samples: np.ndarray) -> InputAudioRawFrame:
    data = to_pcm(samples.astype(np.float32)).astype("<i2").tobytes()
    return InputAudioRawFrame(audio=data, sample_rate=24_000, num_channels=1)


def said(frames: list[Frame]) -> str:
    return "".join(frame.text for frame in frames if isinstance(frame, TTSTextFrame))


async def test_three_turns_with_an_interruption(serve):
    cascade = DoubleCascade(transcripts=["one", "two", "three"], word_delay=0.01)
    server = await serve(cascade)
    service = llm.OpenAIRealtimeLLMService(api_key="none", base_url=server.base.replace("http", "ws") + "/v1/realtime")
    sink = Sink()
    task = PipelineTask(Pipeline([service, sink]))
    running = asyncio.create_task(PipelineRunner(handle_sigint=False).run(task))
    context = LLMContext([{"role": "user", "content": "hello"}])
    await task.queue_frame(LLMContextFrame(context))
    assert "hello" in said(await sink.until(TTSStoppedFrame))
    await task.queue_frame(sound(spoken()))
    frames = await sink.until(TTSStoppedFrame)
    assert "one" in said(frames)
    assert sum(len(f.audio) for f in frames if isinstance(f, TTSAudioRawFrame)) == round(3 * 0.3 * 24_000) * 2
    cascade.answer, cascade.word_delay = "word " * 100, 0.1
    await task.queue_frame(sound(spoken()))
    await sink.until(TTSAudioRawFrame)
    await task.queue_frame(sound(voice(0.8, 24_000)))
    await sink.until(LLMFullResponseEndFrame)
    assert cascade.responses[2].cancelled.is_set()
    cascade.answer = None
    await task.queue_frame(sound(np.zeros(40_000)))
    assert "three" in said(await sink.until(TTSStoppedFrame))
    await task.queue_frame(EndFrame())
    await asyncio.wait_for(running, 10)
