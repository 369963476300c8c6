"""What replicas that share experts do not do. Imports no torch."""

from __future__ import annotations

from lsv.config import EngineConfig
from lsv_base.errors import ConfigError

_EXECUTORS = ("inline", "processes", "nodes")


def refuse_with_shared_experts(config: EngineConfig) -> None:
    """Raises ``ConfigError`` naming what does not go with it, and why."""
    topology = config.topology
    if not topology.shares_experts:
        return
    refused = {
        "executor": (config.executor not in _EXECUTORS, "ranks must be processes of machines that are known"),
        "enable_sleep_mode": (config.sleep_mode, "none of the replicas computes without the others"),
        "cpu_offload_gb": (config.offload_bytes > 0, "layers on the host hold no experts for others"),
    }
    for name, (asked, why) in refused.items():
        if asked:
            raise ConfigError(
                f"{name}: not with enable_expert_parallel and data_parallel_size={topology.data}: {why}; leave one of "
                "the options out",
                param=name,
            )
