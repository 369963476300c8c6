"""Log lines of an engine process about itself."""

from __future__ import annotations

import logging
import time

from lsv import plugins
from lsv.config import EngineConfig, Fit
from lsv.plugins import logs
from lsv_base.processes.usage import written

log = logging.getLogger(__name__)

_WARN_EVERY = 50
"""Preemptions from one warning to the next."""
_GIB = 1 << 30
_BYTES = ("kv_bytes", "encoder_cache_bytes", "activations", "encoder_activations")
"""Reasons whose value is a number of bytes."""
_STAGE_LINES = {"weights": "Loading the model took %.2f seconds", "warm-up": "Warm-up took %.2f seconds"}


def set_up_logging(config: EngineConfig, level: str) -> None:
    """Set up logging for lsv and its plugins, see ``lsv.plugins.logs``. Replicas log their number."""
    topology = config.topology
    name = f"engine-{topology.number}" if topology.data > 1 or topology.base else "engine"
    logs.set_up(f"%(levelname)s %(asctime)s {name} %(name)s: %(message)s", level, plugins.packages())


def log_config(config: EngineConfig) -> None:
    """Log what will be loaded, and why it was chosen."""
    log.info("Engine configuration %s: model %s (%s)", config.fingerprint(), config.model, config.architecture)
    log.info(
        "platform %s, dtype %s, attention %s, quantization %s, KV cache %s, executor %s",
        config.platform, config.dtype, config.attention, config.quantization or "none", config.kv_dtype,
        config.executor,
    )  # fmt: skip
    for reason in config.reasons:
        log.info("%s=%s: %s", reason.name, reason.value, reason.why)


def log_fit(config: EngineConfig, fit: Fit) -> None:
    """Log what fits, in the words that users search logs for."""
    platform = config.platform.upper()
    cache = f", the KV cache takes {fit.kv_bytes / _GIB:.4f} GiB" if fit.kv_tokens else ""
    log.info("Loading model weights took %.4f GiB%s", fit.weight_bytes / _GIB, cache)
    if fit.kv_tokens:  # a pooling model may have no cache
        log.info("# %s blocks: %d of %d tokens", platform, fit.num_blocks, fit.block_size)
        log.info("%s KV cache size: %s tokens", platform, f"{fit.kv_tokens:,}")
        log.info(
            "Maximum concurrency for %s tokens per request: %.2fx",
            f"{config.max_model_len:,}", fit.kv_tokens / config.max_model_len,
        )  # fmt: skip
    for reason in fit.reasons:
        shown = written(int(reason.value)) if reason.name in _BYTES and reason.value.isdigit() else reason.value
        log.info("%s=%s: %s", reason.name, shown, reason.why)


class Stages:
    """Logs how long each stage of a start took, once the next one begins."""

    def __init__(self) -> None:
        self._stage = ""
        self._began = time.monotonic()

    def enter(self, stage: str) -> None:
        """Enter a stage; does nothing if the start is in this stage already."""
        if stage != self._stage:
            self.end()
            self._stage = stage

    def end(self) -> None:
        now = time.monotonic()
        if self._stage in _STAGE_LINES:
            log.info(_STAGE_LINES[self._stage], now - self._began)
            self._began = now
        self._stage = ""


class ItlLog:
    """Warns once that the limit ``asked`` for the time between tokens, in ms, can't be kept."""

    def __init__(self, asked: float | None) -> None:
        self._asked = asked
        self._warned = False

    def tell(self, seconds: float | None) -> None:
        """A step takes so many seconds; None if that is fast enough."""
        if seconds is None or self._warned:
            return
        self._warned = True
        log.warning(
            "max_itl_ms=%g can't be kept: without any prompts, a step takes %.1f ms on this machine. Prompts are "
            "computed in the smallest chunks, which delays their first tokens: raise max_itl_ms, or lower max_num_seqs",
            self._asked,
            1000 * seconds,
        )


class PreemptionLog:
    """Warns of preempted requests: of the first, then of every fiftieth."""

    def __init__(self) -> None:
        self._warned_at = 0

    def tell(self, request: str, total: int) -> None:
        """``total`` preemptions have happened; the last one hit ``request``."""
        if not total or (self._warned_at and total - self._warned_at < _WARN_EVERY):
            return
        self._warned_at = total
        log.warning(
            "Request %s is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space. "
            "This can affect the end-to-end performance. Increase gpu_memory_utilization or tensor_parallel_size "
            "to provide more KV cache memory. total_cumulative_preemption_cnt=%d",
            request,
            total,
        )
