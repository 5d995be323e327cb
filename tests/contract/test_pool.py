"""The pool: two processes that really share it, rings that wrap, lanes that fill, slots that keep apart."""

from __future__ import annotations

import errno
import multiprocessing
import os
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.stages.pools import small_pool
from voicechat.contract.pool import Pool, PoolSpec, check_machine

RING = 4096
ROWS = 24


def make_spec(**fields: int) -> PoolSpec:
    sizes = {"slots": 3, "hidden_size": 16, "max_rows": ROWS, "max_text_rows": 12, "pcm_samples": RING}
    return PoolSpec(name=PoolSpec.new_name(), **{**sizes, "bays": 2, "bay_samples": 100, **fields})


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool(make_spec(), create=True)
    yield made
    made.close()


@pytest.fixture
def other() -> Iterator[Callable[..., Connection]]:
    """Runs a function in a spawned process, with the pool's spec and a pipe to this one."""
    spawn = multiprocessing.get_context("spawn")
    started = []

    def start(body: Callable[[PoolSpec, Connection], None], spec: PoolSpec) -> Connection:
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=body, args=(spec, theirs))
        process.start()
        started.append(process)
        return ours

    yield start
    for process in started:
        process.join(30)
        assert process.exitcode == 0


def write_rows(spec: PoolSpec, pipe: Connection) -> None:
    """A Thinker's worker: writes row after row, each of one number, and announces it; begins again when told."""
    pool = Pool(spec)
    while (round_ := pipe.recv()) is not None:
        for row in range(spec.max_rows):
            pool.hidden[1, row] = 100 * round_ + row
            pool.hidden_ready[1] = row + 1
        pool.thinker_ack[1] = pool.generation[1]
    pool.close()


def test_rows_announced_are_whole_in_another_process(pool: Pool, other: Callable[..., Connection]) -> None:
    """A reader that believes ``ready`` never sees a row that is not written, nor one of the last lease."""
    pipe = other(write_rows, pool.spec)
    for round_ in range(1, 51):
        pool.begin(1, round_)
        pipe.send(round_)
        seen = 0
        while seen < ROWS:
            ready = int(pool.hidden_ready[1])
            for row in range(seen, ready):
                assert (pool.hidden[1, row] == 100 * round_ + row).all()
            seen = ready
        while int(pool.thinker_ack[1]) != round_:
            pass
    pipe.send(None)
    assert not pool.hidden[0].any()
    assert not pool.hidden[2].any()


def echo_sound(spec: PoolSpec, pipe: Connection) -> None:
    """A VoiceBox: fills the ring with what the reader can foretell."""
    pool = Pool(spec)
    while (piece := pipe.recv()) is not None:
        start, count = piece
        pool.write_pcm(2, start, np.arange(start, start + count).astype(np.int16))
        pipe.send(piece)
    pool.close()


def test_sound_goes_round_the_ring(pool: Pool, other: Callable[..., Connection]) -> None:
    pipe = other(echo_sound, pool.spec)
    start = 0
    for count in (1, 960, 4095, 4096, 3000, 1, 2000) * 8:
        pipe.send((start, count))
        assert pipe.recv() == (start, count)
        assert np.array_equal(pool.read_pcm(2, start, count), np.arange(start, start + count).astype(np.int16))
        start += count
    pipe.send(None)


@given(st.integers(0, 10**9), st.integers(0, RING))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_ring_gives_back_what_it_was_given(pool: Pool, start: int, count: int) -> None:
    sound = np.random.default_rng(start).integers(-32768, 32768, count).astype(np.int16)
    pool.pcm[:] = 1
    pool.write_pcm(1, start, sound)
    assert np.array_equal(pool.read_pcm(1, start, count), sound)
    assert (pool.pcm[0] == 1).all()
    assert (pool.pcm[2] == 1).all()


def test_what_is_read_is_a_copy(pool: Pool) -> None:
    pool.write_pcm(0, 0, np.full(10, 5, np.int16))
    sound = pool.read_pcm(0, 0, 10)
    pool.write_pcm(0, 0, np.full(10, 6, np.int16))
    assert (sound == 5).all()


@pytest.mark.parametrize("start", [0, 17])
def test_more_than_a_ring_holds(pool: Pool, start: int) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        pool.write_pcm(0, start, np.zeros(RING + 1, np.int16))
    with pytest.raises(ValueError, match="do not fit"):
        pool.read_pcm(0, start, RING + 1)


def test_symbols_are_announced_in_order(pool: Pool) -> None:
    pool.begin(0, 1)
    pool.append_text(0, [(5, 0), (6, 0)], final=False)
    assert (pool.text_ready[0], pool.text_final[0]) == (2, 0)
    pool.append_text(0, [], final=False)
    pool.append_text(0, [(7, 3)], final=True)
    assert (pool.text_ready[0], pool.text_final[0]) == (3, 1)
    assert pool.text[0, :3].tolist() == [[5, 0], [6, 0], [7, 3]]


def test_a_full_lane_takes_all_or_nothing(pool: Pool) -> None:
    pool.begin(0, 1)
    pool.append_text(0, [(1, 1)] * 11, final=False)
    pool.text[1] = 9
    with pytest.raises(ValueError, match=r"room for \(12\)"):
        pool.append_text(0, [(2, 2)] * 2, final=True)
    assert (pool.text_ready[0], pool.text_final[0]) == (11, 0)
    assert (pool.text[1] == 9).all(), "the next slot is untouched"
    pool.append_text(0, [(3, 3)], final=True)
    assert pool.text[0, 11].tolist() == [3, 3]


def test_spoken_symbols_make_room_for_others(pool: Pool) -> None:
    pool.begin(0, 1)
    pool.append_text(0, [(number, -1) for number in range(12)], final=False)
    pool.drop_text(0, 9)
    assert pool.text_ready[0] == 3
    pool.append_text(0, [(50, -1)] * 9, final=True)
    assert pool.text[0, :, 0].tolist() == [9, 10, 11, *[50] * 9]
    assert (pool.text_ready[0], pool.text_final[0]) == (12, 1)


def test_a_poisoned_slot_is_clean_for_its_next_lease(pool: Pool) -> None:
    """Whatever a reply left behind, the next one's counters say that nothing is there."""
    pool.begin(1, 41)
    for lane in (pool.hidden_ready, pool.text_ready, pool.text_final, pool.thinker_ack, pool.talker_ack):
        lane[1] = 77
    pool.hidden[1] = 0x7FC0  # not a number, in bfloat16
    others = [pool.hidden_ready[[0, 2]].copy(), pool.generation[[0, 2]].copy()]
    pool.begin(1, 42)
    for lane in (pool.hidden_ready, pool.text_ready, pool.text_final, pool.thinker_ack, pool.talker_ack):
        assert lane[1] == 0
    assert pool.generation[1] == 42
    assert np.array_equal(pool.hidden_ready[[0, 2]], others[0])
    assert np.array_equal(pool.generation[[0, 2]], others[1])


def test_bays_hold_sound(pool: Pool) -> None:
    pool.bays[1, :100] = np.linspace(-1, 1, 100, dtype=np.float32)
    again = Pool(pool.spec)
    assert again.bays[1, 0] == -1.0
    assert again.bays[1, 99] == 1.0
    assert not again.bays[0].any()
    again.close()


def test_lanes_do_not_overlap() -> None:
    pool = Pool(make_spec(slots=2), create=True)
    lanes = {name: view for name, view in vars(pool).items() if isinstance(view, np.ndarray)}
    assert len(lanes) == 15
    for name, view in lanes.items():
        view.view(np.uint8)[:] = 255
        assert not any(other.view(np.uint8).any() for key, other in lanes.items() if key != name)
        view.view(np.uint8)[:] = 0
    del lanes, view
    pool.close()


def test_the_memory_goes_with_its_maker_and_only_once() -> None:
    spec = make_spec()
    path = Path("/dev/shm") / spec.name
    maker = Pool(spec, create=True)
    guest = Pool(spec)
    assert path.stat().st_size >= maker.size
    guest.close()
    assert path.exists()
    maker.close()
    assert not path.exists()
    maker.close()
    with pytest.raises(FileNotFoundError):
        Pool(spec)


def test_two_pools_never_share_a_name() -> None:
    assert len({PoolSpec.new_name() for _ in range(100)}) == 100
    with pytest.raises(FileExistsError):
        spec = make_spec()
        first = Pool(spec, create=True)
        try:
            Pool(spec, create=True)
        finally:
            first.close()


def test_a_machine_with_too_little_shared_memory() -> None:
    """A clear error at once instead of a killed process later, and nothing stays behind."""
    room = os.statvfs("/dev/shm")
    spec = make_spec(bay_samples=room.f_blocks * room.f_frsize // 4 + 1)
    with pytest.raises(OSError, match=r"shared memory is too small for a pool of \d+ MiB"):
        Pool(spec, create=True)
    assert not (Path("/dev/shm") / spec.name).exists()


@pytest.mark.parametrize("machine", ["aarch64", "arm64", "ppc64le"])
def test_a_processor_that_may_reorder_stores_is_refused(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_machine("x86_64")
    monkeypatch.setattr("platform.machine", lambda: machine)
    with pytest.raises(OSError, match=f"x86-64 only: on {machine}") as error:
        Pool(small_pool(slots=1), create=True)
    assert error.value.errno == errno.ENOTSUP
