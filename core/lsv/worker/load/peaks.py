"""What activations take at most: the largest step and the largest item of media, run so that a device can measure."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from lsv.config import EngineConfig, Reason
from lsv.errors import ConfigError
from lsv.nn.model import Encoder
from lsv.platform import Device, Shape, ShapePolicy
from lsv.worker.inputs import dummy_batch
from lsv.worker.load.bound import Bound
from lsv.worker.load.device import batch_limits
from lsv.worker.steps import Steps


def measure_peaks(bound: Bound, encoder: Encoder | None, config: EngineConfig, device: Device) -> list[Reason]:
    """The bytes that a filled model's activations take at most, by name; empty where the device does not measure.

    Raises ``ConfigError`` when the device has no memory for the largest item of media.
    """
    peaks = list(_peaks(bound, encoder, config, device))
    if peaks:
        device.release_cache()
    return peaks


def _peaks(bound: Bound, encoder: Encoder | None, config: EngineConfig, device: Device) -> Iterator[Reason]:
    peak = device.measure_peak(lambda: run_largest(bound, config, device))
    if not peak:
        return
    yield Reason("activations", str(peak), "measured with the largest step")
    if encoder is None:
        return
    peak, why = 0, "not measured: the encoder does not tell its largest item"
    if hasattr(encoder, "largest"):
        peak = device.measure_peak(lambda: encode_largest(encoder, config, device))
        why = "measured with the largest item of media"
    yield Reason("encoder_activations", str(peak), why)


def run_largest(bound: Bound, config: EngineConfig, device: Device) -> None:
    """One prompt that fills a step, without a cache, and logits for as many requests as may run."""
    declared = bound.declared
    tokens = min(config.max_num_batched_tokens, config.max_model_len)
    shape = Shape("prefill", 1, tokens, 0)
    spread = config.layout == "padded"
    steps = Steps(declared.model, bound.backend, declared.groups, None, device, ShapePolicy(batch_limits(config, 0)))
    batch = dummy_batch(shape, declared.groups, config.block_size, spread=spread, axes=steps.axes)
    steps.compute(batch, np.zeros(config.max_num_seqs, np.int64))


def encode_largest(encoder: Encoder, config: EngineConfig, device: Device) -> None:
    """An item of as many embeddings as one may have, through all parts of the encoder.

    Raises ``ConfigError`` when the device has no memory for it.
    """
    most = config.encoder_cache_tokens
    try:
        inputs = encoder.largest(most)
        state = encoder.begin({name: tensor.to(device.torch_device) for name, tensor in inputs.items()})
        for part in range(encoder.parts):
            state = encoder.advance(state, part)
    except torch.OutOfMemoryError:
        raise ConfigError(
            f"there is no memory to encode the largest item of media, {most} embeddings, beside the weights: "
            "lower encoder_cache_tokens",
            param="encoder_cache_tokens",
        ) from None
