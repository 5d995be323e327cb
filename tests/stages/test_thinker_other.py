"""A Thinker of another architecture in its stage: from its folder alone the text, end and rows of transformers."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.stages.hosts import StageHost
from tests.train.small_llm import WIDTH, write_llm
from voicechat.contract.messages import Generate, Piece, Turn, Written
from voicechat.contract.pool import Pool, PoolSpec
from voicechat.models.embedded.thinker import SYSTEM_PROMPT, ChatPrompt
from voicechat.models.folder import context_length, hidden_size
from voicechat.stages import thinker

TOKENS = 24
END = 11
"""A letter, made an end of replies by generation_config.json: what follows from no other file."""


async def test_a_gpt_neox_thinks(stage_host: None, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    folder = write_llm(tmp_path / "llm")
    GenerationConfig(eos_token_id=[0, END]).save_pretrained(folder)
    spec = PoolSpec(
        name=PoolSpec.new_name(), slots=2, hidden_size=hidden_size(folder), max_rows=32, max_text_rows=64,
        pcm_samples=64, bays=1, bay_samples=64,
    )  # fmt: skip
    context = context_length(folder)
    assert context == 512
    config = thinker.ThinkerConfig(
        family="embedded", model={"folder": str(folder), "dtype": "float32"}, rows_begin="predicting", ears=None,
        pool=spec, max_num_seqs=2, max_model_len=context,
        kv_cache_bytes=16 << 20, threads=1, default_max_tokens=TOKENS,
        temperature=0.0, top_p=1.0, repetition_penalty=1.0, system_prompt=SYSTEM_PROMPT, log_level=30,
    )  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    pool = Pool(spec, create=True)
    host = StageHost("thinker", thinker.run, config)
    try:
        await host.stage.start()
        ended = set()
        for number, question in enumerate(("what is it", "who are you and where do you live", "tell me a tale"), 1):
            turns = (Turn("user", question),)
            ids = ChatPrompt(tokenizer, SYSTEM_PROMPT).ids(turns)
            with torch.inference_mode():
                whole = model.generate(torch.tensor([ids]), max_new_tokens=TOKENS, do_sample=False)[0].tolist()
                states = model.base_model(torch.tensor([whole])).last_hidden_state[0, len(ids) - 1 : len(whole) - 1]
            pool.begin(0, number)
            host.send(Generate(number, turns, True, 0, number))
            await host.released(number)
            (written,) = host.of(number, Written)
            text = "".join(piece for message in host.of(number, Piece) for piece in message.pieces)
            stopped = whole[-1] in (0, END)
            assert text == tokenizer.decode(whole[len(ids) : len(whole) - stopped], skip_special_tokens=True)
            assert written.completion_tokens == len(whole) - len(ids)
            assert written.reason == ("stop" if stopped else "length")
            ended.add(written.reason)
            got = torch.from_numpy(pool.hidden[0, : len(states)].copy()).view(torch.bfloat16).float()
            assert got.shape == (len(states), WIDTH)
            assert float((got - states).norm() / states.norm()) < 4e-3
        assert ended == {"stop", "length"}
    finally:
        await host.stage.stop()
        pool.close()
