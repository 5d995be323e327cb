"""Which rows of a step's batch belong to whom, and what a lane says of a slot."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from voicechat.stages.vllm.adapter import batch_order, request_facts
from voicechat.stages.vllm.bookkeeping import Span, acknowledge, spans


def step_of(new: dict[str, int], cached: dict[str, int], counts: dict[str, int]) -> SimpleNamespace:
    """A scheduler's output: positions computed so far of new and of known requests, and how many follow now."""
    return SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id=name, num_computed_tokens=at) for name, at in new.items()],
        scheduled_cached_reqs=SimpleNamespace(req_ids=list(cached), num_computed_tokens=list(cached.values())),
        num_scheduled_tokens=counts,
    )


def test_spans_follow_the_order_of_the_batch() -> None:
    """The runner may order a batch otherwise than the scheduler: decodes first, say."""
    output = step_of({"a": 32}, {"b": 70, "c": 9}, {"a": 100, "b": 1, "c": 2})
    assert list(spans(["c", "a", "b"], output)) == [Span("c", 9, 2), Span("a", 32, 100), Span("b", 70, 1)]


@given(st.permutations(list("abcdef")), st.integers(0, 6), st.lists(st.integers(1, 50), min_size=6, max_size=6))
def test_spans_cover_every_row_once(order: list[str], known: int, counts: list[int]) -> None:
    at = {name: 10 * index for index, name in enumerate(order)}
    output = step_of(
        {name: at[name] for name in order[known:]},
        {name: at[name] for name in order[:known]},
        dict(zip(order, counts, strict=True)),
    )
    assert [span.count for span in spans(order, output)] == counts
    assert [span.request_id for span in spans(order, output)] == order
    assert [span.start for span in spans(order, output)] == [at[name] for name in order]


def test_the_order_of_both_model_runners() -> None:
    v1 = SimpleNamespace(execute_model_state=None, input_batch=SimpleNamespace(req_ids=["a", "b"]))
    assert batch_order(v1) == ["a", "b"]
    state = SimpleNamespace(input_batch=SimpleNamespace(req_ids=["b", "a"]))
    assert batch_order(SimpleNamespace(execute_model_state=state)) == ["b", "a"]


def test_requests_without_a_slot_have_no_facts() -> None:
    assert request_facts(None) is None
    assert request_facts(SimpleNamespace(extra_args=None)) is None
    assert request_facts(SimpleNamespace(extra_args={"other": 1})) is None
    assert request_facts(SimpleNamespace(extra_args={"slot": 0, "ack": 1})) == {"slot": 0, "ack": 1}


@given(st.permutations(range(1, 8)))
def test_a_later_window_is_not_taken_back(order: list[int]) -> None:
    """Acknowledgements of one step come in no order; the lane ends at the last window."""
    lane = np.zeros(2, np.int64)
    for ack in order:
        acknowledge(lane, 1, ack)
    assert lane.tolist() == [0, 7]
