"""Whether a class takes weights that are quantised while they are loaded, and a share of its weights as one rank."""

from __future__ import annotations

import msgspec
import torch

from lsv_doctor.models.trials.subject import Finding, Subject
from lsv_runtime.devices.communicator import Communicator, Group
from lsv_runtime.weights.quantizer import PlainLinear
from lsv_runtime.worker.load.declared import Declared, declare

_FORMAT = "fp8"
"""Takes weights of any shape."""


def try_quantised(subject: Subject) -> Finding:
    """Declare it quantised: fewer layers must stay plain."""
    config, catalog = subject.config, subject.catalog
    quantised = declare(msgspec.structs.replace(config, quantization=_FORMAT), catalog)
    if _count_plain(quantised) < _count_plain(declare(config, catalog)):
        return Finding("yes")
    return Finding("no", f"no layer takes weights in {_FORMAT}")


def try_ranks(subject: Subject) -> Finding:
    """Declare it for one of two ranks."""
    declare(subject.config, subject.catalog, communicator=_OneOfTwo())
    return Finding("yes")


def _count_plain(declared: Declared) -> int:
    return sum(isinstance(module, PlainLinear) for module in declared.model.modules())


class _OneOfTwo(Communicator):
    """Stands for a rank beside which there is another."""

    group = Group("tp", (0, 1), 0, "")

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        return x

    def broadcast(self, x: torch.Tensor, source: int = 0) -> torch.Tensor:
        return x

    def self_test(self) -> None:
        pass
