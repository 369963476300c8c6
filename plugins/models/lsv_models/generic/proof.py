"""The proof that an architecture runs as transformers runs it, on a small copy of it and before weights are read.

An architecture may do what the adapter can't know of: count positions by itself, keep a state, look at all tokens of
an input at once. So a copy with few narrow layers and random weights is run both ways, in float32 on the host: by
transformers' own forward on whole inputs, and by the adapter on pieces of them, two inputs in changing company.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from lsv_models.generic.body import find_body
from lsv_models.generic.building import decode, make_model, parse
from lsv_models.generic.indexing import bind_indexers
from lsv_models.generic.miniature import VOCABULARY, shrink
from lsv_models.generic.refusal import Refused
from lsv_models.generic.wrappers import drop_towers, find_headed, is_flat, is_wrapper
from lsv_runtime.attention import AttentionLayer
from lsv_runtime.attention.chosen import Lengths
from lsv_runtime.attention.dense import attend_dense
from lsv_runtime.nn.model import Model, run_to_logits
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.checkpoint import RenamedSource, TensorInfo
from lsv_runtime.weights.fill import Filler
from lsv_runtime.weights.place import Declaration, Weights
from lsv_runtime.weights.quantizer import Unquantised

Make = Callable[[Weights, PreTrainedConfig, int], Any]
"""(weights, config.json, longest input) -> the adapted model."""
Piece = tuple[int, int]
"""(number of an input, its next tokens)."""

TOLERANCE = 1e-4
_LENGTHS = (29, 17)
_STEPS: Sequence[Sequence[Piece]] = (((0, 11),), ((0, 1), (1, 9)), ((1, 1), (0, 10)), ((0, 7), (1, 7)))
_SPREADS = (0.2, 0.1)
_SPECIAL = ("_token_id", "_token_index")
_MOST_WEIGHTS = 100_000_000

_proved: dict[str, str] = {}
"""What was found of a small config.json: nothing, or why it does not run."""


def prove(config: PreTrainedConfig, make: Make) -> None:
    """Raise ``Refused`` unless a small copy of a config.json runs through the adapter as through transformers."""
    small = _copy_small(config)
    key = small.to_json_string(use_diff=False)
    if key not in _proved:
        _proved[key] = _try(small, make)
    if _proved[key]:
        raise Refused(_proved[key])


def _copy_small(config: PreTrainedConfig) -> PreTrainedConfig:
    """A small copy of a config.json. That of a wrapper is small in its language model; the copy runs no tower."""
    text = config.get_text_config()
    name = next((name for name in config.sub_configs if getattr(config, name, None) is text), None)
    whole = json.loads(text.to_json_string(use_diff=False))  # with what a config.json leaves out
    if name is None:
        whole["architectures"] = config.architectures
        return parse(decode(shrink(whole)), 0)
    small, inner = copy.deepcopy(config), type(text).from_dict(decode(shrink(whole)))
    setattr(small, name, inner)
    for key, value in vars(config).items():  # sizes that the wrapper repeats
        if type(value) is int and value == getattr(text, key, None):
            setattr(small, key, getattr(inner, key))
    return small


def _try(small: PreTrainedConfig, make: Make) -> str:
    """Why a small copy does not run as it should; an empty string if it does."""
    gaps = []
    for seed, spread in enumerate(_SPREADS):  # rounding may choose another expert, and recurrence makes it grow
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                reference = _make_reference(small, spread)
                inputs = _draw_inputs(small)
                expected = _run_all(reference, inputs)
            except Exception as cause:
                failed = "no small copy of it can be tried on text alone: transformers' own code fails with"
                return f"{failed} {cause!r:.300}"
            model = _adapt(reference, small, make)
            found = _run_pieces(model, inputs)
        largest = max(1.0, *(float(logits.abs().max()) for logits in expected))
        gap = max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True)) / largest
        if gap <= TOLERANCE:
            return ""
        gaps.append(gap)
    if model.body.unmasked:
        return "its attention looks ahead"
    return (
        f"a small copy of it computes something else in pieces than at once (logits differ by {min(gaps):.1e} of the "
        "largest): it keeps more than keys and values, or places tokens in a way that is not known here"
    )


def _make_reference(small: PreTrainedConfig, spread: float) -> PreTrainedModel:
    """transformers' model of a small config.json, with random weights that let positions and layers show."""
    with torch.device("meta"):
        model = make_model(small, torch.float32, "eager")
        if is_wrapper(model):
            drop_towers(model, find_body(model))
    count = sum(each.numel() for each in model.parameters())
    if count > _MOST_WEIGHTS:
        raise Refused(f"{count} weights are left of it")
    if is_wrapper(model) and not is_flat(model, find_body(model)):
        _materialise(model)
    else:
        model = make_model(small, torch.float32, "eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.is_floating_point():
                parameter.normal_(1.0 if parameter.ndim == 1 and not name.endswith("bias") else 0.0, spread)
    bind_indexers(model)  # it chooses among equals as the adapter does
    return model.eval()


def _materialise(wrapper: PreTrainedModel) -> None:
    """Give a wrapper on meta, whose towers are dropped, storage on the host: to its language model by building that
    anew, so that its buffers are what transformers makes them.
    """
    place = find_body(wrapper)
    base: Any = wrapper.get_submodule(place)
    built = type(base)._from_config(
        base.config, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    )
    wrapper.set_submodule(place, built)
    for module in wrapper.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.is_meta:
                module._parameters[name] = torch.nn.Parameter(torch.empty_like(parameter, device="cpu"))
    wrapper.tie_weights()


def _draw_inputs(small: PreTrainedConfig) -> list[torch.Tensor]:
    """Random tokens, none of which is special."""
    text = small.get_text_config()
    known = [*vars(small).items(), *vars(text).items()]
    special = {value for key, value in known if key.endswith(_SPECIAL) and isinstance(value, int)}
    size = min(VOCABULARY, getattr(text, "vocab_size", None) or VOCABULARY)
    plain = torch.tensor([token for token in range(size) if token not in special])
    return [plain[torch.randint(len(plain), (length,))] for length in _LENGTHS]


def _run_all(reference: PreTrainedModel, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The logits [length, vocab] of each input, by the model's own forward. A wrapper whose forward needs more than
    text leaves text to the model with a head that it holds.
    """
    try:
        return [_run_whole(reference, ids) for ids in inputs]
    except Exception:
        headed = find_headed(reference, find_body(reference))
        if not headed:
            raise
        return [_run_whole(reference.get_submodule(headed), ids) for ids in inputs]


@torch.inference_mode()
def _run_whole(reference: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return reference(input_ids=ids[None], use_cache=False).logits[0]  # type: ignore[no-any-return]


class _Memory:
    """A model's own tensors, in the form in which transformers saves them."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.held: dict[str, torch.Tensor] = revert_weight_conversion(model, model.state_dict())

    def tensors(self) -> Mapping[str, TensorInfo]:
        return {name: TensorInfo(tuple(each.shape), each.dtype) for name, each in self.held.items()}

    def read(self, name: str, first: int, last: int) -> torch.Tensor:
        each = self.held[name]
        return each[first:last] if each.ndim else each

    def close(self) -> None:
        """Nothing is open."""


def _adapt(reference: PreTrainedModel, small: PreTrainedConfig, make: Make) -> Any:
    """The adapted model with the reference's weights."""
    host = torch.device("cpu")
    declaration = Declaration(torch.float32, host, Unquantised())
    model = make(Weights(declaration), small, max(_LENGTHS)).eval()
    filler = Filler(model, declaration.slots, (".*",))
    filler.fill(RenamedSource(_Memory(reference), model.rename), host)
    return model


class _Kept:
    """An attention backend that keeps what it was given; a plan is the pieces of the step. ``done`` are the tokens of
    each input before it.
    """

    def __init__(self, done: Sequence[int]) -> None:
        self.done = done
        self.keys: dict[tuple[int, int], torch.Tensor] = {}
        self.values: dict[tuple[int, int], torch.Tensor] = {}

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: AttentionLayer,
        cache: Any,
        plan: Sequence[Piece],
    ) -> torch.Tensor:
        rows = q.split([count for _, count in plan])
        known = zip(rows, *self._keep(k, v, layer, plan), strict=True)
        return torch.cat([attend_dense(own, keys, values, layer) for own, keys, values in known])

    def lengths(self, plan: Sequence[Piece]) -> Lengths:
        counts = [count for _, count in plan]
        context = [self.done[number] + count for number, count in plan]
        return np.cumsum([0, *counts], dtype=np.int32), np.array(context, np.int32)

    def gather(
        self, k: torch.Tensor, v: torch.Tensor, layer: AttentionLayer, cache: Any, plan: Sequence[Piece]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self._keep(k, v, layer, plan)
        return torch.cat(keys), torch.cat(values)

    def _keep(
        self, k: torch.Tensor, v: torch.Tensor, layer: AttentionLayer, plan: Sequence[Piece]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Keys and values of each row, with those before."""
        first = 0
        for number, count in plan:
            rows, key = slice(first, first + count), (layer.index, number)
            self.keys[key] = torch.cat([*_known(self.keys, key), k[rows]])
            self.values[key] = torch.cat([*_known(self.values, key), v[rows]])
            first += count
        keys = [(layer.index, number) for number, _ in plan]
        return [self.keys[key] for key in keys], [self.values[key] for key in keys]


def _known(kept: Mapping[tuple[int, int], torch.Tensor], key: tuple[int, int]) -> list[torch.Tensor]:
    return [kept[key]] if key in kept else []


def _run_pieces(model: Model, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The logits [length, vocab] of inputs that are computed piece by piece."""
    done, found = [0] * len(inputs), [[] for _ in inputs]  # type: ignore[var-annotated]
    backend: Any = _Kept(done)
    for pieces in _STEPS:
        ids = torch.cat([inputs[number][done[number] :][:count] for number, count in pieces])
        positions = torch.cat([torch.arange(done[number], done[number] + count) for number, count in pieces])
        step = Step(ids, positions[None], backend, (pieces,), None, torch.arange(len(ids)))
        _, logits = run_to_logits(model, step)
        for (number, count), part in zip(pieces, logits.split([count for _, count in pieces]), strict=True):
            found[number].append(part)
            done[number] += count
    return [torch.cat(parts) for parts in found]
