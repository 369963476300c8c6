"""A transformers model without its head, run as one layer, and what takes its place inside the model's own forward."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from lsv_models.generic.indexing import IndexCache, Indexing, bind_indexers
from lsv_models.generic.interface import PASS, Attend, scale_of, widen
from lsv_models.generic.scores import Recognised
from lsv_models.generic.wrappers import find_base, find_language_model, is_wrapper
from lsv_runtime.attention import AttentionLayer
from lsv_runtime.attention.chosen import attend_chosen
from lsv_runtime.nn.attention import Attention
from lsv_runtime.nn.step import Step


def find_body(lm: PreTrainedModel) -> str:
    """The name under which a model holds its body: what embeddings of tokens go through up to the head."""
    return find_language_model(lm) if is_wrapper(lm) else find_base(lm)


class Body(nn.Module):
    """The transformers model without its head, as one layer: x [T, hidden] -> normed [T, hidden].

    Many architectures do not pass keyword arguments down to their attention, so each module below can find this one
    (set past ``__setattr__``, which would make it a child), and ``attend`` is set while a pass runs. A model runs one
    pass at a time, and every pass attends by the same calls in the same order: a call's number is its layer.
    """

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base
        self.layers: list[AttentionLayer] = []
        self.called: list[AttentionLayer] = []
        """Those that attend through calls; the others are bound."""
        self.step: Step | None = None
        self.written_out = False
        """Whether attention is not called by transformers' interface, but written out by the modules."""
        self.attend: Attend | None = None
        self.unmasked = self.reaches_all = self.selects = False
        self.positions: torch.Tensor | None = None
        self.offset = _position_offset(base)
        parameters = inspect.signature(base.forward).parameters
        self.takes = frozenset(parameters)
        self.per_layer = _per_layer_inputs(base)
        bind_indexers(base)
        for module in base.modules():
            module.__dict__[PASS] = self
            if "position_ids" not in parameters and _places_tokens(module):
                before = list(inspect.signature(module.forward).parameters).index("position_ids")
                module.register_forward_pre_hook(partial(self._tell_positions, before), with_kwargs=True)

    def place(self, layers: Sequence[AttentionLayer]) -> None:
        """Give attention layers their places in the KV cache."""
        bound = {each.layer.index: each for each in self.modules() if isinstance(each, Attention)}
        for index, attention in bound.items():
            attention.layer = layers[index]
        self.layers, self.called = list(layers), [layer for layer in layers if layer.index not in bound]

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        calls = iter(self.called)

        def attend(
            query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: Mapping[str, Any]
        ) -> torch.Tensor:
            layer, dim = next(calls), value.shape[-1]
            scale = scale_of(call, query.shape[-1])
            if call.get("s_aux") is not None or scale != layer.scale:
                layer = dataclasses.replace(layer, sinks=call.get("s_aux"), scale=scale)
            q, k, v = (widen(heads[0].transpose(0, 1), layer.head_dim) for heads in (query, key, value))
            if layer.gathered and indexing is not None:
                k, v = gather(k, v, layer)
                out = attend_chosen(q, k, v, indexing.choose(call["indices"]), indexing.lengths, layer)
            else:
                out = step.backend.attend(q, k, v, layer, step.cache, step.attention[layer.group])
            return out[None, ..., :dim]

        def gather(k: torch.Tensor, v: torch.Tensor, layer: AttentionLayer) -> tuple[torch.Tensor, torch.Tensor]:
            return step.backend.gather(k, v, layer, step.cache, step.attention[layer.group])

        def keep(key: torch.Tensor) -> torch.Tensor:
            alone = key[0, :, None]
            return gather(alone, alone, next(calls))[0].transpose(0, 1)

        indexing = Indexing(keep, step.backend.lengths(step.attention[0])) if self.selects else None
        self.step = step
        try:
            return self.run(x, step.ids, step.positions, attend, indexing)
        finally:
            self.step = None

    def run(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        positions: torch.Tensor,
        attend: Attend,
        indexing: Indexing | None = None,
    ) -> torch.Tensor:
        """x [T, hidden], ids [T], positions [axes, T]."""
        self.attend, self.positions = attend, positions[0]
        given: dict[str, Any] = {"inputs_embeds": x[None]}
        if "position_ids" in self.takes:
            placed = positions if len(positions) == 1 else positions[:, None]
            given["position_ids"] = placed + self.offset
        if self.reaches_all:
            given["attention_mask"] = x.new_zeros(()).expand(1, 1, len(x), len(x))
        if indexing is not None:
            given["attention_mask"] = indexing.see(x.device)
            given["cache" if "cache" in self.takes else "past_key_values"] = IndexCache(indexing)
        if self.per_layer is not None:
            given["per_layer_inputs"] = self.per_layer(ids[None], x[None])
        try:
            with Recognised(self) if self.written_out else contextlib.nullcontext():
                out = self.base(**given, use_cache=False)
        finally:
            self.attend = self.positions = None
        return out.last_hidden_state[0]  # type: ignore[no-any-return]

    def _tell_positions(
        self, before: int, module: nn.Module, args: Any, given: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """A body that is not told positions has its embeddings count from zero in every step."""
        return args[:before], {**given, "position_ids": self.positions}


def _places_tokens(module: nn.Module) -> bool:
    """Whether a module embeds positions, which it makes up itself unless it is told."""
    return isinstance(module, nn.Embedding) and "position_ids" in inspect.signature(module.forward).parameters


def _position_offset(base: nn.Module) -> int:
    """The first position of a sequence: RoBERTa's kin begin behind that of padding."""
    for module in base.modules():
        if hasattr(module, "create_position_ids_from_inputs_embeds"):
            return int(module.padding_idx) + 1  # type: ignore[arg-type]
    return 0


def _per_layer_inputs(base: nn.Module) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None:
    """What gives the second embedding that Gemma 3n and 4 feed to every layer; None where there is none."""
    get: Any = getattr(base, "get_per_layer_inputs", None)
    if get is None or not getattr(base, "hidden_size_per_layer_input", 1):
        return None
    both = len(inspect.signature(get).parameters) > 1
    return get if both else lambda ids, x: get(ids)


class Hidden:
    """What a body returns: its last hidden states, and None for whatever else a head may ask for."""

    def __init__(self, states: torch.Tensor) -> None:
        self.last_hidden_state = states

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return (self.last_hidden_state,)[index]
        return self.last_hidden_state if index == 0 else None


class PassThrough(nn.Module):
    """Takes the body's place inside the transformers model, so that the model's own forward is just the head."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.__dict__["_base"] = base

    def forward(self, *args: Any, inputs_embeds: torch.Tensor, **kwargs: Any) -> Hidden:
        return Hidden(inputs_embeds)

    @property
    def decoder(self) -> PassThrough:
        """Some heads (OPT's) call the body's inner decoder."""
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_base"], name)
