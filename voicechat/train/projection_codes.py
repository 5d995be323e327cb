"""What a projection is fitted on in the work folder of a whole training: held-out replies as the teacher spoke them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from voicechat.models.embedded.frontend import token_at
from voicechat.models.embedded.talker import ADVANCES, EOS
from voicechat.train.alignment import pointers
from voicechat.train.common import HELD_OUT, Work, is_held_out
from voicechat.train.projection_data import FEWEST, ServedThinker, Spoken, gather_states
from voicechat.train.voicebox import CODES_FILE

logger = logging.getLogger("voicechat.train")


def has_codes(training: Work) -> bool:
    """Whether this is the work folder of a training that has come as far as the codes of its speech."""
    return (training.root / CODES_FILE).is_file()


def coded_replies(
    training: Work, work: Work, folder: Path, voices: tuple[str, ...], device: torch.device, held_out: int = HELD_OUT
) -> list[Spoken]:
    """The held-out replies of all Thinkers, each as every voice spoke it, with the states of the LLM in ``folder``.

    ``voices``: those of the Talker. Raises ValueError if the training has other voices or too few replies.
    """
    if training.voices() != voices:
        raise ValueError(
            f"{training.root} has the voices {', '.join(training.voices())}; the Talker's are {', '.join(voices)}"
        )
    replies = {
        (text_set, index): item
        for text_set in training.text_sets()
        for index, item in enumerate(training.texts(text_set))
        if is_held_out(text_set, index, held_out)
    }
    path = work.file("states.npz")
    thinker = ServedThinker(folder, device) if not path.exists() else None
    states = gather_states(path, thinker, list(replies.values()))
    numbers = {key: number for number, key in enumerate(replies)}
    codes = _codes(training)
    items = []
    for voice, name in enumerate(voices):
        for key, symbols, sound_ends, positions in _clips(training, name):
            said = codes.get((voice, *key))
            if key not in numbers or said is None or (where := pointers(sound_ends, len(said))) is None:
                continue
            own, ends = states.of(numbers[key])
            if not ends:
                continue
            tokens = np.append(said.astype(np.int64) * ADVANCES + np.diff(where), EOS)
            items.append(
                Spoken(
                    text=replies[key]["text"], symbols=torch.from_numpy(symbols.astype(np.int64)),
                    tokens=torch.tensor([token_at(ends, position) for position in positions.tolist()]),
                    states=own.float(), targets=torch.from_numpy(tokens), rows=torch.from_numpy(where), voice=voice,
                    reference=None,
                )
            )  # fmt: skip
    if len({item.text for item in items}) < FEWEST:
        raise ValueError(f"{training.root} has codes of {len(items)} held-out replies; at least {FEWEST} are needed")
    logger.info("projection: %d held-out replies as the teacher spoke them", len(items))
    return items


def _codes(training: Work) -> dict[tuple[int, str, int], npt.NDArray[np.int16]]:
    with np.load(training.file(CODES_FILE)) as data:
        parts = np.split(data["codes"], np.cumsum(data["counts"])[:-1])
        keys = zip(data["voice"].tolist(), data["text_set"].tolist(), data["index"].tolist(), strict=True)
        return dict(zip(keys, parts, strict=True))


def _clips(
    training: Work, voice: str
) -> Iterator[tuple[tuple[str, int], npt.NDArray[np.uint8], npt.NDArray[np.int32], npt.NDArray[np.int32]]]:
    """A voice's clips: text set and index, symbols, ends of their sound, positions of their words in the text."""
    for path in sorted(training.root.glob(f"speech/{voice}/*/[0-9]*.npz")):
        with np.load(path) as data:
            cuts = np.cumsum(data["rows"])[:-1]
            split = [np.split(data[name], cuts) for name in ("symbols", "ends", "positions")]
        for offset, (symbols, ends, positions) in enumerate(zip(*split, strict=True)):
            if len(symbols):
                yield (path.parent.name, int(path.stem) + offset), symbols, ends, positions
