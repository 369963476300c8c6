"""Plans the bytes of a model's weights before any is read, because formats made while loading need fewer."""

from __future__ import annotations

import copy
from collections import Counter
from typing import TypeVar

import torch
from torch import nn

from lsv_runtime.nn.embed import Embed
from lsv_runtime.ops import Bindable
from lsv_runtime.weights.quantizer import Linear

Module = TypeVar("Module", bound=nn.Module)


def planned_bytes(model: nn.Module) -> int:
    """Bytes of all weights of a model declared on meta, after they are filled and packed.

    What a format saves by looking at the values of weights is not counted.
    """
    keepers = (module for module in model.modules() if not (isinstance(module, Embed) and module.looks_up))
    holders = Counter(id(tensor) for module in keepers for tensor in _tensors(module, recurse=False))
    filled: dict[object, int | None] = {}
    total = sum(tensor.nbytes for tensor in _tensors(model))
    total += sum(module.made_bytes() for module in model.modules() if isinstance(module, Bindable))
    for module in model.modules():
        if not isinstance(module, Linear):
            continue
        read = _tensors(module)
        # a plain weight stays with an embedding that does not look its rows up in the format
        released = sum(tensor.nbytes for tensor in read if holders[id(tensor)] == 1)
        after: int | None = released
        if module.made_while_loading:
            key = (type(module), module.layer.outputs, tuple((tuple(one.shape), one.dtype) for one in read))
            if key not in filled:
                filled[key] = _try_filling(module)
            after = filled[key]
        packed = None
        if module.kernel is not None and (module.made_while_loading or all(holders[id(one)] == 1 for one in read)):
            packed = module.kernel.packed_bytes()
        kept = after if packed is None else packed
        if kept is not None:
            total += kept - released
    return total


def _try_filling(module: Linear) -> int | None:
    """The bytes of a filled layer, measured on a meta copy; None if its format needs the weights' values."""
    tried, released = _copy(module), set[str]()

    def release(name: str) -> torch.Tensor:
        released.add(name)
        tensor = getattr(tried, name)
        assert isinstance(tensor, torch.Tensor)
        return tensor.detach()

    tried.__dict__["release"] = release
    try:
        tried.filled()
    except Exception:  # whatever a format raises without values
        return None
    kept = {**dict(tried.named_parameters()), **dict(tried.named_buffers())}
    return sum(tensor.nbytes for name, tensor in kept.items() if name not in released)


def _copy(module: Module) -> Module:
    """A copy of the module without bound kernels, because native kernels read memory that meta tensors lack."""
    made = copy.copy(module)
    made.__dict__ = {name: value for name, value in vars(module).items() if name not in ("kernel", "forward")}
    made._parameters, made._buffers = dict(module._parameters), dict(module._buffers)
    made._modules = {name: None if one is None else _copy(one) for name, one in module._modules.items()}
    return made


def _tensors(module: nn.Module, *, recurse: bool = True) -> list[torch.Tensor]:
    """Each tensor once."""
    return [*module.parameters(recurse), *module.buffers(recurse)]
