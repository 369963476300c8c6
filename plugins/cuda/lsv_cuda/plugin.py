"""``cuda`` and ``rocm``: NVIDIA's and AMD's GPUs."""

from __future__ import annotations

from collections.abc import Iterable

from lsv import hookimpl
from lsv.offers import AttentionOffer, CommandOffer, PlatformOffer
from lsv.settings import Setting
from lsv.settings.neutral import neutral
from lsv_cuda import libraries
from lsv_cuda.machine import Machine
from lsv_cuda.makers import AMD, NVIDIA

api = 2


@hookimpl
def lsv_platforms() -> Iterable[PlatformOffer]:
    nvidia, amd = Machine(maker=NVIDIA), Machine(maker=AMD)
    yield PlatformOffer(
        "cuda",
        "lsv_cuda.platform:CudaPlatform",
        nvidia.gpus,
        rank=100,
        explain=nvidia.explain,
        emulation="lsv_cuda.emulation:EmulatedCudaPlatform",
        tools=(("nvidia-smi",), ("nvidia-smi", "topo", "-m")),
    )
    yield PlatformOffer(
        "rocm",
        "lsv_cuda.platform:RocmPlatform",
        amd.gpus,
        rank=95,
        explain=amd.explain,
        emulation="lsv_cuda.emulation:EmulatedRocmPlatform",
        tools=(("amd-smi", "static"), ("amd-smi", "topology")),
    )


@hookimpl
def lsv_commands() -> Iterable[CommandOffer]:
    yield CommandOffer("nsys", "lsv_cuda.nsys:run", "run another command under Nsight Systems, which records on demand")


@hookimpl
def lsv_attention() -> Iterable[AttentionOffer]:
    """None of them says that a row's bits are the same in other company. flash-attn 2 has pages of 256 tokens."""
    sizes, both = (64, 16, 32, 128, 256), ("cuda", "rocm")
    offers = (
        ("flash-attn-3", "flash_attn.attention:FlashAttention3", sizes, ("cuda",), libraries.missing_flash_attn_3),
        ("flashinfer", "flashinfer.attention:FlashInferAttention", sizes, ("cuda",), libraries.missing_flashinfer),
        ("flash-attn", "flash_attn.attention:FlashAttention2", (256,), both, libraries.missing_flash_attn_2),
    )
    for name, load, blocks, platforms, missing in offers:
        vendor = "FLASHINFER" if name == "flashinfer" else "FLASH_ATTN"
        caches = ("auto", "fp8_e4m3", "fp8_e5m2") if name == "flashinfer" else ("auto",)
        for suffix, lack, aliases in (("", missing, (vendor, f"{vendor}_VLLM_V1")), ("-emulated", None, ())):
            yield AttentionOffer(
                name + suffix,
                f"lsv_cuda.{load}",
                blocks,
                platforms,
                missing=lack,
                dtypes=("bfloat16", "float16"),
                kv_dtypes=caches,
                aliases=aliases,
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
        name="cuda.graph_tokens",
        type="int",
        default=512,
        low=0,
        help="steps with prompts of up to so many tokens are replayed from captured graphs, where attention allows; 0 "
        "captures none",
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
        help="log level of NCCL; TRACE shows which network it uses",
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
    yield Setting(
        name="cuda.emulated_kernels",
        default="none",
        choices=tuple(libraries.EMULATED),
        help="the library of attention of --emulate, answered by a fake: none, flashinfer, flash-attn, flash-attn-3",
    )
    preload = "NCCL is torch's own, and loaded by then; start lsv with LD_PRELOAD set to another one instead"
    yield neutral("cuda.nccl_so_path", "", instead=preload, env=("VLLM_NCCL_SO_PATH",), platform="cuda", tolerant=True)
