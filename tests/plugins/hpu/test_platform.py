"""Finding devices, the seam's promises under emulation, and memory."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from lsv import LLM
from lsv.offers import PlatformOffer
from lsv_base.errors import ConfigError
from lsv_hpu import plugin
from lsv_hpu.device import HpuDevice
from lsv_hpu.devices import GIB, Prober, gaudi_of, parse, visible
from lsv_hpu.emulation.ops import fake_ops
from lsv_hpu.emulation.platform import EmulatedHpu, FakeHabana
from lsv_hpu.platform import HpuPlatform
from lsv_hpu.settings import HpuOptions
from lsv_hpu.vendor import Habana, Vendor
from lsv_runtime.devices.device import Memory
from lsv_runtime.emulation.fakes import StrictFake, UnknownCall
from lsv_testing.platform import check_platform

LINES = ["1, 4, HL-225, 98304", "0, 6, HL-225, 98304", "2, 1, HL-205, 32768", "3, 0, HL-325L, [N/A]"]


def platform_offer() -> PlatformOffer:
    (offer,) = plugin.lsv_platforms()
    return offer


@pytest.mark.parametrize("options", [{}, {"hpu.bucketing_strategy": "pad"}])
def test_conforms_under_emulation(options: dict[str, Any]) -> None:
    check_platform(platform_offer(), options, emulate=True)


def make_host(root: Path, ids: list[str], vendor: str = "0x1da3") -> Path:
    (root / "dev/accel").mkdir(parents=True)
    for number, one in enumerate(ids):
        for name in (f"accel{number}", f"accel_controlD{number}"):
            device = root / "sys/class/accel" / name / "device"
            device.mkdir(parents=True)
            (device / "vendor").write_text(f"{vendor}\n")
            (device / "device").write_text(f"{one}\n")
    return root


@pytest.mark.row("F-439", "F-468")
def test_devices_are_what_the_tool_lists(tmp_path: Path) -> None:
    host = make_host(tmp_path, ["0x1020", "0x1020"])
    prober = Prober(host, lambda script: {"lines": LINES}, lambda: True)
    found = prober.devices()
    assert [(info.index, info.name, info.detail["module"]) for info in found] == [
        (0, "Gaudi 2", "6"),
        (1, "Gaudi 2", "4"),
        (2, "Gaudi 3", "0"),
    ]
    assert [info.total_bytes // GIB for info in found] == [96, 96, 128]


def test_visible_modules_choose_and_order(tmp_path: Path) -> None:
    cards = parse(LINES)
    assert [card.module for card in visible(cards, "4,0")] == ["4", "0"]
    assert [card.module for card in visible(cards, "all")] == ["6", "4", "0"]
    assert visible(cards, "9") == []


@pytest.mark.parametrize(
    ("name", "gaudi"),
    [
        ("HL-225", "gaudi2"),
        ("HL-288", "gaudi2"),
        ("HL-325L", "gaudi3"),
        ("HL-338", "gaudi3"),
        ("HL-205", None),
        ("", None),
    ],
)
def test_boards(name: str, gaudi: str | None) -> None:
    assert gaudi_of(name) == gaudi


@pytest.mark.parametrize(
    ("ids", "answer", "software", "words"),
    [
        ([], None, True, ("/sys/class/accel and found none", "--emulate")),
        (["0x1000"], None, True, ("found Gaudi 1", "Gaudi 2 or Gaudi 3 is needed")),
        (["0x1020"], None, False, ("found 1 Gaudi 2", "habana_frameworks is not installed", "1.23 or later")),
        (["0x1060"], {"error": "hl-smi is not installed"}, True, ("found 1 Gaudi 3, but hl-smi is not installed",)),
        (["0x1020"], {"lines": [], "modules": "7"}, True, ("HABANA_VISIBLE_MODULES=7 names none", "unset it")),
        (["0x1020"], {"lines": []}, True, ("hl-smi lists none",)),
        (["0x1020"], None, True, ("hl-smi gave no answer",)),
    ],
)
def test_absence_is_explained(
    tmp_path: Path, ids: list[str], answer: Any, software: bool, words: tuple[str, ...]
) -> None:
    prober = Prober(make_host(tmp_path, ids), lambda script: answer, lambda: software)
    assert prober.devices() == ()
    assert all(word in prober.explain() for word in words), prober.explain()


@pytest.mark.row("F-985")
def test_a_container_without_the_device_nodes_is_told(tmp_path: Path) -> None:
    host = make_host(tmp_path, ["0x1020", "0x1020"])
    (host / "dev/accel").rmdir()
    prober = Prober(host, lambda script: {"lines": LINES}, lambda: True)
    assert prober.devices() == ()
    assert "found 2 Gaudi 2, but" in prober.explain()
    assert "dev/accel is not there: start the container with --runtime=habana" in prober.explain()
    assert "Unknown runtime specified habana'" in prober.explain()
    assert "install habanalabs-container-runtime on the host" in prober.explain()


def test_other_makers_accelerators_are_left_alone(tmp_path: Path) -> None:
    prober = Prober(make_host(tmp_path, ["0x1020"], vendor="0x8086"), lambda script: {"lines": LINES}, lambda: True)
    assert prober.devices() == ()


def test_a_device_too_many_is_refused() -> None:
    with pytest.raises(ConfigError, match="Gaudi 5 does not exist, 2 are usable: lower tensor_parallel_size"):
        EmulatedHpu().open(5, {})


def test_the_software_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HpuPlatform, "devices", lambda self: EmulatedHpu().devices())
    for name in ("PT_HPU_LAZY_MODE", "HLS_MODULE_ID", "PT_ENABLE_INT64_SUPPORT"):
        monkeypatch.setenv(name, "to be restored")
    with pytest.raises(ConfigError, match=r"habana_frameworks.torch can't be loaded"):
        HpuPlatform().open(1, {})
    assert (os.environ["PT_HPU_LAZY_MODE"], os.environ["HLS_MODULE_ID"]) == ("0", "1")


class Stats:
    """``torch.hpu`` as far as it is called: its functions with their parameters, and what they count.

    Source: gaudi-pytorch-bridge v1.19.0 (5a56187), python_packages/habana_frameworks/torch: hpu/__init__.py,
    hpu/memory.py and hpu/events.py.
    """

    def __init__(self) -> None:
        self.waited = 0

    class Event:
        def __init__(self, enable_timing: bool = False) -> None: ...

        def record(self, stream: Any = None) -> None: ...

        def synchronize(self) -> None: ...

    def synchronize(self) -> None:
        self.waited += 1

    def memory_stats(self, device: Any = None) -> dict[str, int]:
        return {"Limit": 96 * GIB, "InUse": 3 * GIB, "MaxInUse": 5 * GIB}

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        stats = self.memory_stats(device)
        return stats["Limit"] - stats["InUse"], stats["Limit"]

    def memory_allocated(self, device: Any = None) -> int:
        return self.memory_stats(device)["InUse"]

    def max_memory_allocated(self, device: Any = None) -> int:
        return self.memory_stats(device)["MaxInUse"]

    def memory_reserved(self, device: Any = None) -> int:
        return self.memory_stats(device)["Limit"]

    def reset_peak_memory_stats(self, device: Any = None) -> None: ...


def make_group(store: Any, rank: int, size: int, group_name: str, /) -> tuple[Any, ...]:
    """``ProcessGroupHCCL`` of distributed/hccl/ProcessGroupHCCL.cpp, which is bound without names of parameters."""
    return store, rank, size, group_name


@pytest.fixture
def software(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stats]:
    """The Gaudi software, as far as it is called."""
    stats = Stats()
    modules = {
        "habana_frameworks": {},
        "habana_frameworks.torch": {"utils": SimpleNamespace(internal=SimpleNamespace(is_lazy=lambda: False))},
        "habana_frameworks.torch.distributed": {},
        "habana_frameworks.torch.distributed.hccl": {"ProcessGroupHCCL": make_group},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch, "hpu", stats, raising=False)
    with torch._dynamo.config.patch(recompile_limit=8, accumulated_recompile_limit=256):
        yield stats


def test_the_software_is_called_as_it_is(software: Stats) -> None:
    vendor = Habana()
    vendor.set_device(0)
    vendor.synchronize(0)
    vendor.reset_peak_memory_stats(0)
    vendor.empty_cache()
    assert software.waited == 1
    assert vendor.is_lazy() is False
    assert vendor.mem_get_info(0) == (93 * GIB, 96 * GIB)
    assert (vendor.memory_allocated(0), vendor.max_memory_allocated(0)) == (3 * GIB, 5 * GIB)
    assert isinstance(vendor.Event(), Stats.Event)
    assert vendor.make_collectives("store", 1, 2, timedelta(seconds=1)) == ("store", 1, 2, "lsv")
    assert torch._dynamo.config.recompile_limit > 1000


def test_what_is_used_is_what_is_allocated(software: Stats) -> None:
    """The software's figure for what is reserved is its limit: all memory would seem to be in use."""
    assert software.memory_reserved() == 96 * GIB
    info = EmulatedHpu().devices()[0]
    device = HpuDevice(info, torch.device("cpu"), Habana(), fake_ops(), HpuOptions())
    assert device.memory() == Memory(total=96 * GIB, free=93 * GIB, used=3 * GIB)
    device.close()


def test_no_memory_is_pinned() -> None:
    """``meta`` stands for a device that is not the host."""
    info = EmulatedHpu().devices()[0]
    device = HpuDevice(info, torch.device("meta"), FakeHabana(GIB), fake_ops(), HpuOptions())
    assert not device.pinned
    device.close()


def test_the_fake_has_all_that_the_software_has_and_no_more() -> None:
    """Public calls of the two, by name and parameters; counting is the fake's own."""
    calls = {name for name in vars(Habana) if not name.startswith("_")}
    assert calls == {name for name in dir(Vendor) if not name.startswith("_")} | {"Event"}
    of_fakes = {name for name in dir(StrictFake) if not name.startswith("_")} | {"count", "device_count"}
    assert calls == {name for name in dir(FakeHabana) if not name.startswith("_")} - of_fakes
    for name in calls:
        real, fake = (inspect.signature(getattr(owner, name)).parameters for owner in (Habana, FakeHabana))
        assert real == fake, name


@pytest.mark.row("F-382")
def test_budget_is_a_share_of_what_is_free(caplog: pytest.LogCaptureFixture) -> None:
    memory = Memory(total=96 * GIB, free=round(79.16 * GIB), used=15 * GIB)
    device = EmulatedHpu().open(0, {"hpu.graph_reserved_mem": 0.4})
    with caplog.at_level("INFO"):
        half, usual = device.budget(memory, 0.5), device.budget(memory, None)
    device.close()
    assert (
        "Free device memory: 79.16 GiB, 39.58 GiB usable for the KV cache (gpu_memory_utilization=0.5)" in caplog.text
    )
    assert (half.kv, usual.kv) == (int(memory.free * 0.5), int(memory.free * 0.9))
    assert usual.why == "0.9 of the 79.16 GiB that are free"


@pytest.mark.row("F-493", "F-500")
def test_an_engine_tells_of_its_stages(caplog: pytest.LogCaptureFixture) -> None:
    """Each by itself, of the memory that the emulation has."""
    options = {"platform": "hpu", "emulate": True, "hpu_skip_warmup": True, "max_model_len": 256, "max_num_seqs": 2}
    with caplog.at_level("DEBUG", "lsv_runtime"), LLM("lsv-demo", **options):
        pass
    pattern = r"(.+) took (\S+ \w+) of device memory \(\S+ \w+/1 GiB used\) and"
    told = (re.match(pattern, record.getMessage()) for record in caplog.records)
    taken = {found[1]: found[2] for found in told if found}
    assert list(taken) == [
        "Declaring the model", "Loading weights", "Measuring the largest step", "init_cache_engine", "Warm-up",
    ]  # fmt: skip
    assert taken["Loading weights"] != "0 B"
    assert taken["init_cache_engine"].endswith("MiB")


@pytest.mark.row("F-473")
def test_capabilities() -> None:
    capabilities = EmulatedHpu().capabilities(EmulatedHpu().devices()[0])
    assert capabilities.dtypes == ("bfloat16", "float32")
    assert (capabilities.mixed_batches, capabilities.layout, capabilities.in_flight) == (False, "padded", 2)


def test_the_fake_knows_no_other_calls() -> None:
    fake = FakeHabana(GIB)
    with pytest.raises(UnknownCall, match="the fake of habana_frameworks has no empty_caches"):
        fake.empty_caches()
    for legacy in ("mark_step", "wrap_in_graph"):
        with pytest.raises(UnknownCall, match=legacy):
            getattr(fake, legacy)()
    with pytest.raises(RuntimeError, match="never recorded"):
        fake.Event().synchronize()
