"""What warm-up runs, in which order, and what it says; and what it leaves to be compiled later."""

from __future__ import annotations

import logging
import re
from functools import partial

import pytest
import torch
from torch import nn

from lsv import LLM, SamplingParams
from lsv_base.errors import ConfigError, LsvError
from lsv_hpu.buckets.table import DECODE, PROMPT
from lsv_hpu.device import HpuDevice
from lsv_hpu.emulation.platform import EmulatedHpu, FakeHabana
from lsv_hpu.settings import read
from lsv_hpu.warmup import BucketPolicy, largest_first
from lsv_runtime.devices.shapes import BatchLimits, Shape
from lsv_runtime.nn.model import Model
from lsv_testing.tiny import tiny

LIMITS = BatchLimits(max_rows=4, max_tokens=4096, max_blocks=1, block_size=128, num_blocks=1000)
LOGGED = {
    "hpu.bucketing_strategy": "lin",
    "hpu.prompt_ctx_buckets": "0",
    "hpu.prompt_bs_buckets": "1,2,4",
    "hpu.decode_bs_buckets": "1,2,4",
    "hpu.decode_block_buckets": ",".join(str(size) for size in range(128, 2049, 128)),
}
"""As many buckets as in the documentation's log, of decoding rows by cache blocks."""
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


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    shape = {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 1}
    folder = tmp_path_factory.mktemp("warmup") / "llama"
    return str(tiny("llama", folder, num_key_value_heads=1, max_position_embeddings=2048, **shape))


@pytest.mark.row("F-483", "F-484", "F-490", "F-491", "F-492", "F-493", "F-943")
def test_an_engine_warms_up_the_buckets_of_the_documentations_log(
    checkpoint: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """24 of prompts and 48 of decoding rows, by the variables for the log's settings; requests need no other."""
    caplog.set_level(logging.INFO, "lsv_hpu.warmup")
    for variable, value in (
        ("PROMPT_BS_BUCKET_STEP", 32),
        ("DECODE_BS_BUCKET_STEP", 128),
        ("DECODE_SEQ_BUCKET_MAX", 2048),
    ):
        monkeypatch.setenv(f"VLLM_{variable}", str(value))
    whole = {"enable_prefix_caching": False, "enable_chunked_prefill": False, "max_num_batched_tokens": 4096}
    fixed = {"max_model_len": 2048, "max_num_seqs": 4, "skip_tokenizer_init": True}
    params = SamplingParams(max_tokens=3, ignore_eos=True, detokenize=False)
    with LLM(checkpoint, platform="hpu", emulate=True, **whole, **fixed) as llm:
        llm.generate([{"prompt_token_ids": [7] * size} for size in (3, 300, 900)], params, use_tqdm=False)
        assert llm.stats.unwarmed_total == 0
    lines = [record.getMessage() for record in caplog.records if record.name == "lsv_hpu.warmup"]
    prompts = [(rows, length) for rows in (1, 2, 4) for length in range(128, 1025, 128)]
    decodes = [(rows, length) for rows in (1, 2, 4) for length in range(128, 2049, 128)]
    assert lines[:4] == [
        "Prompt bucket config (min, step, max_warmup) bs:[1, 32, 4], seq:[128, 128, 1024]",
        f"Generated 24 prompt buckets: {prompts}",
        "Decode bucket config (min, step, max_warmup) bs:[1, 128, 4], seq:[128, 128, 2048]",
        f"Generated 48 decode buckets: {decodes}",
    ]
    steps = [line.partition(" free_mem:")[0] for line in lines if line.startswith("[Warmup]")]
    assert len(steps) == 72
    assert steps[:3] == [
        "[Warmup][Prompt][1/24] batch_size:4 seq_len:1024",
        "[Warmup][Prompt][2/24] batch_size:4 seq_len:896",
        "[Warmup][Prompt][3/24] batch_size:4 seq_len:768",
    ]
    assert steps[23:27] == [
        "[Warmup][Prompt][24/24] batch_size:1 seq_len:128",
        "[Warmup][Decode][1/48] batch_size:4 seq_len:2048",
        "[Warmup][Decode][2/48] batch_size:4 seq_len:1920",
        "[Warmup][Decode][3/48] batch_size:4 seq_len:1792",
    ]
    assert steps[-2:] == [
        "[Warmup][Decode][47/48] batch_size:2 seq_len:128",
        "[Warmup][Decode][48/48] batch_size:1 seq_len:128",
    ]
    assert re.fullmatch(r"Warmup finished in \d+ secs, allocated .* of device memory", lines[-1])


def test_free_memory_and_progress_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lsv_hpu.warmup")
    policy = BucketPolicy(LONG, read(LOGGED), lambda: round(79.16 * 2**30))
    shapes = list(policy.warmup())
    assert policy.expected() == len(shapes) == 72
    assert [shape.kind for shape in shapes] == [PROMPT] * 24 + [DECODE] * 48
    lines = [record.getMessage() for record in caplog.records]
    assert "[Warmup][Prompt][1/24] batch_size:4 seq_len:1024 free_mem:79.16 GiB" in lines
    assert "[Warmup][Decode][48/48] batch_size:1 num_blocks:128 free_mem:79.16 GiB" in lines
    assert "Warm-up: 35 of 72 shapes are ready, about 0 s to go" in lines
    assert lines[-1] == "Warmup finished in 0 secs, allocated 0 B of device memory"


@pytest.mark.row("F-492")
def test_large_shapes_come_first() -> None:
    label = BucketPolicy(LONG, read(LOGGED), lambda: 0).buckets.label
    shapes = [Shape(PROMPT, 1, 1024, 0), Shape(PROMPT, 4, 256, 0), Shape(PROMPT, 2, 512, 0), Shape(PROMPT, 1, 128, 0)]
    assert [label(shape) for shape in largest_first(shapes, label)] == [(1, 1024), (2, 512), (4, 256), (1, 128)]
    decodes = [Shape(DECODE, rows, 1, blocks) for rows in (1, 2) for blocks in (128, 256)]
    assert [label(shape) for shape in largest_first(decodes, label)] == [(2, 256), (1, 256), (2, 128), (1, 128)]


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
    assert not vendor.calls["forbid_compiling"], "a draft model may have to be warmed up, too"
    for _ in range(2):
        with device.observe("prefill", (0,), (200,)):
            pass
    assert vendor.calls["forbid_compiling"] == 1
    assert policy.pad(Shape(PROMPT, 1, 200, 0)) == Shape(PROMPT, 1, 256, 0)
    device.close()


def test_software_loaded_in_lazy_mode_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeHabana, "is_lazy", lambda self: True)
    with pytest.raises(ConfigError, match=r"loaded in lazy mode, .* set PT_HPU_LAZY_MODE=0 before Python starts"):
        EmulatedHpu().open(0, {})
