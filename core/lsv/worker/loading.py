"""From a resolved configuration to a model with its cache on a device: decide first, then read weights."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch

from lsv.attention import AttentionBackend
from lsv.config import BoundOp, EngineConfig, Fit, Reason
from lsv.engine.executor import ReportProgress
from lsv.errors import ConfigError
from lsv.nn import build
from lsv.nn.build import Declared
from lsv.nn.dtypes import cache_dtype, model_dtype
from lsv.nn.model import Encoder
from lsv.offers import AttentionOffer
from lsv.platform import BatchLimits, Communicator, Device, Group, Shape, ShapePolicy, load_platform
from lsv.plugins.catalog import Catalog
from lsv.worker.inputs import dummy_batch
from lsv.worker.memory import after_weights, plan_embeddings, plan_memory
from lsv.worker.steps import Steps


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model with its ops bound and its backend chosen; no weight has been read."""

    declared: Declared
    backend: AttentionBackend
    ops: tuple[BoundOp, ...]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A filled model, its attention backend and cache, and how they fit."""

    declared: Declared
    backend: AttentionBackend
    cache: Any
    fit: Fit


def open_device(config: EngineConfig, catalog: Catalog, rank: int) -> Device:
    """The device of one rank; ranks take consecutive devices from the configured one on."""
    platform = load_platform(config.platform, catalog, emulate=config.emulate)
    return platform.open(config.device + rank, config.options)


def connect(device: Device, group: Group) -> Communicator | None:
    """The tested communicator of a group; None for a single rank."""
    if group.size == 1:
        return None
    communicator = device.communicator(group)
    assert communicator is not None, "a device must connect ranks or refuse to"
    communicator.self_test()
    return communicator


def load(
    config: EngineConfig,
    catalog: Catalog,
    device: Device,
    communicator: Communicator | None,
    report: ReportProgress,
) -> Loaded:
    """Declare the model, bind its ops, plan the memory; then fill the weights and allocate the cache.

    Raises ``StartError`` before any weight is read when the configuration can't be served.
    """
    kv_dtype = cache_dtype(config.kv_dtype, model_dtype(config.dtype))
    prepared = prepare(config, catalog, device, communicator)
    declared, backend = prepared.declared, prepared.backend
    fit = smallest(plan_fit(prepared, config, device), device, communicator)
    with closing(build.open_source(config, declared, catalog)) as source:
        build.fill(declared, source, lambda done, total: report("weights", done, total))
    device.release_cache()  # filling has left room behind for the largest tensors
    fit = smallest(plan_again(fit, prepared, config, device), device, communicator)
    pages = fit.num_blocks + 1
    cache = backend.allocate(declared.groups, declared.layers, pages, config.block_size, kv_dtype, device)
    fit = msgspec.structs.replace(fit, weight_bytes=declared.weight_bytes)
    return Loaded(declared, backend, cache, fit)


def prepare(
    config: EngineConfig, catalog: Catalog, device: Device, communicator: Communicator | None = None
) -> Prepared:
    """Declare the model on meta, see that the attention backend serves its layers, and bind its ops."""
    declared = build.declare(config, catalog, communicator=communicator, torch_device=device.torch_device)
    backend = make_backend(config, catalog)
    check_layers(declared, backend, config)
    return Prepared(declared, backend, build.bind(declared, catalog, config.platform, config.reference_ops, config))


def plan_fit(prepared: Prepared, config: EngineConfig, device: Device) -> Fit:
    """How one rank's memory would be used. Raises ``ConfigError`` when no request of full length fits."""
    return _plan(prepared, config, device, weights=prepared.declared.weight_bytes)


def plan_again(fit: Fit, prepared: Prepared, config: EngineConfig, device: Device) -> Fit:
    """The plan once the weights are there and the largest step has shown what activations take, if a device tells."""
    peak = device.measure_peak(lambda: run_largest(prepared, config, device))
    if not peak:
        return fit
    peaks = [Reason("activations", str(peak), "measured with the largest step")]
    encoder = _encoder(prepared)
    if encoder is not None:
        peak, why = 0, "not measured: the encoder does not tell its largest item"
        if hasattr(encoder, "largest"):
            peak = device.measure_peak(lambda: encode_largest(encoder, config, device))
            why = "measured with the largest item of media"
        peaks.append(Reason("encoder_activations", str(peak), why))
    device.release_cache()
    return _plan(prepared, config, device, *peaks)


def _plan(prepared: Prepared, config: EngineConfig, device: Device, *taken: Reason, weights: int = 0) -> Fit:
    """The plan for what is left once weights to come, the bytes of ``taken`` and embeddings of media are gone."""
    declared = prepared.declared
    if _encoder(prepared) is not None:
        width: int = next(declared.model.norm.parameters()).shape[-1]
        taken += (plan_embeddings(width, model_dtype(config.dtype).itemsize, config),)
    memory = after_weights(device.memory(), weights + sum(int(reason.value) for reason in taken))
    fit = plan_memory(declared, prepared.backend, device.budget(memory, config.memory_share), config)
    return msgspec.structs.replace(fit, ops=prepared.ops, reasons=(*fit.reasons, *taken))


def _encoder(prepared: Prepared) -> Encoder | None:
    return getattr(prepared.declared.model, "encoder", None)


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


def run_largest(prepared: Prepared, config: EngineConfig, device: Device) -> None:
    """One prompt that fills a step, without a cache, and logits for as many requests as may run."""
    declared = prepared.declared
    tokens = min(config.max_num_batched_tokens, config.max_model_len)
    shape = Shape("prefill", 1, tokens, 0)
    spread = config.layout == "padded"
    steps = Steps(declared.model, prepared.backend, declared.groups, None, device, ShapePolicy(batch_limits(config, 0)))
    batch = dummy_batch(shape, declared.groups, config.block_size, spread=spread, axes=steps.axes)
    steps.compute(batch, np.zeros(config.max_num_seqs, np.int64))


def make_backend(config: EngineConfig, catalog: Catalog) -> AttentionBackend:
    """The attention backend of a configuration; nothing is allocated."""
    backend: AttentionBackend = catalog.load(catalog.find(AttentionOffer, config.attention))()
    return backend


def check_layers(declared: Declared, backend: AttentionBackend, config: EngineConfig) -> None:
    """Raise ``ConfigError`` with the backend's reason when it can't serve a layer."""
    for layer in declared.layers:
        why = backend.supports(layer)
        if why is not None:
            raise ConfigError(
                f"attention backend {config.attention} can't serve layer {layer.index} of "
                f"{config.architecture}: {why}; choose another with --attention-backend",
                param="attention_backend",
            )


def smallest(fit: Fit, device: Device, communicator: Communicator | None) -> Fit:
    """The ranks' caches must be equal: the one with the least memory decides."""
    if communicator is None:
        return fit
    mine = torch.tensor([fit.num_blocks], device=device.torch_device)
    blocks = int(communicator.all_gather(mine).min())
    page = fit.kv_bytes // (fit.num_blocks + 1)
    return msgspec.structs.replace(fit, num_blocks=blocks, kv_bytes=(blocks + 1) * page)


def batch_limits(config: EngineConfig, num_blocks: int) -> BatchLimits:
    """The largest step a configuration allows over a cache of so many blocks."""
    return BatchLimits(
        max_rows=config.max_num_seqs,
        max_tokens=config.max_num_batched_tokens,
        max_blocks=-(-config.max_model_len // config.block_size),
        block_size=config.block_size,
        num_blocks=num_blocks,
    )
