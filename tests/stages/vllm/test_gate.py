"""The Talker's gate, over a scheduler that only says what it was given."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from voicechat.contract.pool import Pool, PoolSpec
from voicechat.models.embedded.talker import ADVANCES, BOS, RIGHT
from voicechat.stages.vllm.bookkeeping import CONFIG_KEY
from voicechat.stages.vllm.scheduler import Gate, wake_address

MOST = ADVANCES - 1
MODEL = {"folder": "", "dtype": "float32", "weights": ""}


class Recorded:
    """In the place of vLLM's scheduler: takes every running request into the step."""

    def __init__(self, vllm_config: Any) -> None:
        self.vllm_config = vllm_config
        self.running: list[Any] = []
        self.waiting: list[Any] = []
        self.finished_req_ids: set[str] = set()
        self.given: list[str] = []

    def schedule(self) -> Any:
        self.given = [request.request_id for request in self.running]
        return SimpleNamespace(scheduled_new_reqs=[], num_scheduled_tokens=dict.fromkeys(self.given, 1))


class Gated(Gate, Recorded):
    """What the tests drive."""


@pytest.fixture
def gate() -> Iterator[Gated]:
    spec = PoolSpec(
        name=PoolSpec.new_name(),
        slots=4,
        hidden_size=8,
        max_rows=16,
        max_text_rows=64,
        pcm_samples=64,
        bays=1,
        bay_samples=64,
    )
    pool = Pool(spec, create=True)
    config = SimpleNamespace(
        additional_config={CONFIG_KEY: {"pool": msgspec.to_builtins(spec), "family": "embedded", "model": MODEL}}
    )
    gate = Gated(config)
    yield gate
    gate._wake.close()
    gate.pool.close()
    pool.close()


def request(slot: int, tokens: list[int], on_the_way: int = 0) -> Any:
    return SimpleNamespace(
        request_id=f"r{slot}",
        sampling_params=SimpleNamespace(extra_args={"slot": slot, "ack": 1, "pointer": 0}),
        all_token_ids=tokens,
        num_output_placeholders=on_the_way,
    )


def test_a_request_needs_its_window_of_rows(gate: Gated) -> None:
    reply = request(1, [BOS, 2, 1])  # the pointer stands on row 3
    gate.running = [reply]
    gate.pool.text_ready[1] = 3 + RIGHT
    gate.schedule()
    assert gate.given == []
    assert gate.running == [reply]
    gate.pool.text_ready[1] += 1
    gate.schedule()
    assert gate.given == ["r1"]


def test_tokens_on_the_way_may_move_the_pointer_as_far_as_they_can(gate: Gated) -> None:
    reply = request(1, [BOS], on_the_way=0)
    gate.running = [reply]
    gate.pool.text_ready[1] = RIGHT + 1
    gate.schedule()
    assert gate.given == ["r1"]
    reply.num_output_placeholders = 1
    gate.schedule()
    assert gate.given == [], "its token may move it to a row that is not there"
    gate.pool.text_ready[1] = RIGHT + 1 + MOST
    gate.schedule()
    assert gate.given == [], "it was set aside: the token on the way comes first"
    reply.num_output_placeholders = 0
    reply.all_token_ids = [BOS, MOST]
    gate.schedule()
    assert gate.given == ["r1"]
    reply.num_output_placeholders = 1
    gate.pool.text_ready[1] += MOST
    gate.schedule()
    assert gate.given == ["r1"]


def test_a_closed_text_holds_nobody(gate: Gated) -> None:
    reply = request(2, [BOS, 2, 2, 2])
    gate.running = [reply]
    gate.pool.text_final[2] = 1
    gate.schedule()
    reply.num_output_placeholders = 1
    gate.schedule()
    assert gate.given == ["r2"]


def test_it_sleeps_only_when_nothing_else_can_move_it_on(gate: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[bool] = []
    monkeypatch.setattr(gate, "_sleep", lambda: slept.append(True))
    first, second = request(0, [BOS]), request(1, [BOS])
    gate.running = [first, second]
    gate.schedule()
    assert len(slept) == 1
    first.num_output_placeholders = 1
    gate.schedule()
    first.num_output_placeholders = 0
    gate.waiting = [object()]
    gate.schedule()
    gate.waiting = []
    gate.finished_req_ids = {"gone"}
    gate.schedule()
    gate.finished_req_ids = set()
    gate.pool.text_final[1] = 1
    gate.schedule()
    assert gate.given == ["r1"]
    assert gate.running == [first, second]
    assert len(slept) == 1


def test_a_sleeper_is_woken(gate: Gated) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as waker:
        for _ in range(3):
            waker.sendto(b".", wake_address(gate.pool.spec.name))
    gate._sleep()
    gate._wake.setblocking(False)
    with pytest.raises(BlockingIOError):
        gate._wake.recv(1)
