"""Weights in e4m3 under activations that become e4m3 by a stored scale, one for all of a layer (static W8A8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from lsv_base.errors import CheckpointError
from lsv_quant.checkpoints.stored import CodedFormat, Decode, StoredCoded
from lsv_runtime.weights.codebook import Codebook
from lsv_runtime.weights.quantizer import Linear, LinearLayer, StoredTensor
from lsv_runtime.weights.static_coded import StaticCodedLinear


class StoredStatic(StaticCodedLinear, StoredCoded):
    """Takes the scale of its activations from the stored tensor ``scale_suffix``."""

    scale_suffix: str

    def filled(self) -> None:
        stored = self.release_stored()
        self.keep("input_scale", self._find_scale(stored.pop(self.scale_suffix)))
        self.hold(*self.decode(stored, self.layer))

    def _find_scale(self, stored: torch.Tensor) -> torch.Tensor:
        """float32 [1]: the largest of all fused parts. They have the same input, so calibration gives them the same.

        Raises ``CheckpointError`` for a scale of 0.
        """
        if not bool(stored.all()):
            raise CheckpointError(
                f"{self.layer.tensor_name(self.scale_suffix)} is 0: activations can't be rounded by it"
            )
        return stored.float().amax().reshape(1)


class StaticFormat(CodedFormat):
    """``CodedFormat`` of layers that also store the scale of their activations, as ``scale_suffix``."""

    def __init__(
        self, name: str, codebook: Codebook, tensors: Sequence[StoredTensor], decode: Decode, scale_suffix: str
    ) -> None:
        scale = StoredTensor(scale_suffix, torch.float32)
        super().__init__(name, codebook, (*tensors, scale), decode)
        self._scale_suffix = scale_suffix

    def build(self, layer: LinearLayer, tensors: Mapping[str, nn.Parameter]) -> Linear:
        made = StoredStatic(layer, tensors, self.codebook, self.decode)
        made.scale_suffix = self._scale_suffix
        return made
