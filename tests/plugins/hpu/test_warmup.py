"""What warm-up runs, in which order, and what it says; and what it leaves to be compiled later."""

from __future__ import annotations

import logging

import pytest

from lsv.errors import ConfigError, LsvError
from lsv.platform import BatchLimits, Shape
from lsv_hpu.buckets.table import DECODE, PROMPT
from lsv_hpu.device import HpuDevice
from lsv_hpu.emulation.platform import EmulatedHpu, FakeHabana
from lsv_hpu.settings import read
from lsv_hpu.warmup import BucketPolicy

LIMITS = BatchLimits(max_rows=4, max_tokens=4096, max_blocks=1, block_size=128, num_blocks=1000)
LOGGED = {
    "hpu.bucketing_strategy": "lin",
    "hpu.prompt_ctx_buckets": "0",
    "hpu.prompt_bs_buckets": "1,2,4",
    "hpu.decode_bs_buckets": "1,2,4",
    "hpu.decode_block_buckets": ",".join(str(size) for size in range(128, 2049, 128)),
}
"""The buckets of the documentation's log: 24 of prompts, 48 of decoding rows."""
LONG = BatchLimits(max_rows=4, max_tokens=4096, max_blocks=2048, block_size=128, num_blocks=1000)


def open_device(**options: object) -> tuple[HpuDevice, FakeHabana]:
    device = EmulatedHpu().open(0, {f"hpu.{name}": value for name, value in options.items()})  # type: ignore[misc]
    assert isinstance(device, HpuDevice)
    vendor = device._vendor
    assert isinstance(vendor, FakeHabana)
    return device, vendor


def run_warmup(device: HpuDevice, limits: BatchLimits, *, eager: bool = False) -> list[Shape]:
    policy = device.shapes(limits)
    shapes = []
    for shape in policy.warmup():
        device.compile(int, shape, eager=eager)()
        shapes.append(shape)
    return shapes


def test_order_and_lines_of_the_documentations_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lsv_hpu.warmup")
    policy = BucketPolicy(LONG, read(LOGGED), lambda: round(79.16 * 2**30))
    shapes = list(policy.warmup())
    assert policy.expected() == len(shapes) == 72
    assert [shape.kind for shape in shapes] == [PROMPT] * 24 + [DECODE] * 48
    lines = [record.getMessage() for record in caplog.records]
    assert lines[1].startswith("Generated 24 prompt buckets: [(1, 128), (1, 256), (1, 384)")
    assert lines[3].startswith("Generated 48 decode buckets: [(1, 128), (1, 256)")
    steps = [line for line in lines if line.startswith("[Warmup]")]
    assert steps[0] == "[Warmup][Prompt][1/24] batch_size:4 seq_len:1024 free_mem:79.16 GiB"
    assert steps[1] == "[Warmup][Prompt][2/24] batch_size:4 seq_len:896 free_mem:79.16 GiB"
    assert steps[23] == "[Warmup][Prompt][24/24] batch_size:1 seq_len:128 free_mem:79.16 GiB"
    assert steps[-2] == "[Warmup][Decode][47/48] batch_size:2 num_blocks:128 free_mem:79.16 GiB"
    assert steps[-1] == "[Warmup][Decode][48/48] batch_size:1 num_blocks:128 free_mem:79.16 GiB"
    assert "Warm-up: 35 of 72 shapes are ready, about 0 s to go" in lines
    assert lines[-1] == "Warmup finished in 0 secs, allocated 0 B of device memory"


def test_skipping() -> None:
    policy = BucketPolicy(LONG, read({**LOGGED, "hpu.skip_warmup": True}), lambda: 0)
    assert list(policy.warmup()) == []
    assert policy.expected() == 0
    assert policy.pad(Shape(PROMPT, 3, 412, 0)) == Shape(PROMPT, 4, 512, 0)


def test_every_shape_is_compiled_once_by_torch() -> None:
    device, vendor = open_device(**{name.removeprefix("hpu."): value for name, value in LOGGED.items()})
    shapes = run_warmup(device, LONG)
    assert vendor.compilations == {"compiled": len(set(shapes))} == {"compiled": 72}
    assert vendor.calls["wrap_in_graph"] == vendor.calls["mark_step"] == 0
    device.close()


def test_eager_runs_op_by_op() -> None:
    device, vendor = open_device()
    run_warmup(device, LIMITS, eager=True)
    assert not vendor.compilations
    assert vendor.calls["mark_step"] == 0
    device.close()


def test_lazy_mode_marks_steps_and_has_graphs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lsv_hpu")
    device, vendor = open_device(lazy_mode=True, graph_reserved_mem=0.4, graph_prompt_ratio=0.3)
    device.budget(device.memory(), 0.5)
    shapes = run_warmup(device, LONG)
    distinct = set(shapes)
    assert len(shapes) == 2 * len(distinct)
    assert vendor.compilations == {"graph": len(distinct)}
    assert vendor.calls["mark_step"] == len(shapes)
    lines = [record.getMessage() for record in caplog.records]
    assert (
        "Free device memory: 1 GiB, 512 MiB usable (gpu_memory_utilization=0.5), 204.8 MiB reserved for HPUGraphs "
        "(VLLM_GRAPH_RESERVED_MEM=0.4), 307.2 MiB reserved for KV cache" in lines
    )
    assert any(
        line.startswith("Using 512 MiB/1 GiB of free device memory for HPUGraphs, 0.150 GiB for") for line in lines
    )
    count = sum(shape.kind == PROMPT for shape in distinct)
    assert any(line.startswith(f"[Warmup][Graph/Prompt][1/{count}] batch_size:") for line in lines)
    assert any(line.startswith(f"Graph/Prompt captured:{count} (100.0%) used_mem:") for line in lines)
    assert any(line.startswith("Graph/Decode captured:") for line in lines)
    device.close()


def test_eager_lazy_mode_has_no_graphs() -> None:
    device, vendor = open_device(lazy_mode=True)
    shapes = run_warmup(device, LIMITS, eager=True)
    assert len(shapes) == len(set(shapes))
    assert not vendor.compilations
    assert vendor.calls["mark_step"] == len(shapes)
    device.close()


def test_graphs_end_where_their_memory_does() -> None:
    """A graph takes 64 KiB on the fake device, and 1 % of memory may be used at all."""
    device, vendor = open_device(lazy_mode=True, emulated_memory=0.25)
    device.budget(device.memory(), 0.01)
    shapes = run_warmup(device, LONG)
    captured = vendor.compilations["graph"]
    assert 0 < captured < len(set(shapes))
    assert captured * (64 << 10) <= 0.01 * 0.25 * 2**30 + (64 << 10)
    device.close()


def test_full_warm_up_makes_another_shape_an_error() -> None:
    device, vendor = open_device(full_warmup=True, prompt_seq_buckets="128,256")
    policy = device.shapes(LONG)
    beyond = Shape(PROMPT, 1, 300, 0)
    assert policy.pad(beyond) == beyond
    for shape in policy.warmup():
        device.compile(int, shape, eager=False)()
    with pytest.raises(LsvError, match=r"hpu.full_warmup promised .* and \(prompt, 1, 300\) did: widen the buckets"):
        policy.pad(beyond)
    assert vendor.calls["forbid_compiling"] == 1
    assert policy.pad(Shape(PROMPT, 1, 200, 0)) == Shape(PROMPT, 1, 256, 0)
    device.close()


def test_software_loaded_in_the_other_mode_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeHabana, "is_lazy", lambda self: True)
    with pytest.raises(
        ConfigError, match=r"hpu.lazy_mode is false, but the Gaudi software was loaded with the opposite"
    ):
        EmulatedHpu().open(0, {})
