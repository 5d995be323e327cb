"""Prompt, rows, text rows and conditioning of Qwen2.5-Omni against transformers' whole model, without an engine.

The Talker's layers are transformers' own here; everything around them is ours. So what is proven is the Talker's input,
position by position, of texts, sounds and images.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.models.qwen2_5_omni.test_served import Qwen25Reference
from tests.models.served import STEPS, conversations
from voicechat.contract.family import Entry, TalkerInside
from voicechat.contract.messages import Generate, Medium, Turn
from voicechat.contract.pool import Pool, PoolSpec
from voicechat.contract.requests import AudioPart, ImagePart
from voicechat.models.qwen2_5_omni.conditioning import Qwen25Conditioning
from voicechat.models.qwen2_5_omni.engines import Qwen25Talker, sound_length
from voicechat.models.qwen_common.note import Note
from voicechat.models.qwen_common.prompt import OmniPrompter, PromptIds

WIDTH, HIDDEN = 128, 96


class Inside(torch.nn.Module):
    """What the conditioning asks of the engine's model, with the reference's nets."""

    def __init__(self, reference: Qwen25Reference) -> None:
        super().__init__()
        talker = reference.model.talker
        self.thinker_to_talker_proj = talker.thinker_to_talker_proj
        self.codec_table = talker.get_input_embeddings().weight
        self.text_table = reference.model.thinker.get_input_embeddings().weight
        self.facts = {"tts_pad": talker.text_pad_token}
        self.rope_positions = torch.zeros(3, 256, dtype=torch.long)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Qwen25Reference:
    return Qwen25Reference(tmp_path_factory.mktemp("tiny") / "qwen25")


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool(
        PoolSpec(
            name=PoolSpec.new_name(), slots=3, hidden_size=WIDTH, max_rows=256, max_text_rows=256,
            pcm_samples=16, bays=1, bay_samples=16, text_columns=6, extra_bytes=0, max_steps=STEPS,
        ),
        create=True,
    )  # fmt: skip
    yield pool
    pool.close()


@pytest.mark.parametrize("kind", ["text", "sound", "both"])
def test_codes_are_the_references(reference: Qwen25Reference, pool: Pool, kind: str) -> None:
    parts = {type(part): part for message in conversations()[2] for part in message.parts}
    media: dict[int, AudioPart | ImagePart] = {1: parts[AudioPart], 2: parts[ImagePart]}  # type: ignore[dict-item]
    earlier = (Turn("user", "Hi there"), Turn("assistant", "Yes."))
    turns = {
        "text": (Turn("user", "Hello"),),
        "sound": (Turn("user", "", media=(Medium(1, 0),)),),
        "both": (*earlier, Turn("user", "Look: and hear", media=(Medium(2, 5), Medium(1, 9)))),
    }[kind]
    inner = reference.model.config.thinker_config
    turn = reference.tokenizer.convert_tokens_to_ids("<|im_start|>")
    marks = PromptIds(turn, inner.user_token_id, inner.audio_token_index, inner.image_token_index)
    prompter = OmniPrompter(reference.tokenizer, reference.folder, "Be brief.", marks, sound_length)
    prompt = prompter.prompt(Generate(1, turns, True), media if kind != "text" else {})
    note = Note.decode(prompt.note)
    sounds, images = list(prompt.media.get("audio", ())), list(prompt.media.get("image", ()))
    given: dict[str, Any] = {"audio": [sound for sound, _ in sounds]} if sounds else {}
    given |= {"images": images} if images else {}
    inputs = dict(reference.processor(text=[reference.tokenizer.decode(prompt.ids)], return_tensors="pt", **given))
    assert inputs["input_ids"].shape[1] == note.length  # marks grow as the processor has them grow
    sequences, _ = reference.generate(inputs, "ethan")
    reply = sequences[0, note.length :].tolist()
    made = speak(reference, pool, rows_of(reference, inputs, reply, note), note, len(reply))
    assert made == reference.codes[-1][0].tolist()


def rows_of(reference: Qwen25Reference, inputs: dict[str, Any], reply: list[int], note: Note) -> torch.Tensor:
    """Hidden rows of prompt and reply, by a forward pass over both."""
    ids = torch.cat((inputs["input_ids"], torch.tensor([reply])), 1)
    whole = {**inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
    reference.model.thinker.rope_deltas = None
    with torch.inference_mode():
        states = reference.model.thinker(**whole, output_hidden_states=True).hidden_states
    embedded = states[0][0].clone()
    for begin, end in note.sounds:
        embedded[begin:end] = 0
    for image in note.images:
        embedded[image.start : image.start + image.rows * image.columns] = 0
    return states[-1][0] + embedded


def speak(reference: Qwen25Reference, pool: Pool, rows: torch.Tensor, note: Note, tokens: int) -> list[int]:
    """The codes that come of hidden rows, text announced token by token."""
    slot, generation = 1, 7
    first = reference.model.speaker_map["Ethan"]["bos_token"]
    given = {"folder": str(reference.folder), "dtype": "float32", "random": False, "speakers": [0, first]}
    talker = Qwen25Talker({**given, "max_steps": STEPS})
    utterance, pace = talker.utterance(1, max_rows=256, max_text_rows=256), talker.pace({})
    pool.begin(slot, generation)
    pool.hidden[slot, : len(rows)] = rows.bfloat16().view(torch.uint16).numpy()
    model = Inside(reference)
    inside = TalkerInside(pool=pool, model=model, device=torch.device("cpu"), on_host=True, open_rows=lambda: None)  # type: ignore[arg-type,return-value]
    conditioning = Qwen25Conditioning(inside)
    announced = 0

    def announce() -> None:
        nonlocal announced
        announced += 1
        utterance.push([""], final=announced == tokens, note=note.encode())
        if (read := utterance.read()) is not None:
            pool.append_text(slot, read.rows, final=read.final)

    while not utterance.ready:
        announce()
    request = utterance.request()
    conditioning.begin(slot, generation, request.facts)
    ids, start, cache = list(request.ids), 0, None
    embeddings, steps = torch.zeros(256, HIDDEN), b""
    for _ in range(STEPS):
        while not pool.text_final[slot] and pool.text_ready[slot] < pace.rows(ids, 0):
            announce()
        count = len(ids) - start
        conditioning.step([Entry(slot, start, count)], torch.tensor(ids[start:]), embeddings, None)
        with torch.inference_mode():
            out = reference.model.talker.model(
                inputs_embeds=embeddings[None, :count].clone(),
                position_ids=model.rope_positions[:, None, :count].clone(),
                past_key_values=cache,
                use_cache=True,
            )
            cache, logits = out.past_key_values, reference.model.talker.codec_head(out.last_hidden_state[0, -1])
        logits = logits.clone()
        said = torch.tensor(ids).unique()  # the published model's penalty looks at the prompt's placeholders too
        logits[said] = torch.where(logits[said] > 0, logits[said] / 1.05, logits[said] * 1.05)
        logits[reference.model.talker.codec_bos_token] = -torch.inf
        token = int(logits.argmax())
        if token in talker.stop_ids:
            break
        steps += utterance.take([token], b"").steps
        start, ids = len(ids), [*ids, token]
    made: list[int] = np.frombuffer(steps, np.uint16).tolist()
    return made
