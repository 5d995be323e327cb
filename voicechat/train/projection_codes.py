"""What a projection is fitted on in the work folder of a whole training: held-out replies as the teacher spoke them."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import torch

from voicechat.models.embedded.frontend import token_at
from voicechat.models.embedded.talker import ADVANCES, EOS
from voicechat.train.alignment import pointers
from voicechat.train.coded import CODES_FILE
from voicechat.train.common import HELD_OUT, Work, is_held_out
from voicechat.train.data import load_codes, spoken_clips
from voicechat.train.projection_data import FEWEST, ServedThinker, Spoken, gather_states

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
    codes = load_codes(training)
    items = []
    for voice, name in enumerate(voices):
        for text_set in training.text_sets():
            for index, symbols, sound_ends, positions in spoken_clips(training, name, text_set):
                said, number = codes.get((voice, text_set, index)), numbers.get((text_set, index))
                if number is None or said is None or (where := pointers(sound_ends, len(said))) is None:
                    continue
                own, ends = states.of(number)
                if not ends:
                    continue
                tokens = np.append(said.astype(np.int64) * ADVANCES + np.diff(where), EOS)
                items.append(
                    Spoken(
                        text=replies[text_set, index]["text"], symbols=torch.from_numpy(symbols.astype(np.int64)),
                        tokens=torch.tensor([token_at(ends, position) for position in positions.tolist()]),
                        states=own.float(), targets=torch.from_numpy(tokens), rows=torch.from_numpy(where),
                        voice=voice, reference=None,
                    )
                )  # fmt: skip
    if len({item.text for item in items}) < FEWEST:
        raise ValueError(f"{training.root} has codes of {len(items)} held-out replies; at least {FEWEST} are needed")
    logger.info("projection: %d held-out replies as the teacher spoke them", len(items))
    return items
