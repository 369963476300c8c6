"""What devices with graphs pad steps to, and kernels that a configuration does not want."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from lsv.config import EngineConfig
from lsv.offers import KernelOffer, OpSpec
from lsv_runtime.devices.accelerator import GraphPolicy
from lsv_runtime.devices.shapes import BatchLimits, Shape
from lsv_runtime.worker.load.bound import _as_wanted


def test_decoding_is_padded_to_few_sizes() -> None:
    policy = GraphPolicy(BatchLimits(20, 64, 8), most=64)
    assert [shape.rows for shape in policy.warmup()] == [20, 16, 8, 4, 2, 1]
    assert policy.expected() == 6
    assert policy.pad(Shape("decode", 9, 1, 3)) == Shape("decode", 16, 1, 8)
    assert policy.pad(Shape("mixed", 9, 7, 3)) == Shape("mixed", 9, 7, 3)
    small = GraphPolicy(BatchLimits(20, 64, 8), most=2)
    assert small.pad(Shape("decode", 3, 1, 3)) == Shape("decode", 3, 1, 3)


def test_steps_larger_than_graphs_are_not_meant_to_be_warmed_up() -> None:
    policy = GraphPolicy(BatchLimits(20, 2048, 64, prompts_captured=True), most=4, tokens=512)
    assert all(policy.prepares(shape) for shape in policy.warmup())
    assert not policy.prepares(measure(policy, "decode", *[1] * 5))
    assert not policy.prepares(measure(policy, "mixed", 1, 512))


def measure(policy: GraphPolicy, kind: str, *query: int) -> Shape:
    lengths = np.array(query, np.int32)
    return policy.pad(policy.measure(kind, lengths, lengths + 3))


def test_steps_with_prompts_are_padded_to_few_numbers_of_tokens() -> None:
    policy = GraphPolicy(BatchLimits(20, 2048, 64, prompts_captured=True), most=4, tokens=512)
    prompts = [Shape("tokens", min(size - 1, 21), size, 64, size) for size in (512, 384, 256, 128, 64, 32, 16)]
    assert list(policy.warmup()) == [*prompts, *(Shape("decode", rows, 1, 64) for rows in (4, 2, 1))]
    assert policy.expected() == 10
    assert measure(policy, "prefill", 7) == Shape("tokens", 15, 16, 64, 16)
    assert measure(policy, "mixed", *[1] * 15, 2) == Shape("tokens", 21, 32, 64, 32)
    assert measure(policy, "mixed", 1, 400) == Shape("tokens", 21, 512, 64, 512)
    assert measure(policy, "mixed", 1, 512).tokens == 513, "as it comes"
    assert measure(policy, "mixed", 1, 1, 1) == Shape("decode", 4, 1, 64), "single tokens, whatever the step is called"
    assert measure(policy, "mixed", *[1] * 5).kind == "mixed"


@pytest.mark.row("F-570")
def test_steps_are_widened_to_those_of_other_replicas() -> None:
    policy = GraphPolicy(BatchLimits(20, 2048, 64, prompts_captured=True), most=20, tokens=512)
    three = Shape("decode", 3, 1, 2)
    assert policy.widen(three, 16) == Shape("decode", 16, 1, 64)
    assert (
        policy.widen(three, 128) == policy.widen(Shape("mixed", 9, 30, 2, 60), 128) == Shape("tokens", 21, 128, 64, 128)
    )
    assert policy.widen(three, 17) == three, "there is none of 17 tokens"
    assert policy.widen(Shape("mixed", 9, 30, 2, 60), 32) == Shape("mixed", 9, 30, 2, 60)
    assert policy.widen(three, 2) == three


@pytest.mark.parametrize(
    ("change", "most", "sizes"),
    [
        ({}, 512, [40, 32, 16]),
        ({"max_tokens": 20}, 512, [20, 16]),
        ({}, 16, [16]),
        ({}, 0, []),
        ({"prompts_captured": False}, 512, []),
    ],
)
def test_what_bounds_the_tokens_of_a_graph(change: dict[str, int], most: int, sizes: list[int]) -> None:
    """The longest request, whose table the filling tokens use; a step's most tokens; the user; attention."""
    limits = BatchLimits(20, 2048, 2, block_size=20, prompts_captured=True)
    policy = GraphPolicy(msgspec.structs.replace(limits, **change), most=1, tokens=most)
    assert [shape.tokens for shape in policy.warmup() if shape.tokens] == sizes


def test_a_kernel_may_not_be_wanted() -> None:
    config = EngineConfig(
        model="m", served_names=("m",), tokenizer="m", architecture="A", model_offer="a", platform="x", attention="y",
        dtype="float32", block_size=16, max_model_len=64,
    )  # fmt: skip
    offer = KernelOffer("rms_norm", "x", "y:z", lambda spec: None, unwanted=lambda config: f"not for {config.dtype}")
    assert _as_wanted(offer, config).supports(OpSpec("rms_norm", "float32")) == "not for float32"
    assert offer.supports(OpSpec("rms_norm", "float32")) is None


@pytest.mark.parametrize(
    ("most", "sizes"),
    [
        (1, [1]),
        (12, [1, 2, 4, 8, 12]),
        (256, [1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256]),
    ],
)
def test_steps_are_padded_to_a_few_sizes(most: int, sizes: list[int]) -> None:
    limits = BatchLimits(max_rows=512, max_tokens=512, max_blocks=8, block_size=16, num_blocks=64)
    policy = GraphPolicy(limits, most)
    assert [shape.rows for shape in policy.warmup()] == sizes[::-1], "the largest comes first"
    assert policy.expected() == len(sizes)
    rows = [policy.pad(Shape("decode", rows, 1, 3)).rows for rows in range(1, most + 1)]
    assert rows == [min(size for size in sizes if size >= row) for row in range(1, most + 1)]
