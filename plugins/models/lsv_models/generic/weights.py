"""The weights of a transformers model, declared: its linear layers and experts become lsv's, the rest stays."""

from __future__ import annotations

import math

from torch import nn
from transformers import PreTrainedModel

from lsv.weights.place import Weights
from lsv_models.generic.experts import bind_experts
from lsv_models.generic.layout import Layout
from lsv_models.generic.parallel import Plan
from lsv_models.generic.refusal import Refused


def declare_weights(w: Weights, lm: PreTrainedModel, layout: Layout) -> None:
    """Declare all parameters under the names that checkpoints have."""
    plan = Plan(lm, w.shard.size)
    shared = {id(lm.get_parameter(name)) for name in layout.spellings}
    for path, module in list(lm.named_modules()):
        if type(module) is nn.Linear and id(module.weight) not in shared and layout.is_plain(f"{path}.weight"):
            role = "head" if module is lm.get_output_embeddings() else "column"
            parent, _, name = path.rpartition(".")
            setattr(lm.get_submodule(parent), name, plan.linear(w, path, module, role))
        for key in module._buffers.keys() - module._non_persistent_buffers_set:
            _as_parameter(module, key)
    bind_experts(w, lm, layout)
    declared = {id(slot.parameter) for slot in w.declaration.slots}
    for name, parameter in lm.named_parameters():
        if id(parameter) not in declared:
            if plan.style(name) == "colwise":
                raise Refused(f"{name} would have to be split over ranks; use tensor_parallel_size 1")
            parameter.requires_grad_(False)
            pieces = layout.pieces(name)
            if sum(math.prod(part.stop - part.start for part in piece.target) for piece in pieces) != parameter.numel():
                raise Refused(f"checkpoints hold only a part of {name}")
            w.adopt(parameter, pieces, exact=not parameter.is_floating_point())


def _as_parameter(module: nn.Module, key: str) -> None:
    """Turn a buffer that checkpoints hold into a parameter, so that it is filled like a weight."""
    buffer = module._buffers.pop(key)
    if buffer is not None:
        setattr(module, key, nn.Parameter(buffer, requires_grad=False))
