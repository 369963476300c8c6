"""transformers' attention interface: its modules' calls go to whatever serves the pass they are part of."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lsv_models.generic.refusal import Refused
from lsv_runtime.attention import AttentionLayer

NAME = "lsv_paged"
"""Under which transformers finds this attention."""
PASS = "_lsv_pass"
"""The attribute by which a module finds the pass that it is part of."""
_KNOWN_TENSORS = {"position_ids", "cache_position", "s_aux", "scaling", "indices"}


class Attend(Protocol):
    """Serves one attention call of a transformers module."""

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        call: Mapping[str, Any],
    ) -> torch.Tensor:
        """query [1, heads, T, dim], key and value [1, kv_heads, T, dim] -> [1, T, heads, dim of value]."""
        ...


class Pass(Protocol):
    """A pass over a model's layers."""

    attend: Attend | None
    unmasked: bool
    """Whether a module would have left it to a mask that tokens see no later ones."""
    reaches_all: bool
    """Whether masks that modules bring are known to hide nothing that came before."""
    selects: bool
    """Whether queries choose the tokens they see; masks then are those that the pass was given."""


def _attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *unused: Any,
    **call: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function that transformers calls."""
    current: Pass = module.__dict__[PASS]
    check_mask(current, attention_mask)
    if call.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        current.unmasked = True
    assert current.attend is not None, "attention is called from within a pass only"
    if current.reaches_all:
        call.pop("indices", None)  # those of all tokens
    return current.attend(query, key, value, call), None


def check_mask(current: Pass, mask: Any) -> None:
    """Raise ``Refused`` for a mask that a module brings and that a pass can't know."""
    if mask is not None and not (current.reaches_all or current.selects):
        raise Refused("it brings an attention mask of its own")


ALL_ATTENTION_FUNCTIONS.register(NAME, _attend)


class Probe:
    """Serves one pass on meta and records what is asked for, call by call: each call is a layer of its own."""

    def __init__(self) -> None:
        self.layers: list[AttentionLayer] = []

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        call: Mapping[str, Any],
    ) -> torch.Tensor:
        _, heads, tokens, dim = query.shape
        if key.shape[-1] != dim or key.shape[:3] != value.shape[:3] or key.shape[2] != tokens:
            raise Refused("its queries, keys and values differ in number")
        strange = {name for name, given in call.items() if isinstance(given, torch.Tensor)} - _KNOWN_TENSORS
        if strange:
            raise Refused(f"its attention takes {', '.join(sorted(strange))}")
        self.layers.append(
            AttentionLayer(
                len(self.layers), heads, key.shape[1], max(dim, value.shape[-1]), scale_of(call, dim),
                window=call.get("sliding_window"), soft_cap=call.get("softcap"), sinks=call.get("s_aux"),
                gathered=call.get("indices") is not None,
            )
        )  # fmt: skip
        return query.new_empty(1, tokens, heads, value.shape[-1])

    def place(self, layer: AttentionLayer) -> AttentionLayer:
        """A layer that attends by itself, with its number."""
        self.layers.append(dataclasses.replace(layer, index=len(self.layers)))
        return self.layers[-1]

    def keep(self, key: torch.Tensor) -> torch.Tensor:
        """An indexer's keys [1, T, dim], which are cached in a layer of their own."""
        self.layers.append(AttentionLayer(len(self.layers), 1, 1, key.shape[-1], 1.0, gathered=True))
        return key


def scale_of(call: Mapping[str, Any], dim: int) -> float:
    """What products of queries and keys are multiplied by; 1 where only a tensor on meta says it."""
    scale = call.get("scaling")
    if scale is None:
        return float(dim**-0.5)
    return 1.0 if isinstance(scale, torch.Tensor) and scale.is_meta else float(scale)


def widen(heads: torch.Tensor, dim: int) -> torch.Tensor:
    """Heads [..., size] with zeros behind, up to ``dim``: they change neither scores nor what is read of values."""
    return heads if heads.shape[-1] == dim else functional.pad(heads, (0, dim - heads.shape[-1]))
