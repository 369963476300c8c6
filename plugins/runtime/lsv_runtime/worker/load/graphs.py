"""What captured graphs hold: kept out of the cache's plan before they are there, and counted when they are."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

from lsv.config import EngineConfig, Fit, Reason
from lsv_runtime.devices.device import Device
from lsv_runtime.devices.shapes import Shape, ShapePolicy
from lsv_runtime.ops import find_uncapturable
from lsv_runtime.worker.load.bound import Bound
from lsv_runtime.worker.load.device import batch_limits
from lsv_runtime.worker.runner import ModelRunner

_log = logging.getLogger(__name__)

_GIB = 1 << 30


def measure_graphs(bound: Bound, config: EngineConfig, device: Device) -> list[Reason]:
    """The bytes that the graphs of all shapes will hold; empty where nothing is captured or the cache's size is given.

    The largest of each kind are captured over a cache of the null page, and let go again: these take the pool of
    memory that all share, and one more tells what each further one takes.
    """
    given = config.num_blocks is not None or config.kv_bytes is not None
    if config.enforce_eager or given or not device.captures or find_uncapturable(bound.declared.model):
        return []
    cache = bound.allocate(1, config, device)
    policy = device.shapes(batch_limits(config, 0, prompts_captured=bound.backend.captures_prompts))
    runner = ModelRunner(bound.declared.model, bound.backend, bound.declared.groups, cache, device, policy)
    largest, further = _choose(policy)
    for shape in largest:
        runner.prepare(shape, eager=True).run()  # what libraries set up for themselves is not the graphs'
    prepared, free = [], [_free(device)]
    for shape in (*largest, *further):
        prepared.append(runner.prepare(shape, eager=False))
        free.append(_free(device))
    taken = [max(0, before - after) for before, after in pairwise(free)]
    count = policy.expected()
    total = sum(taken[: len(largest)]) + sum(taken[len(largest) :]) * (count - len(largest))
    del prepared
    device.release_cache()
    why = f"measured with the largest {len(taken)} of {count} graphs"
    return [Reason("graphs", str(total), why)] if device.captures and total else []


def _choose(policy: ShapePolicy) -> tuple[list[Shape], list[Shape]]:
    """The largest shape of each kind, and another one, if there is one."""
    shapes = list(policy.warmup())
    largest = list({shape.kind: shape for shape in reversed(shapes)}.values())[::-1]
    return largest, [shape for shape in shapes if shape not in largest][:1]


@contextmanager
def report_graphs(device: Device, fit: Fit) -> Iterator[None]:
    """Logs what graphs captured inside take, and warns where they leave too little for the largest step."""
    before = _free(device) if device.captures else 0
    yield
    if not device.captures:
        return
    after = _free(device)
    planned = {reason.name: int(reason.value) for reason in fit.reasons if reason.name in ("graphs", "activations")}
    if after < before:
        kept = planned.get("graphs", 0)
        _log.info("graphs took %.2f GiB, %.2f GiB were kept", (before - after) / _GIB, kept / _GIB)
    if after < planned.get("activations", 0):
        _log.warning(
            "%.2f GiB are free after warming up, and the largest step takes %.2f GiB: it may find no memory; "
            "lower gpu_memory_utilization",
            after / _GIB, planned["activations"] / _GIB,
        )  # fmt: skip


def _free(device: Device) -> int:
    device.synchronize()
    device.release_cache()
    return device.memory().free
