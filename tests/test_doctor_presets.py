"""Which models fit which GPUs."""

from __future__ import annotations

from voicechat.config import load_settings
from voicechat.doctor_presets import Gpu, needs, presets


def fits(*gpus: Gpu) -> set[str]:
    (finding,) = presets(load_settings("embedded-tiny"), lambda: gpus)
    return set(finding.text.split(": ", 1)[1].split(" fit", 1)[0].split(", "))


def test_what_fits() -> None:
    nothing = fits()
    assert "embedded" in nothing and not any(name.startswith("qwen") for name in nothing)
    small = fits(Gpu("small", 24_564))
    assert {"qwen2.5-omni-3b", "qwen2.5-omni-7b-24gb"} <= small
    assert "qwen2.5-omni-7b" not in small
    assert "qwen2.5-omni-7b" in fits(Gpu("middle", 46_068)) and "qwen2.5-omni-7b-80gb" not in fits(
        Gpu("middle", 46_068)
    )
    large = fits(Gpu("large", 81_559))
    assert {"qwen2.5-omni-7b-80gb", "qwen3-omni-30b-a3b-80gb"} <= large
    assert not {"qwen3-omni-30b-a3b", "qwen3-omni-30b-a3b-2gpus"} & large
    assert "qwen3-omni-30b-a3b-2gpus" in fits(*[Gpu("large", 81_559)] * 2)
    assert "qwen3-omni-30b-a3b" in fits(Gpu("huge", 143_771))


def test_each_gpu_is_counted_for_itself() -> None:
    wanted = needs(load_settings("qwen3-omni-30b-a3b-2gpus"))
    assert sorted(wanted) == [0, 1] and wanted[0] > wanted[1]
    assert needs(load_settings("embedded-tiny")) == {}
