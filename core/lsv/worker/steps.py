"""Runs a batch through the model: host arrays to the device, attention plans, the layers, the head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lsv.attention import AttentionBackend
from lsv.kv.spec import KVGroup
from lsv.nn import model as nn_model
from lsv.nn.model import Model
from lsv.nn.step import Step
from lsv.platform import Device, Shape, ShapePolicy
from lsv.worker.inputs import Batch, dummy_batch

Run = Callable[[Model, Step], Tensor]


@dataclass(slots=True)
class Steps:
    """A filled model with its cache; ``compiled`` holds the faster forms of shapes that were warmed up."""

    model: Model
    backend: AttentionBackend
    groups: Sequence[KVGroup]
    cache: Any
    device: Device
    compiled: dict[Shape, Run]

    def run(self, batch: Batch, places: npt.NDArray[np.int64]) -> tuple[Tensor, Step]:
        """Compute the batch; the normed hidden states [len(places), hidden] of the tokens at ``places``."""
        step = Step(
            ids=self._put(batch.ids),
            positions=self._put(batch.positions).unsqueeze(0),
            backend=self.backend,
            attention=tuple(self.backend.plan(batch.layout, group) for group in self.groups),
            cache=self.cache,
            logits_rows=self._put(places),
        )
        run = self.compiled.get(batch.shape, nn_model.run)
        return run(self.model, step), step

    def warm_up(self, policy: ShapePolicy, report: Callable[[int, int], None]) -> None:
        """Compile and run every shape the platform wants ready, on the null page, through to the logits."""
        for done, shape in enumerate(policy.warmup(), start=1):
            batch = dummy_batch(shape, len(self.groups))
            self.compiled[batch.shape] = self.device.compile(nn_model.run, shape)
            hidden, step = self.run(batch, batch.last)
            self.model.head(hidden, step)
            report(done, done)
        self.device.synchronize()

    def _put(self, values: npt.NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(values).to(self.device.torch_device, non_blocking=True)
