"""What devices with graphs pad steps to, and kernels that a configuration does not want."""

from __future__ import annotations

import pytest

from lsv.config import EngineConfig
from lsv.devices.accelerator import DecodePolicy
from lsv.offers import KernelOffer, OpSpec
from lsv.platform import BatchLimits, Shape
from lsv.worker.load.bound import _as_wanted


def test_decoding_is_padded_to_few_sizes() -> None:
    policy = DecodePolicy(BatchLimits(20, 64, 8), most=64)
    assert [shape.rows for shape in policy.warmup()] == [20, 16, 8, 4, 2, 1]
    assert policy.expected() == 6
    assert policy.pad(Shape("decode", 9, 1, 3)) == Shape("decode", 16, 1, 8)
    assert policy.pad(Shape("mixed", 9, 7, 3)) == Shape("mixed", 9, 7, 3)
    small = DecodePolicy(BatchLimits(20, 64, 8), most=2)
    assert small.pad(Shape("decode", 3, 1, 3)) == Shape("decode", 3, 1, 3)


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
    policy = DecodePolicy(limits, most)
    assert [shape.rows for shape in policy.warmup()] == sizes[::-1], "the largest comes first"
    assert policy.expected() == len(sizes)
    rows = [policy.pad(Shape("decode", rows, 1, 3)).rows for rows in range(1, most + 1)]
    assert rows == [min(size for size in sizes if size >= row) for row in range(1, most + 1)]
