"""The weights of a transformers model, declared: its linear layers and experts become lsv's, the rest stays."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Container
from functools import cache

import torch
from torch import nn
from transformers import PreTrainedModel

from lsv_models.generic.attention import bind_attention, bind_layers
from lsv_models.generic.blocks import bind_blocks
from lsv_models.generic.body import find_body
from lsv_models.generic.experts import bind_experts
from lsv_models.generic.layout import Layout
from lsv_models.generic.parallel import Plan
from lsv_models.generic.refusal import Refused
from lsv_runtime.nn.embed import Embed, Head
from lsv_runtime.weights.place import Weights
from lsv_runtime.weights.quantizer import Unquantised


def declare_weights(w: Weights, lm: PreTrainedModel, layout: Layout, max_len: int | None = None) -> None:
    """Declare all parameters under the names that checkpoints have.

    Attention that is Llama's becomes lsv's, for inputs of up to ``max_len`` tokens; without it, it stays as it is.
    """
    plan, place, shared = Plan(lm, w.shard.size), find_body(lm), find_shared(lm, layout)
    _tie_head(w, lm, layout)
    if max_len is not None:
        bind_attention(w, lm.get_submodule(place), place, layout, plan, max_len)
    bind_blocks(w, lm, layout, plan)
    if max_len is not None:
        bind_layers(lm.get_submodule(place))
    quantised = not isinstance(w.declaration.quantizer, Unquantised)
    adopt_buffers(lm)
    for path, module in find_linears(lm, layout, shared, quantised=quantised):
        role = "head" if module is lm.get_output_embeddings() else "column"
        lm.set_submodule(path, plan.linear(w, path, module, role))
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


class Tokens(nn.Module):
    """Takes the place of a model's embedding: ids int64 [...] -> [..., size]."""

    weight: torch.Tensor
    """Some bodies ask for its dtype, device or shape; it has no numbers."""

    def __init__(self, embed: Embed, device: torch.device) -> None:
        super().__init__()
        self.embed = embed
        # not as a buffer: it takes no memory, and holds no weights
        self.__dict__["weight"] = torch.empty((), dtype=embed.dtype, device=device).expand(embed.width, embed.size)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if ids.is_meta:  # a table that is quantised while loading has no form yet
            return torch.empty(*ids.shape, self.embed.size, dtype=self.embed.dtype, device="meta")
        found = self.embed(ids.flatten(), None)  # it looks at no step
        return found.view(*ids.shape, -1)  # type: ignore[no-any-return]


def tied_modules(lm: PreTrainedModel) -> tuple[nn.Embedding, nn.Linear] | None:
    """The embedding and the head of a model that share their weight."""
    tokens, head = lm.get_input_embeddings(), lm.get_output_embeddings()
    if type(tokens) is not nn.Embedding or type(head) is not nn.Linear or head.weight is not tokens.weight:
        return None
    return tokens, head


def untie_head(w: Weights, lm: PreTrainedModel) -> None:
    """Untie a head that config.json ties, if the checkpoint has its weight. Call it before ``Layout``."""
    tied = tied_modules(lm)
    if tied is not None and f"{_path(lm, tied[1])}.weight" in w.declaration.untied:
        tied[1].weight = nn.Parameter(torch.empty_like(tied[1].weight), requires_grad=False)


def _path(lm: PreTrainedModel, module: nn.Module) -> str:
    return next(path for path, each in lm.named_modules() if each is module)


def _tie_head(w: Weights, lm: PreTrainedModel, layout: Layout) -> None:
    """Replace an embedding and a head that share their weight by lsv's, so that kernels and weight formats apply."""
    tied = tied_modules(lm)
    if tied is None:
        return
    tokens, head = tied
    place, own = _path(lm, tokens), _path(lm, head)
    if layout.spellings.get(f"{own}.weight") == f"{place}.weight":  # the loader compares the two by their names
        del layout.spellings[f"{own}.weight"]
        Weights(w.declaration, own).tie(place)
    names = [name for name, each in lm.named_parameters(remove_duplicate=False) if each is head.weight]
    if len(names) > 2:  # and whatever else shares it would not
        return
    parent, _, name = own.rpartition(".")
    readers = _read_weights(type(lm.get_submodule(parent)))
    if head.bias is not None or name in readers or not layout.is_plain(f"{place}.weight"):
        return
    embed = Embed(Weights(w.declaration, place).replicated(), *tokens.weight.shape)
    made = Head(Weights(w.declaration, own).replicated(), *tokens.weight.shape, tied=embed)
    lm.set_input_embeddings(Tokens(embed, w.device))
    setattr(lm.get_submodule(parent), name, made.linear)


def find_shared(lm: PreTrainedModel, layout: Layout) -> set[int]:
    """The ids of the parameters that several modules hold."""
    return {id(each) for name, each in lm.named_parameters(remove_duplicate=False) if name in layout.spellings}


def find_linears(
    lm: PreTrainedModel, layout: Layout, shared: Container[int], *, quantised: bool
) -> list[tuple[str, nn.Linear]]:
    """The linear layers that lsv's can replace, with their names: none whose weight is one of ``shared``.

    A layer whose weight its owner reads must stay, for a kernel or a weight format may make something else of the
    weight. If ``quantised``, so must a layer whose owner asks for the weight's dtype or device.
    """
    reads = _asked_weights if quantised else _read_weights
    found = []
    for path, module in lm.named_modules():
        parent, _, name = path.rpartition(".")
        if type(module) is not nn.Linear or id(module.weight) in shared:
            continue
        if name not in reads(type(lm.get_submodule(parent))) and layout.is_plain(f"{path}.weight"):
            found.append((path, module))
    return found


@cache
def _read_weights(owner: type[nn.Module]) -> frozenset[str]:
    """The layers whose weights the forward of a class of modules reads; to ask for their dtype is not to read them."""
    found = re.findall(r"self\.(\w+)\.weight\b(?!\.(?:dtype|device)\b)", inspect.getsource(owner.forward))
    return frozenset(found)


@cache
def _asked_weights(owner: type[nn.Module]) -> frozenset[str]:
    """The same, and those whose dtype it asks for, which a weight format does not have."""
    return frozenset(re.findall(r"self\.(\w+)\.weight\b", inspect.getsource(owner.forward)))


def adopt_buffers(lm: nn.Module) -> None:
    """Turn the buffers that checkpoints hold into parameters, so that they are filled like weights."""
    for module in lm.modules():
        for key in module._buffers.keys() - module._non_persistent_buffers_set:
            buffer = module._buffers[key]
            if buffer is not None:  # what weight formats leave out stays readable
                del module._buffers[key]
                setattr(module, key, nn.Parameter(buffer, requires_grad=False))
