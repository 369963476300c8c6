"""Which devices are found, in trees as the kernel makes them, and every reason why there are none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lsv_testing.fakes.engine import engine_config
from lsv_xpu import libraries, platform, plugin, sysfs
from lsv_xpu.devices_table import MODELS, Family, by_id, by_short_name, family_by_id, family_of, model_of
from lsv_xpu.emulation.platform import EmulatedXpuPlatform
from lsv_xpu.platform import XpuPlatform
from lsv_xpu.probe import ASK_TORCH, Prober, describe
from lsv_xpu.sysfs import Host

GIB = 1 << 30
B60, A770 = 0xE211, 0x56A0


def add_card(
    root: Path, number: int, pci: str, device: int, *, vendor: int = 0x8086, render: bool = True, **files: str
) -> None:
    """A GPU as /sys shows it, with its node in /dev/dri; ``files`` are more of the device's own."""
    place = root / "sys/devices" / pci
    place.mkdir(parents=True)
    driver = root / "sys/bus/pci/drivers/xe"
    driver.mkdir(parents=True, exist_ok=True)
    (place / "driver").symlink_to(driver)
    for name, text in {"vendor": f"{vendor:#06x}", "device": f"{device:#06x}", **files}.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(f"{text}\n")
    card = root / f"sys/class/drm/card{number}"
    card.mkdir(parents=True)
    (card / "device").symlink_to(place)
    (root / f"sys/class/drm/card{number}-DP-1").mkdir()
    if render:
        (place / f"drm/renderD{128 + number}").mkdir(parents=True)
        (root / "dev/dri").mkdir(parents=True, exist_ok=True)
        (root / f"dev/dri/renderD{128 + number}").touch()


def torch_answer(*devices: tuple[int, str], **changes: Any) -> dict[str, Any]:
    """What the child process says of devices, by PCI id and name."""
    known = [
        {"name": name, "total": 22 * GIB, "id": number, "driver": "1.6.33578", "integrated": False}
        for number, name in devices
    ]
    answer = {"torch": "2.13.0+xpu", "xpu": True, "devices": known, "missing": [], "mask": None, "selector": None}
    return answer | changes


def prober(root: Path, answer: dict[str, Any] | None = None) -> Prober:
    return Prober(Host(root), lambda script: answer)


def never(script: str) -> Any:
    raise AssertionError("torch is asked although there is no card")


def test_cards_are_read_in_the_order_of_their_addresses(tmp_path: Path) -> None:
    tile = {"tile0/physical_vram_size_bytes": "0x600000000"}
    add_card(tmp_path, 2, "0000:83:00.0", B60, numa_node="1", local_cpulist="18-35", **tile)
    add_card(tmp_path, 0, "0000:00:02.0", 0x7D55)
    add_card(tmp_path, 1, "0000:03:00.0", A770, numa_node="-1")
    add_card(tmp_path, 3, "0000:01:00.0", 0x2684, vendor=0x10DE)
    (tmp_path / "sys/class/drm/card1/lmem_total_bytes").write_text(f"{16 * GIB}\n")
    host = Host(tmp_path)
    graphics, a770, b60 = host.cards()
    assert [card.discrete for card in (graphics, a770, b60)] == [False, True, True]
    assert (a770.name, a770.total_bytes, a770.numa, a770.driver) == ("Intel Arc A770", 16 * GIB, -1, "xe")
    assert (b60.name, b60.total_bytes, b60.numa, b60.cpus) == ("Intel Arc Pro B60", 24 * GIB, 1, "18-35")
    assert b60.render == "renderD130"
    assert host.others() == ["10de:2684"]


def test_devices_are_what_torch_can_use(tmp_path: Path) -> None:
    add_card(tmp_path, 1, "0000:03:00.0", A770, numa_node="0", local_cpulist="0-17")
    add_card(tmp_path, 2, "0000:83:00.0", B60, numa_node="1", local_cpulist="18-35")
    answer = torch_answer((A770, "Intel(R) Arc(TM) A770 Graphics"), (B60, "Intel(R) Graphics [0xe211]"))
    first, second = prober(tmp_path, answer).devices()
    assert (first.index, first.name, first.total_bytes) == (0, "Intel Arc A770", 22 * GIB)
    assert (second.index, second.name, second.detail["cpus"]) == (1, "Intel Arc Pro B60", "18-35")
    assert second.detail["pci"] == "0000:83:00.0"


def test_behind_a_mask_nobody_knows_which_card_a_device_is(tmp_path: Path) -> None:
    for number, pci in ((1, "0000:03:00.0"), (2, "0000:83:00.0")):
        add_card(tmp_path, number, pci, B60, numa_node="0")
    masked = prober(tmp_path, torch_answer((B60, "one"), mask="1"))
    (only,) = masked.devices()
    assert "pci" not in only.detail
    assert masked.mask() == "1"


def test_integrated_graphics_are_no_devices(tmp_path: Path) -> None:
    add_card(tmp_path, 1, "0000:03:00.0", B60)
    answer = torch_answer((0x7D55, "Intel(R) Graphics"))
    answer["devices"][0]["integrated"] = True
    assert prober(tmp_path, answer).devices() == ()


def test_without_a_card_torch_is_not_asked(tmp_path: Path) -> None:
    add_card(tmp_path, 0, "0000:00:02.0", 0x7D55)
    assert Prober(Host(tmp_path), never).devices() == ()
    assert Prober(Host(tmp_path), never).mask() is None
    assert "--platform cpu" in Prober(Host(tmp_path), never).explain()
    assert Prober(Host(tmp_path / "nothing"), never).devices() == ()


Change = Callable[[Path], None]


def no_node(root: Path) -> None:
    (root / "dev/dri/renderD129").unlink()


def no_driver(root: Path) -> None:
    (root / "sys/devices/0000:03:00.0/drm/renderD129").rmdir()
    (root / "sys/devices/0000:03:00.0/driver").unlink()


@pytest.mark.row("F-462")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (no_node, ("/dev/dri/renderD129 is not there", "--device /dev/dri", "by-path", "--privileged is not needed")),
        (no_driver, ("driver none", "made no render node", "xe or i915")),
    ],
)
def test_a_card_that_is_closed(tmp_path: Path, change: Change, words: tuple[str, ...]) -> None:
    add_card(tmp_path, 1, "0000:03:00.0", B60)
    change(tmp_path)
    closed = Prober(Host(tmp_path), never)
    assert closed.devices() == ()
    for word in ("found Intel Arc Pro B60 (0000:03:00.0)", *words):
        assert word in closed.explain()


@pytest.mark.row("F-462")
def test_a_card_that_may_not_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_card(tmp_path, 1, "0000:03:00.0", B60)
    monkeypatch.setattr(sysfs.os, "access", lambda path, mode: False)
    closed = Prober(Host(tmp_path), never)
    assert closed.devices() == ()
    assert "usermod -aG render" in closed.explain()


def test_no_card_at_all(tmp_path: Path) -> None:
    assert "found none. A card" in prober(tmp_path).explain()
    add_card(tmp_path, 0, "0000:01:00.0", 0x2684, vendor=0x10DE)
    text = prober(tmp_path).explain()
    assert "other makers (10de:2684)" in text
    assert "--emulate" in text


@pytest.mark.row("F-456")
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, ("ended without an answer", "dmesg")),
        ({"error": "ImportError: libsycl.so.9: cannot open", "missing": []}, ("can't be imported", "libsycl.so.9")),
        (torch_answer(xpu=False), ("built without XPU", "--index-url https://download.pytorch.org/whl/xpu")),
        (torch_answer(missing=["libze_intel_gpu.so.1"]), ("libze_intel_gpu.so.1", "install libze1")),
        (torch_answer(mask="7"), ("ZE_AFFINITY_MASK=7 leaves no device",)),
        (torch_answer(selector="opencl:*"), ("ONEAPI_DEVICE_SELECTOR=opencl:*",)),
        (torch_answer(), ("Resizable BAR", "setvars.sh --force")),
        (torch_answer(error="RuntimeError: level_zero backend failed"), ("(RuntimeError: level_zero backend failed)",)),
    ],
)
def test_a_card_that_torch_does_not_use(tmp_path: Path, answer: dict[str, Any] | None, words: tuple[str, ...]) -> None:
    add_card(tmp_path, 1, "0000:03:00.0", B60)
    for word in ("found Intel Arc Pro B60", *words):
        assert word in prober(tmp_path, answer).explain()
    assert "\n" not in prober(tmp_path, answer).explain()


def test_the_question_to_torch_is_answered_by_every_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASK_TORCH],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "ZE_AFFINITY_MASK": "0,1"},
    )
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["mask"] == "0,1"
    assert answer["torch"]
    assert isinstance(answer["devices"], list)


@pytest.mark.row("F-453")
def test_every_id_belongs_to_one_model() -> None:
    ids = [number for model in MODELS for number in model.ids]
    assert len(ids) == len(set(ids))
    assert {by_short_name(name).name for name in ("A770", "B50", "b60", "B70", "Max 1100")} == {
        "Arc A770", "Arc Pro B50", "Arc Pro B60", "Arc Pro B70", "Data Center GPU Max 1100",
    }  # fmt: skip
    for name in ("", "C99"):
        with pytest.raises(ValueError, match="must be one of A770"):
            by_short_name(name)


@pytest.mark.parametrize(
    ("family", "ids"),
    [
        (Family.ALCHEMIST, (0x5690, 0x5697, 0x56A0, 0x56A1, 0x56A2, 0x56A5, 0x56B1, 0x56BF, 0x56C0, 0x56C1, 0x56C2)),
        (Family.BATTLEMAGE, (0xE202, 0xE20B, 0xE20C, 0xE210, 0xE211, 0xE212, 0xE216, 0xE220, 0xE223)),
        (Family.PONTE_VECCHIO, (0x0B69, 0x0B6E, 0x0BD4, 0x0BD5, 0x0BDB, 0x0BE0, 0x0BE5)),
        (Family.LUNAR_LAKE, (0x6420, 0x64A0, 0x64B0)),
        (Family.PANTHER_LAKE, (0xB080, 0xB08F, 0xB0B0)),
        (Family.UNKNOWN, (0x4905, 0x568F, 0x56C3, 0x674C, 0x7D55, 0xA780, 0xB640, 0xD740, 0xE2FF, 0xFD80)),
    ],
    ids=lambda value: value.value if isinstance(value, Family) else "",
)
def test_families_go_by_ranges_of_ids(family: Family, ids: tuple[int, ...]) -> None:
    assert {family_of(describe(0, "Intel(R) Graphics", number, GIB, "1")) for number in ids} == {family}


def test_models_are_of_the_family_their_ids_are_in() -> None:
    assert all(family_by_id(number) is model.family for model in MODELS for number in model.ids)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("Intel(R) Arc(TM) A750 Graphics", Family.ALCHEMIST),
        ("Intel(R) Arc(TM) Pro A60 Graphics", Family.ALCHEMIST),
        ("Intel(R) Data Center GPU Flex 140", Family.ALCHEMIST),
        ("Intel(R) Arc(TM) B570 Graphics", Family.BATTLEMAGE),
        ("Intel(R) Data Center GPU Max 1450", Family.PONTE_VECCHIO),
        ("Intel(R) Arc(TM) Graphics", Family.UNKNOWN),
    ],
)
def test_without_an_id_a_family_goes_by_its_name(name: str, family: Family) -> None:
    assert family_of(describe(0, name, 0, GIB, "1")) is family


@pytest.mark.parametrize(
    ("device_id", "word"),
    [
        (0xE20B, None),
        (0x0BDA, None),
        (A770, "Alchemist"),
        (0x56A1, "Alchemist"),
        (0x64A0, "Lunar"),
        (0xE2FF, "unknown"),
    ],
)
def test_flash_attention_is_chosen_on_gpus_it_is_compiled_for(
    device_id: int, word: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "missing_vllm_kernels", lambda: None)
    monkeypatch.setattr(plugin, "probe", lambda: (describe(0, "a GPU", device_id, GIB, "1"),))
    (flash,) = (one for one in plugin.lsv_attention() if one.name == "xpu-flash")
    assert flash.missing is not None
    missing = flash.missing()
    assert missing is None if word is None else word in (missing or "")


def test_every_model_lacks_something_and_says_what_it_means() -> None:
    for model in MODELS:
        assert "fp8" in model.lacks
        assert all(":" in meaning for meaning in model.lacks.values())
    assert {"fp64", "bf16", "peer_access"} <= set(by_short_name("A770").lacks)


@pytest.mark.row("F-1006", "F-453")
@pytest.mark.parametrize(
    ("device_id", "dtypes", "refused"),
    [
        (B60, ("float16", "bfloat16", "float32"), False),
        (0x0BDA, ("float16", "bfloat16", "float32"), False),
        (0xE2FF, ("float16", "bfloat16", "float32"), False),
        (A770, ("float16", "float32", "bfloat16"), True),
        (0x56A1, ("float16", "float32", "bfloat16"), True),
        (0x56C1, ("float16", "float32", "bfloat16"), True),
    ],
)
def test_the_first_dtype_is_float16_and_bfloat16_is_refused_where_it_is_inaccurate(
    device_id: int, dtypes: tuple[str, ...], refused: bool
) -> None:
    capabilities = XpuPlatform().capabilities(describe(0, "a GPU", device_id, GIB, "1"))
    assert capabilities.dtypes == dtypes
    assert any(refusal.one == "dtype=bfloat16" for refusal in capabilities.refuses) == refused
    assert (capabilities.in_flight, capabilities.mixed_batches) == (2, True)


def test_references_follow_the_model() -> None:
    b70, a770 = (describe(0, "a GPU", number, GIB, "1") for number in (0xE223, A770))
    assert 400 < XpuPlatform().references(b70)["copy_gb_s"] < 608
    assert "gemm_bfloat16_tflop_s" not in XpuPlatform().references(a770)
    tiles = XpuPlatform().references(describe(0, "a GPU", 0x0BD5, GIB, "1"))
    assert tiles["copy_gb_s"] < 3277 / 2
    unknown = describe(0, "a GPU", 0xE2FF, GIB, "1")
    assert (model_of(unknown), family_of(unknown), by_id(0)) == (None, Family.UNKNOWN, None)
    assert XpuPlatform().references(unknown) == {}


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("Intel(R) Arc(TM) A770 Graphics", "Intel Arc A770"),
        ("Intel(R) Data Center GPU Max 1100", "Intel Data Center GPU Max 1100"),
        ("Intel(R) Arc(TM) Pro B60 Graphics", "Intel Arc Pro B60"),
        ("Intel(R) Graphics [0xffff]", "Intel(R) Graphics [0xffff]"),
    ],
)
def test_without_an_id_a_device_goes_by_its_name(name: str, model: str) -> None:
    info = describe(0, name, 0, GIB, "1")
    assert info.name == model
    assert (model_of(info) is None) == (name == model)


def test_the_cores_beside_a_device_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_card(tmp_path, 0, "0000:00:02.0", 0x7D55)
    add_card(tmp_path, 1, "0000:03:00.0", B60, numa_node="0", local_cpulist="0-17")
    add_card(tmp_path, 2, "0000:83:00.0", B60, numa_node="1", local_cpulist="18-35")
    monkeypatch.setattr(platform, "Host", lambda: Host(tmp_path))
    assert "NUMA node 1: numactl -C 18-35" in platform._place(1, 2)
    assert platform._place(0, 1) == "", "torch counts other devices than the kernel"


def test_advice_tells_what_a_device_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    info = describe(0, "a GPU", A770, GIB, "1")
    monkeypatch.setattr(XpuPlatform, "devices", lambda self: (info,))
    advice = XpuPlatform().advise(engine_config(platform="xpu"), ())
    assert advice is not None
    assert advice.title == "Intel Arc A770"
    assert advice.rows[0][:2] == ("memory", "16 GB at 560 GB/s")
    assert {"fp64", "bf16"} <= {row[0] for row in advice.rows}


def test_advice_is_about_the_model_that_is_emulated() -> None:
    config = engine_config(platform="xpu", emulate=True, options={"xpu.emulated_model": "A770"})
    advice = EmulatedXpuPlatform().advise(config, ())
    assert advice is not None
    assert advice.title == "Intel Arc A770"
