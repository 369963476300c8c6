"""Who makes GPUs that torch knows as ``cuda``, and what tells theirs apart: drivers, builds of torch, tools."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Maker:
    """A maker of GPUs, and the software that a torch is built with for them."""

    name: str
    build: str
    """The attribute of ``torch.version`` that such a build of torch has."""

    software: str
    """What users call it."""

    index: str
    """A wheel index of PyTorch's with such builds."""

    driver_files: tuple[str, ...]
    """Below the root; the first one says the driver's version."""

    tool: str
    visible: str
    """The variable that hides GPUs from a process."""

    container: str
    """What hands GPUs to a container."""

    @property
    def driver(self) -> str:
        return f"an {self.name} driver"


NVIDIA = Maker(
    name="NVIDIA",
    build="cuda",
    software="CUDA",
    index="/cu130",
    driver_files=("proc/driver/nvidia/version", "dev/nvidiactl", "dev/dxg"),
    tool="nvidia-smi",
    visible="CUDA_VISIBLE_DEVICES",
    container="--gpus all",
)
AMD = Maker(
    name="AMD",
    build="hip",
    software="ROCm",
    index="/rocm7.1",
    driver_files=("sys/module/amdgpu/version", "dev/kfd"),
    tool="amd-smi",
    visible="HIP_VISIBLE_DEVICES",
    container="--device /dev/kfd --device /dev/dri",
)
