"""Step ``texts``: what the teacher is going to say, and the Thinkers' hidden states for it.

Sets: ``plain`` (WordNet's examples and definitions, made sentences) and one set of replies per Thinker.
The first :data:`~voicechat.train.common.HELD_OUT` replies of each Thinker are never trained on.
"""

from __future__ import annotations

import json
import logging
import random
import time
from pathlib import Path

import torch

from voicechat.train.common import PLAIN, Work, write_arrays, write_json
from voicechat.train.sentences import TOPICS, made_sentence
from voicechat.train.speech import TEXTS_COMPLETE
from voicechat.train.thinkers import MAX_CHARACTERS, READ_PROMPT, TrainingThinker, make_replies
from voicechat.train.wordnet import Entry, definition_sentence, read_wordnet, sentence

logger = logging.getLogger("voicechat.train")


def plain_items(entries: list[Entry], made: int, definitions: int, seed: int) -> list[dict[str, str]]:
    """Texts of one to ten sentences: about half are a single sentence, some run to 640 characters."""
    rng = random.Random(seed)
    sentences = [sentence(example) for entry in entries for example in entry.examples]
    described = [definition_sentence(entry) for entry in entries if 8 <= len(entry.definition) <= 110]
    rng.shuffle(described)
    sentences += described[:definitions]
    sentences = list(dict.fromkeys(text for text in sentences if text.isascii() and 3 < len(text) < 300))
    sentences += [made_sentence(rng) for _ in range(made)]
    rng.shuffle(sentences)
    items, position = [], 0
    while position < len(sentences):
        wanted = rng.choices((1, rng.randrange(2, 4), rng.randrange(4, 11)), (0.55, 0.33, 0.12))[0]
        text = sentences[position]
        position += 1
        while wanted > 1 and position < len(sentences) and len(text) + len(sentences[position]) < MAX_CHARACTERS:
            text += ("" if text.endswith("\n") else rng.choice((" ", " ", " ", "\n"))) + sentences[position]
            position += 1
            wanted -= 1
        items.append({"prompt": READ_PROMPT, "system": "", "text": text})
    return items


def texts_step(
    work: Work,
    *,
    wordnet: Path | None,
    thinkers: dict[str, Path],
    device: torch.device,
    made: int,
    definitions: int,
    replies: int,
    tokens: int,
    seed: int = 0,
    partial: bool = False,
) -> None:
    """Make the missing sets and hidden states. ``partial``: more Thinkers follow in a later call."""
    path = work.file("texts", f"{PLAIN}.json")
    nouns_path = work.file("nouns.json")
    if not path.exists():
        entries = read_wordnet(wordnet) if wordnet else []
        nouns = [entry.word for entry in entries if entry.part == "noun" and len(entry.word) < 20]
        random.Random(seed).shuffle(nouns)
        write_json(nouns_path, nouns[:4000] or TOPICS)
        items = plain_items(entries, made, definitions, seed)
        write_json(path, items)
        size = sum(len(item["text"]) for item in items)
        logger.info("texts %s: %d items, %d characters", PLAIN, len(items), size)
    nouns = list(_read_json(nouns_path))
    loaded: dict[str, TrainingThinker] = {}

    def thinker(name: str) -> TrainingThinker:
        if name not in loaded:
            loaded[name] = TrainingThinker(thinkers[name], device)
        return loaded[name]

    for name in thinkers:
        if name not in work.text_sets():
            write_json(
                work.file("texts", f"{name}.json"), make_replies(thinker(name), name, replies, nouns, seed, tokens)
            )
    for name in thinkers:
        for other in work.text_sets():
            if not hidden_path(work, other, name).exists():
                begun = time.monotonic()
                states, counts, ends = thinker(name).hidden_states(work.texts(other))
                write_arrays(hidden_path(work, other, name), states=states, counts=counts, ends=ends)
                logger.info("texts %s: %d states of %s in %.0f s", name, len(states), other, time.monotonic() - begun)
    if not partial:
        work.file(TEXTS_COMPLETE).write_text("")


def hidden_path(work: Work, text_set: str, thinker: str) -> Path:
    """Hidden states of one Thinker for one set."""
    return work.file("hidden", f"{text_set}.{thinker}.npz")


def _read_json(path: Path) -> list[str]:
    data: list[str] = json.loads(path.read_text(encoding="utf-8"))
    return data
