"""The dense layers that sentence-transformers leaves beside a checkpoint, which vectors go through."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from lsv.request.pooling import Pooler
from lsv.resolve.locate import read_config
from lsv_base.errors import CheckpointError
from lsv_runtime.nn.pooling.states import Pool, Step
from lsv_runtime.weights.checkpoint import SafetensorsSource
from lsv_runtime.weights.pickled import PickledSource, pickled_files

_ACTIVATIONS: dict[str, Step] = {
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "ReLU": functional.relu,
    "GELU": functional.gelu,
    "Sigmoid": torch.sigmoid,
    "SiLU": functional.silu,
}


def make_pool(pooler: Pooler, folder: str, scorer: nn.Module | None, device: torch.device) -> Pool:
    """What a model's states go through. Raises ``CheckpointError``."""
    return Pool(pooler, scorer, [load_dense(Path(folder) / name, device) for name in pooler.dense])


def load_dense(folder: Path, device: torch.device) -> Step:
    """A ``Dense`` module of sentence-transformers, in float32. Raises ``CheckpointError``."""
    config = read_config(folder, {})
    name = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    if name not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise CheckpointError(f"{folder}/config.json: activation_function {name:.100} is not one of {known}")
    pickled = not any(folder.glob("*.safetensors")) and pickled_files(folder)
    source = PickledSource(folder) if pickled else SafetensorsSource(folder)
    try:
        weight, bias = (
            source.read(key, 0, info.shape[0]).float().clone().to(device) if info else None
            for key in ("linear.weight", "linear.bias")
            for info in (source.tensors().get(key),)
        )
    finally:
        source.close()
    if weight is None or weight.ndim != 2:
        raise CheckpointError(f"{folder} has no linear.weight, which a dense layer is made of")
    activate = _ACTIVATIONS[name]
    return lambda x: activate(functional.linear(x.float(), weight, bias))
