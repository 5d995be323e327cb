"""``voicechat bench voice``: the voices of a server, judged on held-out texts beside their teachers.

Every text is spoken through ``/v1/audio/speech`` in each mode, and by the voice's teacher; the judges of
:mod:`voicechat.bench.voice_judges` have their say on each sound. Sounds and words are kept in a work folder, so that a
run that was broken off goes on, and a judge that is installed later is asked about the sounds that are there.
See :mod:`voicechat.bench.voice_report` for the object that ``--json`` prints.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import importlib.util
import json
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from voicechat.assemble.assembler import family_folders
from voicechat.assemble.catalogue import EARS_NAME
from voicechat.bench import voice_sounds
from voicechat.bench.chat_client import ClientError
from voicechat.bench.outcome import BenchError, Report, outcome
from voicechat.bench.served import Progress, Served, say, serving, settings_of
from voicechat.bench.voice_images import draw
from voicechat.bench.voice_judges import HEARD, PHRASES, Panel
from voicechat.bench.voice_report import SCHEMA, as_text, found_failures, voice_report
from voicechat.bench.voice_sounds import MODES, TEACHER, Kept, Pcm, Text, default_teachers, load_texts
from voicechat.bench.voice_workers import Workers
from voicechat.config import Settings
from voicechat.contract.family import GivenFolder

HELD_OUT = Path(__file__).with_name("held_out.json")
_IMAGES, _IMAGE_CHARACTERS = 6, 40
"""Texts of each voice that are drawn: the shortest that have so many characters."""
_SEED = 20_000


def main(options: argparse.Namespace) -> int:
    """Run the benchmark; 0 if every text was spoken, 1 if not, 2 if an option can't be used."""

    def begin() -> Coroutine[Any, Any, Report]:
        _check(options)
        return _run(options)

    return outcome(options, begin, as_text, lambda report: any(v["failed"] for v in report["voices"].values()))


def _check(options: argparse.Namespace) -> None:
    needed = {"jiwer": "jiwer", "whisper_normalizer": "whisper-normalizer"}
    if options.images is not None:
        needed["matplotlib"] = "matplotlib"
    missing = [package for module, package in needed.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise BenchError(f"this needs {', '.join(missing)}: pip install 'voicechat[judge]'", 2)
    if options.texts is None and not HELD_OUT.is_file():
        raise BenchError("there are no held-out texts with the package; give --texts FILE", 2)
    if options.strong is not None and not options.strong.is_dir():
        raise BenchError(f"--strong: there is no folder {options.strong}", 2)


async def _run(options: argparse.Namespace) -> Report:
    settings = settings_of(options)
    texts = load_texts(options.texts or HELD_OUT, options.count)
    async with contextlib.AsyncExitStack() as stack:
        served = await stack.enter_async_context(serving(options))
        panel = Panel(_transcribers(options, settings))
        voices = _voices(options.voices, served.client.listed["voices"])
        work = options.work or settings.data_dir / "bench" / "voice" / _identity(options, settings, served)
        say(f"sounds and words are kept in {work}")
        wanted = [*default_teachers([v for v in voices if not _named(v, options.teacher)]), *options.teacher]
        try:
            teachers = voice_sounds.Teachers(settings.data_dir / "bench" / "teachers", wanted)
            await asyncio.to_thread(teachers.prepare)
        except (ValueError, FileNotFoundError) as error:
            raise BenchError(str(error), 2) from None
        untaught = [voice for voice in voices if voice not in teachers]
        notes = [*panel.notes, *(f"{voice}: no teacher is known; give --teacher {voice}=…" for voice in untaught)]
        kept = Kept(work)
        workers = stack.enter_context(Workers(options.processes, kept, teachers, panel))
        run = _Run(options, served, texts, kept, teachers, panel, workers)
        for note in notes:
            say(note)
        found = {voice: await run.voice(voice) for voice in voices}
    told = {
        "count": len(texts),
        "modes": list(options.modes),
        "concurrency": options.concurrency,
        "judges": list(panel.names),
        "work": str(work),
        "server": options.server,
        "overrides": list(options.overrides),
    }
    return {**served.report(SCHEMA, "voice", told), "notes": notes, "voices": found}


def _voices(wanted: Sequence[str], served: Sequence[str]) -> list[str]:
    if unknown := [voice for voice in wanted if voice not in served]:
        raise BenchError(f"the server has no voice {unknown[0]}; it has {', '.join(served)}", 2)
    return list(dict.fromkeys(wanted or served))


def _named(voice: str, teachers: Sequence[str]) -> bool:
    return any(entry.partition("=")[0] == voice for entry in teachers)


def _transcribers(options: argparse.Namespace, settings: Settings) -> dict[str, Path]:
    """Folders of the transcribers by name; the first decides."""
    found = {"tiny.en": options.ears or settings.data_dir / "ears" / EARS_NAME}
    if not (found["tiny.en"] / "model.bin").is_file():
        raise BenchError(f"there is no faster-whisper model in {found['tiny.en']}; give --ears FOLDER", 2)
    if options.strong is not None:
        found[options.strong.name] = options.strong
    return found


def _identity(options: argparse.Namespace, settings: Settings, served: Served) -> str:
    """Name of the work folder: another for other weights or settings, or for a server that was started anew."""
    digest = hashlib.sha256()
    if options.server is not None:
        digest.update(f"{options.server} {served.client.listed['created']}".encode())
    else:
        for name, folder in sorted(family_folders(settings).items()):
            if isinstance(folder, GivenFolder) and name != "thinker":
                for path in sorted(folder.path.glob("*.safetensors")):
                    digest.update(path.read_bytes())
        digest.update(json.dumps([options.device, sorted(options.overrides)]).encode())
    return f"{served.model}-{digest.hexdigest()[:10]}"


class _Run:
    """Speaks, keeps, asks the judges; one voice after another."""

    def __init__(
        self,
        options: argparse.Namespace,
        served: Served,
        texts: Sequence[Text],
        kept: Kept,
        teachers: voice_sounds.Teachers,
        panel: Panel,
        workers: Workers,
    ) -> None:
        self._options, self._client = options, served.client
        self._texts, self._kept, self._teachers, self._panel = texts, kept, teachers, panel
        self._asking, self._workers = asyncio.Semaphore(options.concurrency), workers

    async def voice(self, voice: str) -> dict[str, Any]:
        """Everything of one voice."""

        systems = [*([TEACHER] if voice in self._teachers else []), *self._options.modes]
        known: dict[str, dict[str, Any]] = {system: {} for system in systems}
        failed: list[dict[str, str]] = []
        progress = Progress(f"{voice}: ", "sounds", len(systems) * len(self._texts))

        async def one(system: str, number: int, text: Text) -> None:

            try:
                known[system][text.key] = await self._known(voice, system, number, text)
            except (ClientError, ValueError) as error:
                failed.append({"system": system, "key": text.key, "text": text.text, "error": str(error)})
            progress.step()

        async with asyncio.TaskGroup() as group:
            for number, text in enumerate(self._texts):
                for system in systems:
                    group.create_task(one(system, number, text))
        order = [text.key for text in self._texts]
        known = {system: {key: found[key] for key in order if key in found} for system, found in known.items()}
        names = [name.removeprefix(HEARD) for name in self._panel.names if name.startswith(HEARD)]
        report = voice_report({system: found for system, found in known.items() if found}, names)
        images = await asyncio.to_thread(self._draw, voice, systems, known) if self._options.images else []
        return {**report, "failed": failed, "images": images}

    async def _known(self, voice: str, system: str, number: int, text: Text) -> dict[str, Any]:
        """What is known of one sound; made, and judged by those judges who have not been asked yet."""

        loop = asyncio.get_running_loop()
        known = self._kept.read(voice, system, text)
        if known is None:
            async with contextlib.nullcontext() if system == TEACHER else self._asking:
                pcm = await self._speak(voice, system, number, text)
            known = {"key": text.key, "text": text.text, "samples": len(pcm)}
            await loop.run_in_executor(None, self._kept.write, voice, system, text, known, pcm)
            del pcm  # it may be long until the judges come to it
        asked = tuple(name for name in self._panel.names if name not in known)
        if asked:
            known |= await self._workers.judge(voice, system, text, asked)
            self._kept.write(voice, system, text, known)
        doubt = self._panel.doubt
        if doubt not in known and found_failures(known, None, doubt.removeprefix(PHRASES)):
            known |= await self._workers.judge(voice, system, text, (doubt,))
            self._kept.write(voice, system, text, known)
        return known

    async def _speak(self, voice: str, system: str, number: int, text: Text) -> Pcm:

        if system == TEACHER:
            return await self._workers.speak(voice, text.text, _SEED + number)
        return await self._client.speak(
            text.text, voice=voice, latency_first=MODES[system], seed=_SEED + number, timeout_s=self._options.timeout
        )

    def _draw(self, voice: str, systems: Sequence[str], known: dict[str, dict[str, Any]]) -> list[str]:
        """Spectrograms of a few texts that every system has spoken."""

        drawn: list[str] = []
        spoken = [text for text in self._texts if all(text.key in known[system] for system in systems)]
        spoken.sort(key=lambda text: (len(text.text) < _IMAGE_CHARACTERS, len(text.text)))
        for text in spoken[:_IMAGES]:
            path = self._options.images / f"{voice}-{len(drawn) + 1}.png"
            draw(path, text.text, {system: self._kept.sound(voice, system, text) for system in systems})
            drawn.append(str(path))
        return drawn
