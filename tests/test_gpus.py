"""From settings to places."""

from __future__ import annotations

import pytest

from voicechat.config import ConfigError, Settings, load_settings
from voicechat.contract.pool import PoolSpec
from voicechat.gpus import keeper_config, place, rows_place

SPEC = PoolSpec(
    name="x",
    slots=256,
    hidden_size=896,
    max_rows=1024,
    max_text_rows=64,
    pcm_samples=1,
    bays=1,
    bay_samples=1,
    rows="device",
)


def settings(*overrides: str) -> Settings:
    return load_settings("embedded-gpu", overrides=overrides, environ={})


def test_on_the_cpu_there_is_nothing_to_place() -> None:
    given = settings("device=cpu")
    assert not place(given, "thinker").on_gpu
    assert rows_place(given) == "host"
    assert keeper_config(given, SPEC, 20) is None


def test_one_gpu() -> None:
    given = settings()
    assert rows_place(given) == "device"
    thinker, talker = place(given, "thinker"), place(given, "talker")
    assert (thinker.gpus, thinker.rows_device, talker.gpus) == ([0], 0, [0])
    assert (thinker.memory_mb, thinker.runner, thinker.async_scheduling) == (16384, "v2", True)
    keeper = keeper_config(given, SPEC, 20)
    assert keeper is not None
    assert keeper.gpus == (0,)
    assert keeper.budgets == {
        0: {"thinker": 16384, "talker": 12288, "voicebox": 3072, "ears": 3072, "rows": 450, "spare": 1024}
    }


def test_rows_lie_where_they_are_read() -> None:
    given = settings("thinker.gpu=1", "talker.gpu=3", "voicebox.gpu=1", "gpu.peer=false")
    assert rows_place(given) == "either"
    assert place(given, "thinker").gpus == [1, 3]
    assert place(given, "thinker").rows_device == 1
    assert place(given, "talker").gpus == [3]
    keeper = keeper_config(given, SPEC, 20)
    assert keeper is not None
    assert (keeper.gpus, keeper.peer) == ((3, 1), False)
    assert {gpu: sorted(sizes) for gpu, sizes in keeper.budgets.items()} == {
        0: ["ears", "spare"],
        1: ["spare", "thinker", "voicebox"],
        3: ["rows", "spare", "talker"],
    }


def test_ears_on_a_gpu_of_their_own_or_on_the_cpu() -> None:
    given = settings("ears.gpu=2", "ears.device=cuda")
    assert place(given, "ears").gpus == [2]
    keeper = keeper_config(given, SPEC, 20)
    assert keeper is not None
    assert keeper.budgets[2] == {"ears": 3072, "spare": 1024}
    given = settings("ears.device=cpu")
    assert not place(given, "ears").on_gpu
    keeper = keeper_config(given, SPEC, 20)
    assert keeper is not None
    assert "ears" not in keeper.budgets[0]


def test_no_ears_on_a_gpu_without_a_server_there() -> None:
    with pytest.raises(ConfigError, match="ears.device is cuda, but device is cpu"):
        settings("device=cpu", "ears.device=cuda")


def test_a_cache_that_leaves_nothing_for_the_model() -> None:
    with pytest.raises(ConfigError, match=r"thinker.kv_cache_mb \(20000\) leaves nothing"):
        settings("thinker.kv_cache_mb=20000")
