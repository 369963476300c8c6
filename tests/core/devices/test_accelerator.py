"""What devices with graphs pad steps to, and kernels that a configuration does not want."""

from __future__ import annotations

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
