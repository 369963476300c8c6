"""The fit of a bound model on its device: planned before the weights are read, and again as measured with them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch

from lsv.config import EngineConfig, Fit, Reason
from lsv_runtime.devices.communicator import Communicator
from lsv_runtime.devices.device import Device
from lsv_runtime.nn.dtypes import model_dtype
from lsv_runtime.nn.model import ElsewhereEncoder, handed_on
from lsv_runtime.worker.load.bound import Bound
from lsv_runtime.worker.load.graphs import measure_graphs
from lsv_runtime.worker.load.memory import after_weights, plan_embeddings, plan_memory
from lsv_runtime.worker.load.peaks import measure_peaks
from lsv_runtime.worker.load.streamed import describe_streaming


def plan_fit(bound: Bound, config: EngineConfig, device: Device, groups: Sequence[Communicator] = ()) -> Fit:
    """How memory would be used once the weights are there. Raises ``ConfigError`` when no request of full length fits.

    The caches of all ranks of ``groups`` are equal; without any it is the plan of one rank.
    """
    fit = _plan(bound, config, device, weights=bound.declared.weight_bytes)
    return _smallest(fit, device, groups)


def measure_fit(
    fit: Fit, bound: Bound, config: EngineConfig, device: Device, groups: Sequence[Communicator] = ()
) -> Fit:
    """The plan with the weights in place and what steps take as measured; ``fit`` where a device does not measure.

    Raises ``ConfigError`` when no request of full length fits after all, or not the largest item of media.
    """
    taken = measure_peaks(bound, config, device)
    if taken:
        taken += measure_graphs(bound, config, device)
    measured = _plan(bound, config, device, *taken) if taken else fit
    return _smallest(measured, device, groups)


def _plan(bound: Bound, config: EngineConfig, device: Device, *taken: Reason, weights: int = 0) -> Fit:
    """The plan for what is left by weights that are still to come, the bytes of ``taken`` and embeddings of media."""
    declared = bound.declared
    taken += bound.beside
    encoder = declared.model.encoder
    if encoder is not None and not isinstance(encoder, ElsewhereEncoder):
        width: int = encoder.width or handed_on(declared.model)
        taken += (plan_embeddings(width, model_dtype(config.dtype).itemsize, config),)
    memory = after_weights(device.memory(), weights + sum(int(reason.value) for reason in taken))
    budget, largest = device.budget(memory, config.memory_share), device.largest_allocation
    fit = plan_memory(declared, bound.backend, budget, config, largest)
    said = (*describe_streaming(declared.streamed, config), *bound.reasons)
    reasons = (*fit.reasons, *said, *taken)
    return msgspec.structs.replace(fit, ops=bound.ops, mutual=declared.model.mutual, reasons=reasons)


def _smallest(fit: Fit, device: Device, groups: Sequence[Communicator]) -> Fit:
    """The one with the least memory decides, in one group after the other."""
    if not groups:
        return fit
    blocks = fit.num_blocks
    for group in groups:
        mine = torch.tensor([blocks], device=device.torch_device)
        blocks = int(group.all_gather(mine).min())
    page = fit.kv_bytes // (fit.num_blocks + 1)
    return msgspec.structs.replace(fit, num_blocks=blocks, kv_bytes=(blocks + 1) * page)
