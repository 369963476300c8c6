"""The suites that others rely on do fail, for backends and platforms that get one thing wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lsv.capabilities import Capabilities
from lsv.offers import PlatformOffer
from lsv.platform import Platform, find_misfits
from lsv_cpu import native
from lsv_cpu.attention import CpuAttention
from lsv_cpu.platform import CpuDevice, CpuPlatform
from lsv_cpu.plugin import probe
from lsv_runtime.attention import AttentionLayer
from lsv_runtime.devices.device import Budget, Device, Memory
from lsv_testing.attention import AttentionCase, check_attention, check_row_invariance, cover_pairs
from lsv_testing.platform import check_capabilities, check_device, check_light, check_platform

Change = Callable[[AttentionLayer], AttentionLayer]


class Changed(CpuAttention):
    """Serves another layer than it was asked for."""

    def __init__(self, change: Change) -> None:
        super().__init__(native.load("auto"))
        self.change = change

    def attend(self, q: Any, k: Any, v: Any, layer: AttentionLayer, cache: Any, plan: Any) -> torch.Tensor:
        return super().attend(q, k, v, self.change(layer), cache, plan)


def case(feature: str) -> AttentionCase:
    return AttentionCase("float32", 64, 2, 32, feature)


@pytest.mark.parametrize(
    ("feature", "wrong"),
    [
        ("window", {"window": None}),
        ("window", {"window": 34}),
        ("soft_cap", {"soft_cap": None}),
        ("sinks", {"sinks": None}),
        ("alibi", {"alibi": None}),
        ("plain", {"scale": 0.12}),
        ("plain", {"causal": False}),
    ],
)
def test_ignoring_a_feature_is_caught(feature: str, wrong: dict[str, Any], device: Device) -> None:
    with pytest.raises(AssertionError, match=f"{feature}: step"):
        check_attention(Changed(lambda layer: replace(layer, **wrong)), device, case(feature))


class Causal(Changed):
    """Takes every layer for a causal one."""

    def __init__(self) -> None:
        super().__init__(lambda layer: replace(layer, causal=True))


class CausalAlone(Causal):
    """And has no rows for tokens that see one another."""

    mutual = False


@pytest.mark.parametrize(("wrong", "caught"), [(CausalAlone, "causal=False"), (Causal, "an item of")])
def test_ignoring_causal_is_caught_where_it_is_seldom_set(wrong: type[Causal], caught: str, device: Device) -> None:
    with pytest.raises(AssertionError, match=caught):
        check_attention(wrong(), device, case("plain"))


class Leaking(CpuAttention):
    """Writes the keys of the step, but not the values, so that whatever lay in the page shows."""

    def attend(self, q: Any, k: Any, v: Any, layer: AttentionLayer, cache: Any, plan: Any) -> torch.Tensor:
        before = None if cache is None else cache.values(layer).clone()
        out = super().attend(q, k, v, layer, cache, plan)
        if before is None or not before.isnan().all():
            return out
        cache.values(layer).copy_(before)
        return super().attend(q, None, None, layer, cache, plan)


def test_stale_values_in_a_page_are_caught(device: Device) -> None:
    with pytest.raises(AssertionError, match="off by nan"):
        check_attention(Leaking(native.load("auto")), device, case("plain"))


class Forgetful(CpuAttention):
    """Writes nothing where it is not to attend, too."""

    def write(self, k: Any, v: Any, layer: AttentionLayer, cache: Any, plan: Any) -> None:
        pass


class Ordered(CpuAttention):
    """Takes a row's tokens for the last ones of what it attends to across."""

    mutual = False

    def attend(self, q: Any, k: Any, v: Any, layer: AttentionLayer, cache: Any, plan: Any) -> torch.Tensor:
        return super().attend(q, k, v, replace(layer, causal=layer.causal or cache is not None), cache, plan)


@pytest.mark.parametrize("wrong", [Forgetful, Ordered])
def test_items_that_are_not_kept_or_not_read_whole_are_caught(wrong: type[CpuAttention], device: Device) -> None:
    with pytest.raises(AssertionError, match="across, to an item"):
        check_attention(wrong(native.load("auto")), device, case("plain"))


class Noisy(CpuAttention):
    """Depends on the size of the step in the last bits."""

    def attend(self, q: Any, k: Any, v: Any, layer: AttentionLayer, cache: Any, plan: Any) -> torch.Tensor:
        return super().attend(q, k, v, layer, cache, plan) * (1 + len(q) * 1e-7)


def test_dependence_on_the_batch_is_caught(device: Device) -> None:
    with pytest.raises(AssertionError, match="differ"):
        check_row_invariance(Noisy(native.load("auto")), device, case("plain"))


def test_pairs_are_covered_by_few_combinations() -> None:
    factors = ("abc", "xyz", "12")
    chosen = list(cover_pairs(factors))
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert {(c[i], c[j]) for c in chosen} == {(a, b) for a in factors[i] for b in factors[j]}
    assert len(chosen) < 18


class Misspelt(CpuPlatform):
    def capabilites(self) -> None: ...


def test_an_unknown_public_method_is_refused_with_the_nearest_name() -> None:
    assert find_misfits(CpuPlatform, Platform) == find_misfits(CpuDevice, Device) == []
    (problem,) = find_misfits(Misspelt, Platform)
    assert "Misspelt.capabilites" in problem
    assert "did you mean capabilities" in problem


def test_missing_methods_are_named() -> None:
    class Half(Device):
        def memory(self) -> Memory:
            return Memory(1, 1, 0)

    assert find_misfits(Half, Device) == ["Half lacks budget"]


def test_importing_torch_to_look_for_devices_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "heavy_platform.py").write_text("import torch\nfrom lsv_cpu.platform import CpuPlatform\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AssertionError, match="imports torch"):
        check_light("cpu", "heavy_platform:CpuPlatform")


def test_platform_and_offer_must_agree() -> None:
    with pytest.raises(AssertionError, match="the offer's name is mine"):
        check_platform(PlatformOffer("mine", "lsv_cpu.platform:CpuPlatform", probe))


@pytest.mark.parametrize("wrong", [{"dtypes": ()}, {"dtypes": ("bf16",)}, {"kv_dtypes": ("fp8",)}, {"in_flight": 0}])
def test_capabilities_that_make_no_sense_are_caught(wrong: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        check_capabilities(Capabilities(**{"dtypes": ("float32",), **wrong}))


def test_a_budget_over_the_memory_is_caught(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuDevice, "budget", lambda self, memory, share: Budget(memory.total + 1, why="greed"))
    with pytest.raises(AssertionError, match="over the"):
        check_device(device)
