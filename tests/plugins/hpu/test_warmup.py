"""What warm-up runs, in which order, and what it says; and what it leaves to be compiled later."""

from __future__ import annotations

import logging
from functools import partial

import pytest
import torch
from torch import nn

from lsv.errors import ConfigError, LsvError
from lsv.nn.model import Model
from lsv.platform import BatchLimits, Shape
from lsv_hpu.buckets.table import DECODE, PROMPT
from lsv_hpu.device import HpuDevice
from lsv_hpu.emulation.platform import EmulatedHpu, FakeHabana
from lsv_hpu.settings import read
from lsv_hpu.warmup import BucketPolicy, bucket, largest_first

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


@pytest.mark.row("F-943", "F-490", "F-491", "F-492", "F-493")
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


@pytest.mark.row("F-492")
def test_large_shapes_come_first() -> None:
    shapes = [Shape(PROMPT, 1, 1024, 0), Shape(PROMPT, 4, 256, 0), Shape(PROMPT, 2, 512, 0), Shape(PROMPT, 1, 128, 0)]
    assert [bucket(shape) for shape in largest_first(shapes)] == [(1, 1024), (2, 512), (4, 256), (1, 128)]
    decodes = [Shape(DECODE, rows, 1, blocks) for rows in (1, 2) for blocks in (128, 256)]
    assert [bucket(shape) for shape in largest_first(decodes)] == [(2, 256), (1, 256), (2, 128), (1, 128)]


@pytest.mark.row("F-494", "F-515")
def test_skipping() -> None:
    policy = BucketPolicy(LONG, read({**LOGGED, "hpu.skip_warmup": True}), lambda: 0)
    assert list(policy.warmup()) == []
    assert policy.expected() == 0
    assert policy.pad(Shape(PROMPT, 3, 412, 0)) == Shape(PROMPT, 4, 512, 0)


class Layer(nn.Linear):
    def forward(self, x: torch.Tensor, step: object) -> torch.Tensor:
        return super().forward(x)


class Parts(Model):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(4, 4) for _ in range(3))
        self.embed, self.norm, self.head = nn.Identity(), nn.Identity(), nn.Linear(4, 9)

    def run(self, tokens: int) -> torch.Tensor:
        x = self.embed(torch.zeros(tokens, 4))
        for layer in self.layers:
            x = layer(x, None)
        return self.norm(x)


@pytest.mark.parametrize("eager", [False, True])
def test_layers_that_are_alike_are_compiled_once_for_a_shape(eager: bool) -> None:
    """What is not warmed up runs op by op, by the same parts."""
    device, vendor = open_device(**{name.removeprefix("hpu."): value for name, value in LOGGED.items()})
    model, tokens = Parts(), set()
    if not eager:
        device.compile_parts(model)
    plain = model.run(17)
    for shape in device.shapes(LONG).warmup():
        count = shape.rows * shape.query
        tokens.add(count)
        device.compile(partial(model.run, count), shape, eager=eager)()
    compiled = 0 if eager else 2 * len(tokens)  # the layers, and what embedding and norm are here
    assert vendor.compilations == compiled
    assert torch.equal(model.run(17), plain)
    assert vendor.compilations == compiled
    device.close()


@pytest.mark.row("F-472", "F-474")
def test_eager_runs_op_by_op() -> None:
    device, vendor = open_device()
    run_warmup(device, LIMITS, eager=True)
    assert not vendor.compilations
    device.close()


@pytest.mark.row("F-963", "F-495", "F-514")
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


def test_software_loaded_in_lazy_mode_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeHabana, "is_lazy", lambda self: True)
    with pytest.raises(ConfigError, match=r"loaded in lazy mode, .* set PT_HPU_LAZY_MODE=0 before Python starts"):
        EmulatedHpu().open(0, {})
