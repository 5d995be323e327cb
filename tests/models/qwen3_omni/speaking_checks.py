"""Prompt, rows, text rows and conditioning of Qwen3-Omni against transformers' whole model, without an engine.

The Talker's backbone is transformers' own here; everything around it is ours. So what is proven is the Talker's input,
position by position, and the further codes.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.models import tiny_qwen
from voicechat.contract.family import Entry, TalkerInside
from voicechat.contract.messages import Generate, Medium, Turn
from voicechat.contract.pool import Pool, PoolSpec
from voicechat.contract.requests import AudioPart, ImagePart
from voicechat.models.qwen3_omni.conditioning import Qwen3Conditioning
from voicechat.models.qwen3_omni.engines import Qwen3Talker, sound_length
from voicechat.models.qwen3_omni.predictor import CodePredictor, PredictorConfig
from voicechat.models.qwen_common.note import Note
from voicechat.models.qwen_common.prompt import OmniPrompter, PromptIds, whole_frames
from voicechat.models.qwen_common.vision import find_torchvision

TOKENS, STEPS, SLOTS = 14, 24, 3
WIDTH = 128


class Reference:
    """Transformers' model, and what it says to a conversation."""

    def __init__(self, folder: Path) -> None:
        find_torchvision()
        from transformers import AutoTokenizer, Qwen3OmniMoeProcessor

        from voicechat.models.qwen_common.processor import load_processor

        self.folder = folder
        self.model = tiny_qwen.make_qwen3(folder)
        self.tokenizer = AutoTokenizer.from_pretrained(str(folder))
        self.processor = load_processor(Qwen3OmniMoeProcessor, folder, self.tokenizer)
        # hidden rows travel in bfloat16
        self.model.talker.hidden_projection.register_forward_pre_hook(lambda _, given: (given[0].bfloat16().float(),))
        config = self.model.config
        marks = config.thinker_config
        self.ids = PromptIds(config.im_start_token_id, config.user_token_id, marks.audio_token_id, marks.image_token_id)
        self.prompter = OmniPrompter(self.tokenizer, folder, "Be brief.", self.ids, sound_length)

    def generate(self, inputs: dict[str, Any], voice: str) -> tuple[list[int], torch.Tensor, torch.Tensor]:
        """The reply's tokens, all its codes [steps, groups], and its sound; greedy."""
        codes: list[torch.Tensor] = []
        vocoder = self.model.code2wav
        decode = vocoder.chunked_decode
        vocoder.chunked_decode = lambda made, **more: (codes.append(made), decode(made, **more))[1]
        try:
            sequences, sound = self.model.generate(
                **inputs,
                speaker=voice,
                thinker_max_new_tokens=TOKENS,
                thinker_do_sample=False,
                thinker_eos_token_id=self.tokenizer.eos_token_id,
                talker_max_new_tokens=STEPS,
                talker_do_sample=False,
            )
        finally:
            vocoder.chunked_decode = decode
        return sequences[0, inputs["input_ids"].shape[1] :].tolist(), codes[0][0].T, sound[0, 0]

    def rows(self, inputs: dict[str, Any], reply: list[int], note: Note) -> torch.Tensor:
        """Hidden rows of prompt and reply, by a forward pass over both."""
        ids = torch.cat((inputs["input_ids"], torch.tensor([reply])), 1)
        whole = {**inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
        with torch.inference_mode():
            states = self.model.thinker(**whole, output_hidden_states=True).hidden_states
        sensed = torch.zeros(ids.shape[1], 1, dtype=torch.bool)
        for begin, end in note.sounds:
            sensed[begin:end] = True
        for image in note.images:
            sensed[image.start : image.start + image.rows * image.columns] = True
        layer = self.model.config.talker_config.accept_hidden_layer
        return torch.where(sensed, states[layer][0], states[0][0])


class Inside(torch.nn.Module):
    """What the conditioning asks of the engine's model, with the reference's nets."""

    def __init__(self, reference: Reference) -> None:
        super().__init__()
        talker = reference.model.talker
        self.text_projection, self.hidden_projection = talker.text_projection, talker.hidden_projection
        self.text_table = reference.model.thinker.get_input_embeddings().weight
        self.facts = {"tts_pad": reference.model.config.tts_pad_token_id}
        self.code_predictor = CodePredictor(PredictorConfig.of(talker.config.code_predictor_config.to_dict()))
        self.code_predictor.load(talker.code_predictor.state_dict())
        self.embed_input_ids = talker.get_input_embeddings()
        self.rope_positions = torch.zeros(3, 256, dtype=torch.long)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(tmp_path_factory.mktemp("tiny") / "qwen3")


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool(
        PoolSpec(
            name=PoolSpec.new_name(), slots=SLOTS, hidden_size=WIDTH, max_rows=256, max_text_rows=256,
            pcm_samples=16, bays=1, bay_samples=16, text_columns=6, extra_bytes=6, max_steps=STEPS,
        ),
        create=True,
    )  # fmt: skip
    yield pool
    pool.close()


def conversations() -> dict[str, tuple[Generate, dict[int, AudioPart | ImagePart]]]:
    from PIL import Image

    rng = np.random.default_rng(1)
    pcm = rng.standard_normal(11_077).astype(np.float32) * 0.1
    file = io.BytesIO()
    Image.fromarray(rng.integers(0, 255, (100, 150, 3), dtype=np.uint8)).save(file, "PNG")
    media: dict[int, AudioPart | ImagePart] = {1: AudioPart(pcm), 2: ImagePart(file.getvalue())}
    earlier = (Turn("user", "Hi there"), Turn("assistant", "Yes."))
    turn = Turn("user", "Look: and hear", media=(Medium(2, 5), Medium(1, 9)))
    return {
        "text": (Generate(1, (Turn("user", "Hello"),), True), {}),
        "sound": (Generate(1, (Turn("user", "", media=(Medium(1, 0),)),), True), media),
        "both": (Generate(1, (*earlier, turn), True), media),
    }


@pytest.mark.parametrize("kind", ["text", "sound", "both"])
def test_codes_are_the_references(reference: Reference, pool: Pool, kind: str) -> None:
    message, media = conversations()[kind]
    prompt = reference.prompter.prompt(message, media)
    note = Note.decode(prompt.note)
    sounds, images = list(prompt.media.get("audio", ())), list(prompt.media.get("image", ()))
    given: dict[str, Any] = {"audio": [sound for sound, _ in sounds]} if sounds else {}
    given |= {"images": images} if images else {}
    inputs = dict(reference.processor(text=[reference.tokenizer.decode(prompt.ids)], return_tensors="pt", **given))
    assert inputs["input_ids"].shape[1] == note.length  # marks grow as the processor has them grow
    reply, codes, _ = reference.generate(inputs, "chelsie")
    rows = reference.rows(inputs, reply, note)

    made = speak(reference, pool, rows, note, len(reply))
    assert torch.equal(made[: len(codes)], codes)
    assert len(codes) > STEPS - 2 or made[len(codes) - 1 :].numel() == 0


def speak(reference: Reference, pool: Pool, rows: torch.Tensor, note: Note, tokens: int) -> torch.Tensor:
    """The codes [steps, groups] that come of hidden rows, text announced token by token."""
    slot, generation = 1, 7
    given = {"folder": str(reference.folder), "dtype": "float32", "random": False, "speakers": [110, 111]}
    talker = Qwen3Talker({**given, "likeliest": True, "max_steps": STEPS})
    utterance = talker.utterance(1, max_rows=256, max_text_rows=256)
    pace = talker.pace({})
    pool.begin(slot, generation)
    pool.hidden[slot, : len(rows)] = rows.bfloat16().view(torch.uint16).numpy()
    model = Inside(reference)
    inside = TalkerInside(pool=pool, model=model, device=torch.device("cpu"), on_host=True, open_rows=lambda: None)  # type: ignore[arg-type,return-value]
    conditioning = Qwen3Conditioning(inside)

    def announce(final: bool) -> None:
        utterance.push([""], final=final, note=note.encode())
        read = utterance.read()
        if read is not None:
            pool.append_text(slot, read.rows, final=read.final)

    announced = 0
    while not utterance.ready:
        announced += 1
        announce(announced == tokens)
    request = utterance.request()
    conditioning.begin(slot, generation, request.facts)
    ids, start, cache = list(request.ids), 0, None
    embeddings = torch.zeros(256, WIDTH)
    steps = b""
    reference.model.talker.rope_deltas = None
    for _ in range(STEPS):
        while not pool.text_final[slot] and pool.text_ready[slot] < pace.rows(ids, 0):
            announced += 1
            announce(announced == tokens)
        count = len(ids) - start
        entries = [Entry(slot, start, count)]
        tokens_now = torch.tensor(ids[start:])
        conditioning.step(entries, tokens_now, embeddings, None)
        with torch.inference_mode():
            out = reference.model.talker.model(
                inputs_embeds=embeddings[None, :count].clone(),
                position_ids=model.rope_positions[:, None, :count].clone(),
                past_key_values=cache,
                use_cache=True,
            )
            cache, hidden = out.past_key_values, out.last_hidden_state[0, -1:]
        with torch.no_grad():
            logits = reference.model.talker.codec_head(hidden.clone())[0]
        said = torch.tensor(ids[len(request.ids) :], dtype=torch.long).unique()
        logits[said] = torch.where(logits[said] > 0, logits[said] / 1.05, logits[said] * 1.05)
        logits[len(logits) - 1024 :][torch.arange(1024) != talker.stop_ids[0] - (len(logits) - 1024)] = -torch.inf
        token = int(logits.argmax())
        extra = conditioning.sampled(entries, torch.tensor([token]), hidden)
        if token in talker.stop_ids:
            break
        steps += utterance.take([token], extra.numpy().tobytes()).steps
        start, ids = len(ids), [*ids, token]
    return torch.from_numpy(np.frombuffer(steps, np.uint16).reshape(-1, 4).astype(np.int64))


def test_sounds_and_images_that_are_none(reference: Reference) -> None:
    def ask(part: AudioPart | ImagePart) -> None:
        message = Generate(1, (Turn("user", "", media=(Medium(1, 0),)),), True)
        reference.prompter.prompt(message, {1: part})

    with pytest.raises(ValueError, match="no image that can be read"):
        ask(ImagePart(b"GIF89"))
    with pytest.raises(ValueError, match="too short"):
        ask(AudioPart(np.zeros(100, np.float32)))
    with pytest.raises(ValueError, match="holds the mark"):
        reference.prompter.prompt(Generate(1, (Turn("user", "<|audio_pad|>"),), True), {})
    assert len(whole_frames(np.zeros(641, np.float32))) == 800
