"""Reading heads: tensors of a checkpoint by name, and the numbers of its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lsv_base.errors import CheckpointError
from lsv_runtime.weights.checkpoint import CheckpointSource, SafetensorsSource
from lsv_runtime.weights.pickled import PickledSource, pickled_files
from lsv_runtime.weights.quantizer import LinearLayer, PlainLinear


def open_heads(folder: Path) -> CheckpointSource:
    if not any(folder.glob("*.safetensors")) and pickled_files(folder):
        return PickledSource(folder)
    return SafetensorsSource(folder)


def number(config: Mapping[str, Any], *keys: str) -> int:
    """The number from 1 on that stands under the first of ``keys`` that there is. Raises ``CheckpointError``."""
    key = next((key for key in keys if key in config), keys[0])
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(f"the heads' config.json: {key} must be a whole number from 1 on")
    return value


class Tensors:
    """The tensors of heads by name, without a prefix that some writers put before them; each is read once."""

    def __init__(self, source: CheckpointSource, dtype: torch.dtype, device: torch.device, *prefixes: str) -> None:
        self._source, self._dtype, self._device = source, dtype, device
        self._own: dict[str, str] = {}
        for name in source.tensors():
            prefix = next((prefix for prefix in prefixes if name.startswith(prefix)), "")
            self._own[name.removeprefix(prefix)] = name
        self._read: dict[str, Tensor] = {}
        self._layers: dict[str, PlainLinear] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._own

    def rows(self, name: str) -> int:
        """How many rows a tensor has. Raises ``CheckpointError``."""
        return int(self._source.tensors()[self._name(name)].shape[0])

    def read(self, name: str, shape: tuple[int, ...], scale: float = 1.0) -> Tensor:
        """Times ``scale``, on the device. Raises ``CheckpointError`` where it lacks, or has another shape."""
        if name not in self._read:
            tensor = self.read_plain(name, shape)
            self._read[name] = (tensor.float() * scale).to(self._device, self._dtype).contiguous()
        return self._read[name]

    def linear(self, name: str, outputs: int, inputs: int, rows: Tensor | None = None) -> PlainLinear:
        """The layer ``name``, with a bias where there is one; of all its outputs, or of ``rows`` int64 alone. It is the
        same each time. Raises ``CheckpointError``.
        """
        if name not in self._layers:
            weight = self.read(f"{name}.weight", (outputs, inputs))
            bias = self.read(f"{name}.bias", (outputs,)) if f"{name}.bias" in self else None
            if rows is not None:
                weight, bias = weight[rows], None if bias is None else bias[rows]
            layer = LinearLayer(name, "column", inputs, (len(weight),), bias is not None, self._dtype)
            self._layers[name] = PlainLinear(layer, _fixed(weight), None if bias is None else _fixed(bias))
        return self._layers[name]

    def read_plain(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """As it is stored, on the CPU."""
        own = self._name(name)
        found = tuple(self._source.tensors()[own].shape)
        if found != shape:
            raise CheckpointError(f"the heads' {own} has shape {found}, and needs {shape}")
        return self._source.read(own, 0, shape[0])

    def _name(self, name: str) -> str:
        if name not in self._own:
            raise CheckpointError(f"the heads' checkpoint has no tensor {name}")
        return self._own[name]


def _fixed(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)
