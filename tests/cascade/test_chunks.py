"""ChunkBuffer: whatever comes and is asked for when, every step is handed out exactly once, with its context."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voicechat.app import chunk_policy
from voicechat.cascade.chunks import Chunk, ChunkBuffer, ChunkPolicy
from voicechat.config import ChunkSettings, Settings

SETTINGS = Settings().voicebox
OURS = [
    chunk_policy(settings, 2, on_gpu=on_gpu)
    for settings in (SETTINGS.latency_first, SETTINGS.quality_first)
    for on_gpu in (False, True)
]


@st.composite
def policies(draw: st.DrawFn) -> ChunkPolicy:
    first = draw(st.integers(1, 12))
    return ChunkPolicy(
        first=first,
        growth=draw(st.sampled_from([1.0, 1.1, 1.5, 2.0, 3.7])),
        largest=draw(st.integers(first, 60)),
        left=draw(st.integers(0, 20)),
        right=draw(st.integers(0, 5)),
        lengths=tuple(draw(st.lists(st.integers(1, 100), max_size=3))),
    )


any_policy = st.one_of(st.sampled_from(OURS), policies())


BYTES = 3


def steps_of(codes: Iterable[int]) -> bytes:
    """Steps of three bytes, each of a number."""
    return b"".join(code.to_bytes(BYTES, "big") for code in codes)


def codes_of(steps: bytes) -> list[int]:
    """What :func:`steps_of` was given."""
    assert len(steps) % BYTES == 0
    return [int.from_bytes(steps[at : at + BYTES], "big") for at in range(0, len(steps), BYTES)]


def check(policy: ChunkPolicy, codes: list[int], chunks: list[Chunk]) -> None:
    """``chunks`` are all of ``codes``, in order, with as much context as there is."""
    at, size = 0, float(policy.first)
    for chunk in chunks:
        assert chunk.first_step == at
        if chunk.emit == 0:
            assert chunk == Chunk(b"", 0, 0, len(codes), True) and chunk is chunks[-1] and policy.right == 0
            continue
        seen = codes_of(chunk.steps)
        assert chunk.left == min(at, policy.left) or (
            len(seen) in policy.lengths and at - chunk.left + len(seen) == len(codes)
        )
        if chunk.last:
            assert len(seen) in policy.lengths or not any(
                len(seen) <= length <= len(codes) for length in policy.lengths
            ), "the last chunk is of a length that the decoder is prepared for, if the reply is long enough"
        assert seen[: chunk.left + chunk.emit] == codes[at - chunk.left : at + chunk.emit]
        right = len(seen) - chunk.left - chunk.emit
        end = at + chunk.emit
        assert 0 <= right <= policy.right
        assert seen[chunk.left + chunk.emit :] == codes[end : end + right]
        if right < policy.right:
            assert end + right == len(codes), "a shorter look-ahead only at the end of the reply"
        assert chunk.emit == int(size) or end == len(codes), "sizes follow the policy; only the end may differ"
        at, size = end, min(size * policy.growth, policy.largest)
    assert at == len(codes)


@given(any_policy, st.lists(st.integers(0, 9), max_size=30), st.randoms(use_true_random=False))
def test_any_order_of_pushes_and_pops(policy: ChunkPolicy, pushes: list[int], rng) -> None:
    buffer, chunks, codes = ChunkBuffer(policy, BYTES), [], []
    for count in pushes:
        new = tuple(rng.randrange(4375) for _ in range(count))
        buffer.push(steps_of(new))
        codes.extend(new)
        assert buffer.steps == len(codes)
        while rng.random() < 0.7:
            ready = buffer.ready
            chunk = buffer.pop()
            assert ready == (chunk is not None)
            if chunk is None:
                break
            assert not chunk.last
            chunks.append(chunk)
        assert buffer.emitted == sum(chunk.emit for chunk in chunks)
        assert not buffer.done
    buffer.close()
    while (chunk := buffer.pop()) is not None:
        assert not buffer.done or chunk.last
        chunks.append(chunk)
    check(policy, codes, chunks)
    assert buffer.done
    assert not buffer.ready
    assert [chunk.last for chunk in chunks] == [False] * (len(chunks) - 1) + [True] * bool(chunks)


@given(any_policy, st.integers(0, 400))
def test_a_whole_reply_is_last_marked(policy: ChunkPolicy, count: int) -> None:
    buffer = ChunkBuffer(policy, BYTES)
    buffer.push(steps_of(range(count)))
    buffer.close()
    chunks = []
    while (chunk := buffer.pop()) is not None:
        chunks.append(chunk)
    check(policy, list(range(count)), chunks)
    assert [chunk.last for chunk in chunks] == [False] * (len(chunks) - 1) + [True] * bool(chunks)


def test_a_reply_that_was_all_given_out_still_has_a_last_chunk() -> None:
    """Without a look-ahead nobody knows beforehand which chunk is the last."""
    buffer = ChunkBuffer(ChunkPolicy(2, 1, 2, 4, 0), BYTES)
    buffer.push(steps_of((1, 2)))
    first = buffer.pop()
    assert first is not None and not first.last
    buffer.close()
    assert buffer.ready and not buffer.done
    assert buffer.pop() == Chunk(b"", 0, 0, 2, True)
    assert buffer.done and buffer.pop() is None


@pytest.mark.parametrize("policy", OURS)
def test_the_first_chunk_comes_as_soon_as_it_can(policy: ChunkPolicy) -> None:
    buffer = ChunkBuffer(policy, BYTES)
    for step in range(policy.first + policy.right):
        assert buffer.pop() is None
        buffer.push(steps_of((step,)))
    chunk = buffer.pop()
    assert chunk == Chunk(steps_of(range(policy.first + policy.right)), 0, policy.first, 0, False)


def test_latency_first_starts_earlier_than_quality() -> None:
    latency, quality = OURS[0], OURS[2]
    assert latency.first < quality.first
    assert latency.left <= quality.left


def test_a_closed_reply_takes_no_more() -> None:
    buffer = ChunkBuffer(OURS[0], BYTES)
    buffer.close()
    assert buffer.done
    with pytest.raises(ValueError, match="closed"):
        buffer.push(steps_of((1,)))


@pytest.mark.parametrize("size", [1, 5, 7])
def test_there_are_no_parts_of_steps(size: int) -> None:
    buffer = ChunkBuffer(OURS[0], BYTES)
    with pytest.raises(ValueError, match=f"{size} bytes are no whole number of steps of 3"):
        buffer.push(bytes(size))
    assert buffer.steps == 0


@pytest.mark.parametrize(
    "fields", [(0, 2, 4, 1, 1), (4, 0.5, 4, 1, 1), (4, 2, 3, 1, 1), (4, 2, 4, -1, 1), (4, 2, 4, 1, -1)]
)
def test_what_is_no_policy(fields: tuple) -> None:
    with pytest.raises(ValueError, match="not a chunk policy"):
        ChunkPolicy(*fields)


def test_settings_become_a_policy() -> None:
    settings = ChunkSettings(first_chunk=3, growth=1.5, max_chunk=9, left_context=7)
    assert chunk_policy(settings, 4) == ChunkPolicy(3, 1.5, 9, 7, 4)


@given(st.integers(0, 100))
def test_other_replies_lengthen_the_first_chunk_within_bounds(others: int) -> None:
    policy = ChunkPolicy(first=6, growth=1.5, largest=24, left=24, right=2)
    eased = policy.eased(others)
    assert policy.first <= eased.first <= policy.largest
    assert eased.first == policy.first if not others else eased.first > policy.first


def test_steps_that_nobody_needs_any_more_are_forgotten() -> None:
    """An hour of speech takes no more memory than a minute."""
    buffer, most = ChunkBuffer(OURS[0], BYTES), 0
    for _ in range(3600):
        buffer.push(steps_of((7,) * 25))
        while buffer.pop() is not None:
            pass
        most = max(most, len(buffer._held) // BYTES)
    assert buffer.steps == 3600 * 25
    assert most < 200
