"""``cuda``: NVIDIA GPUs."""

from __future__ import annotations

from collections.abc import Iterable

from lsv import hookimpl
from lsv.capabilities import DeviceInfo
from lsv.offers import PlatformOffer
from lsv.settings import Setting
from lsv.settings.neutral import neutral
from lsv_cuda.machine import Machine

api = 1


def probe() -> tuple[DeviceInfo, ...]:
    return Machine().gpus()


def explain() -> str:
    return Machine().explain()


@hookimpl
def lsv_platforms() -> Iterable[PlatformOffer]:
    yield PlatformOffer(
        "cuda",
        "lsv_cuda.platform:CudaPlatform",
        probe,
        rank=100,
        explain=explain,
        emulation="lsv_cuda.emulation:EmulatedCudaPlatform",
        tools=(("nvidia-smi",), ("nvidia-smi", "topo", "-m")),
    )


@hookimpl
def lsv_settings() -> Iterable[Setting]:
    yield Setting(
        name="cuda.graph_rows",
        type="int",
        default=256,
        low=0,
        help="decoding steps of up to so many requests are replayed from captured graphs; 0 captures none",
    )
    yield Setting(
        name="cuda.launch_blocking",
        type="bool",
        default=False,
        env=("CUDA_LAUNCH_BLOCKING",),
        help="wait for every kernel, so that an error is reported where it happens; slow, and captures no graphs",
    )
    yield Setting(
        name="cuda.nccl_debug",
        env=("NCCL_DEBUG",),
        help="how much NCCL logs; TRACE shows which network it takes",
    )
    yield Setting(
        name="cuda.nccl_socket_ifname",
        env=("NCCL_SOCKET_IFNAME",),
        help="network interfaces of NCCL, by the beginnings of their names, or =eth0 for one exactly",
    )
    yield Setting(
        name="cuda.nccl_ib_hca",
        env=("NCCL_IB_HCA",),
        help="InfiniBand adapters of NCCL, such as mlx5 or =mlx5_0:1",
    )
    preload = "NCCL is torch's own, and loaded by then; start lsv with LD_PRELOAD set to another one instead"
    yield neutral("cuda.nccl_so_path", "", instead=preload, env=("VLLM_NCCL_SO_PATH",), platform="cuda")
