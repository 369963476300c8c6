"""Free the memory of engines that were deleted."""

from __future__ import annotations

import gc


def cleanup_dist_env_and_memory(shutdown_ray: bool = False) -> None:
    """Collect engines that were deleted; each ends its processes and frees its memory. Raises ``NotImplementedError``
    for ``shutdown_ray``.
    """
    if shutdown_ray:
        raise NotImplementedError("shutdown_ray: lsv leaves Ray's cluster to its owner; call ray.shutdown()")
    gc.collect()


def destroy_model_parallel() -> None:
    """Collect engines that were deleted; groups of ranks end with their engine."""
    gc.collect()


destroy_distributed_environment = destroy_model_parallel
