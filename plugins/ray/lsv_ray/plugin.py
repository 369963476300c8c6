"""The executor ``ray``, which needs an optional package (``pip install -e '.[ray]'``)."""

from __future__ import annotations

from collections.abc import Iterable

from lsv import hookimpl
from lsv.config import EngineConfig
from lsv.offers import ExecutorOffer, PlacerOffer
from lsv.settings import Setting
from lsv_ray.availability import is_installed

api = 2


@hookimpl
def lsv_executors() -> Iterable[ExecutorOffer]:
    yield ExecutorOffer("ray", "lsv_ray.executor:RayExecutor")


@hookimpl
def lsv_placers() -> Iterable[PlacerOffer]:
    yield PlacerOffer("ray", "lsv_ray.placer:RayPlacer")


@hookimpl
def lsv_settings() -> Iterable[Setting]:
    yield Setting(
        name="ray.address",
        env=("RAY_ADDRESS",),
        help="the Ray cluster to run workers on, as in 10.0.0.1:6379 (default: the one this machine is in, or else one "
        "of this machine alone)",
    )
    yield Setting(name="ray.cpus", type="float", default=1.0, low=0.0, help="cores that Ray reserves for each rank")
    yield Setting(
        name="ray.resource",
        help="Ray's name of a device; it reserves one for each worker (default: GPU, or HPU on Gaudi)",
    )
    yield Setting(
        name="ray.nsight", type="bool", default=False, aliases=("ray_workers_use_nsight",),
        help="Ray starts each worker under Nsight Systems, whose reports are in the logs of Ray's session",
    )  # fmt: skip


@hookimpl
def lsv_check_config(config: EngineConfig) -> Iterable[str]:
    places = config.replica_nodes is not None and config.replica_nodes.placer == "ray"
    if (config.executor == "ray" or places) and not is_installed():
        what = "data_parallel_backend" if places else "executor"
        yield f"{what} ray needs a package that is not installed: pip install -e '.[ray]' in a clone of lsv"
    if config.executor != "ray" and config.options.get("ray.nsight"):
        yield "ray.nsight is for the workers of --distributed-executor-backend ray; others are recorded by lsv nsys"
