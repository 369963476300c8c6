"""``torch``: any device that torch can compute on, at reference speed."""

from __future__ import annotations

from collections.abc import Iterable

from lsv import hookimpl
from lsv.config import EngineConfig
from lsv.offers import PlatformOffer
from lsv.settings import Setting
from lsv_torch import machine

api = 2


@hookimpl
def lsv_platforms() -> Iterable[PlatformOffer]:
    """Behind the processor, which is faster with kernels of its own than most devices without: it is asked for."""
    yield PlatformOffer(
        "torch",
        "lsv_torch.platform:TorchPlatform",
        machine.devices,
        rank=-10,
        explain=machine.explain,
        emulation="lsv_torch.emulation:EmulatedTorchPlatform",
        resource="",
    )


@hookimpl
def lsv_settings() -> Iterable[Setting]:
    yield Setting(
        name="torch.device",
        default="",
        help="the kind of device that --platform torch computes on, as torch names it: mps, npu … (default: the "
        "accelerator that torch finds, or the processor)",
    )
    yield Setting(
        name="torch.memory",
        type="float",
        default=0.0,
        low=0.0,
        help="GiB of device memory to use (default: all that the device reports, or half of the host's if it "
        "reports nothing)",
    )


@hookimpl
def lsv_check_config(config: EngineConfig) -> Iterable[str]:
    if config.platform != "torch":
        return
    if config.topology.devices > 1:
        yield (
            "platform torch computes on one device: leave --tensor-parallel-size, --pipeline-parallel-size and "
            "--data-parallel-size out"
        )
    if config.emulate:
        return
    kind = str(config.options.get("torch.device") or "")
    why = machine.why_not(kind)
    if why is not None:
        yield why
        return
    dtypes = machine.ask(kind)["dtypes"]
    if config.dtype not in dtypes:
        yield f"{kind or 'the device'} computes in {', '.join(dtypes)}, not in {config.dtype}: give --dtype"
