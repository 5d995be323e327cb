"""``voicechat bench realtime --simulate``: the scripted set without a server and without waiting.

The real sessions run on a simulated clock, with the real detectors and the real ASR, each sound heard only once and
remembered; replies are tones, and all times are modelled. The same set gives the same figures on every machine.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voicechat.assemble import AssembledPaths
from voicechat.bench import virtual_time
from voicechat.bench.realtime_judge import Verdict, judge
from voicechat.bench.realtime_scene import act
from voicechat.bench.realtime_trace import Line, LineError
from voicechat.bench.script import Recording
from voicechat.bench.served import say
from voicechat.bench.simulated import Asr, Memory, ModelTimes, SimulatedCascade, SimulatedDetectors
from voicechat.bench.simulated_line import SimulatedRtc, SimulatedWs
from voicechat.config import Settings
from voicechat.media.detectors import SILERO_FILE, SMART_TURN_FILE
from voicechat.media.silero import Silero
from voicechat.media.smart_turn import SmartTurn
from voicechat.realtime.session import SessionLimits
from voicechat.realtime.settings import SessionConfig
from voicechat.turn_taking import turn_policy, vad_policy

SHORT_S, LONG_S = 2.0, 10.0
"""Seconds of a reply, and of one into which somebody speaks."""


class Simulator:
    """``memory`` keeps what the models found. Raises FileNotFoundError, or ValueError if a file is another model."""

    def __init__(
        self, settings: Settings, paths: AssembledPaths, memory: Memory, times: ModelTimes | None = None
    ) -> None:
        self._times = times or ModelTimes()
        self._policy = turn_policy(settings.turns)
        self._vad = vad_policy(settings.turns)
        self._memory = memory
        self._silero = Silero(paths.detectors / SILERO_FILE)
        self._smart_turn = SmartTurn(paths.detectors / SMART_TURN_FILE)
        self._asr = Asr(paths.ears, settings.ears.beam_size, memory)

    def turn(
        self, transport: str, recording: Recording, prompt: Recording | None, session: dict[str, object]
    ) -> Verdict:
        """One turn in a session of its own. ``session`` as a client sends it."""
        return virtual_time.run(self._turn(transport, recording, prompt, session))

    async def _turn(
        self, transport: str, recording: Recording, prompt: Recording | None, session: dict[str, object]
    ) -> Verdict:
        times = self._times
        cascade = SimulatedCascade(self._asr, times, SHORT_S if prompt is None else LONG_S)
        detectors = SimulatedDetectors(self._silero, self._smart_turn, self._memory, times, self._vad)
        limits = SessionLimits(policy=self._policy, server_plays=transport == "webrtc")
        asked = {name: value for name, value in session.items() if name != "model"}
        config = SessionConfig("", cascade.model.default_voice).updated(asked, cascade.model)
        line: Line = (SimulatedWs if transport == "ws" else SimulatedRtc)(config, limits, cascade, detectors, times)
        entry = recording.entry
        try:
            return judge(await act(line, recording, prompt))
        except LineError as error:
            return Verdict(entry.name, entry.kind, entry.expect, recording.voice, transport, error=str(error))
        finally:
            await line.close()
            detectors.close()


@dataclass(frozen=True, slots=True)
class Job:
    """A turn that is to be simulated; one of ``prompts`` asks for the reply in which it is heard, the next one if that
    was too short."""

    transport: str
    recording: Recording
    prompts: tuple[Recording, ...]
    session: dict[str, Any]


def simulate(
    settings: Settings, paths: AssembledPaths, path: Path, jobs: Sequence[Job], stop: threading.Event
) -> list[Verdict]:
    """The verdicts on ``jobs``, in their order, until all are done, or ``stop`` is set. ``path``: file of what the
    models found."""
    memory = Memory(path)
    simulator = Simulator(settings, paths, memory)
    verdicts: list[Verdict] = []
    for job in jobs:
        if stop.is_set():
            break
        for prompt in job.prompts or (None,):
            verdict = simulator.turn(job.transport, job.recording, prompt, job.session)
            if verdict.void is None:
                break
        verdicts.append(verdict)
        if len(verdicts) % 50 == 0:
            say(f"{len(verdicts):4} of {len(jobs)}")
    memory.save()
    return verdicts
