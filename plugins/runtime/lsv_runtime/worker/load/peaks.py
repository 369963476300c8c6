"""What activations take at most: the largest step and the largest item of media, run so that a device can measure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch

from lsv.config import EngineConfig, Reason
from lsv_base.errors import ConfigError
from lsv_runtime.devices.device import Device
from lsv_runtime.devices.shapes import Shape, ShapePolicy
from lsv_runtime.nn.model import ElsewhereEncoder, Encoder
from lsv_runtime.worker.inputs import dummy_batch
from lsv_runtime.worker.load.bound import Bound
from lsv_runtime.worker.load.device import batch_limits
from lsv_runtime.worker.runner import ModelRunner


def measure_peaks(bound: Bound, config: EngineConfig, device: Device) -> list[Reason]:
    """The bytes that a filled model's activations take at most, by name; empty where the device does not measure.

    Raises ``ConfigError`` when the device has no memory for the largest item of media.
    """
    peaks = list(_peaks(bound, config, device))
    if peaks:
        device.release_cache()
    return peaks


def _peaks(bound: Bound, config: EngineConfig, device: Device) -> Iterator[Reason]:
    peak = device.measure_peak(lambda: run_largest(bound, config, device))
    if not peak:
        return
    yield Reason("activations", str(peak), "measured with the largest step")
    encoder = bound.declared.model.encoder
    if encoder is None or isinstance(encoder, ElsewhereEncoder):
        return
    inputs = encoder.largest(config.encoder_cache_tokens)
    if inputs is None:
        yield Reason("encoder_activations", "0", "not measured: the encoder does not tell its largest item")
        return
    peak = device.measure_peak(lambda: encode_largest(encoder, inputs, config, device))
    yield Reason("encoder_activations", str(peak), "measured with the largest item of media")


def run_largest(bound: Bound, config: EngineConfig, device: Device) -> None:
    """One prompt that fills a step, and logits for as many requests as may run.

    The prompt runs on the null page, with the kernels that serve later: how large a cache may be is not known yet.
    """
    declared, padded = bound.declared, config.layout == "padded"
    tokens = min(config.max_num_batched_tokens, config.max_model_len)
    policy = ShapePolicy(batch_limits(config, 0))
    cache = bound.allocate(1, config, device)
    runner = ModelRunner(declared.model, bound.backend, declared.groups, cache, device, policy)
    shape = Shape("prefill", 1, tokens, 0 if padded else -(-tokens // config.block_size))
    batch = dummy_batch(shape, declared.groups, config.block_size, padded=padded, axes=runner.axes)
    runner.compute(batch, np.zeros(config.max_num_seqs, np.int64))


def encode_largest(encoder: Encoder, inputs: Mapping[str, torch.Tensor], config: EngineConfig, device: Device) -> None:
    """``inputs``, an item of as many embeddings as one may have, through all parts of the encoder.

    Raises ``ConfigError`` when the device has no memory for it.
    """
    try:
        state = encoder.begin({name: tensor.to(device.torch_device) for name, tensor in inputs.items()})
        for part in range(encoder.parts):
            state = encoder.advance(state, part)
    except torch.OutOfMemoryError:
        raise ConfigError(
            f"not enough memory next to the weights to encode the largest media item, {config.encoder_cache_tokens} "
            "embeddings: lower encoder_cache_tokens",
            param="encoder_cache_tokens",
        ) from None
