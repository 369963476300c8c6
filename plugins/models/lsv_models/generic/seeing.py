"""Wrappers of transformers with their images: transformers' own tower, beside a language model that lsv runs.

The encoder runs the wrapper's own forward over the tokens of one image, and takes what goes to the language model. So
it needs to know neither how a family projects what its tower sees, nor which tokens stand between the rows.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel

from lsv.offers import load_object
from lsv.resolve.architecture.halves import architectures_of, read_half
from lsv_base.errors import BadRequest, LsvError
from lsv_models.families import read_families
from lsv_models.generic.body import PassThrough
from lsv_models.generic.building import decode, make_model, name_architecture, parse
from lsv_models.generic.layout import Layout
from lsv_models.generic.model import Adapted, ignored
from lsv_models.generic.parallel import Plan
from lsv_models.generic.proof import prove
from lsv_models.generic.refusal import Refused, refuse
from lsv_models.generic.ropes import make_own_buffers
from lsv_models.generic.weights import adopt_buffers, find_linears, find_shared
from lsv_models.generic.wrappers import drop, find_base, find_language_model
from lsv_models.plugin import lsv_models
from lsv_models.seeing_offers import MUTUAL
from lsv_runtime import products
from lsv_runtime.nn.model import Encoder, Model
from lsv_runtime.nn.rope import InterleavedMRope, MRope, PairMRope, PairRope, Rope
from lsv_runtime.ops import dtype_name
from lsv_runtime.weights.place import Weights
from lsv_runtime.weights.quantizer import Unquantised

log = logging.getLogger(__name__)

IDS, SPAN = "ids", "span"
"""Inputs of the encoder: the tokens that stand for an image, and the first and last of these that get a row."""
_KNOWN = ("attention_mask", "position_ids", "per_layer_inputs", "cache_position", "logits_to_keep")
"""What a language model may be given beside rows."""
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_OTHERS = ("audio", "speech", "sound", "video", "vqmodel", "generation")
"""Words in the names of modules that images do not go through."""


class Embedded(Exception):
    """Ends a wrapper's forward where its language model would begin."""

    def __init__(self, rows: torch.Tensor, ids: torch.Tensor | None) -> None:
        super().__init__()
        self.rows, self.ids = rows, ids


class StandIn(PassThrough):
    """Takes the language model's place in a wrapper, to see what it is given."""

    def forward(self, *args: Any, inputs_embeds: torch.Tensor, **given: Any) -> Any:
        _check_causal(given.get("attention_mask"))
        beside = [name for name, value in given.items() if name not in _KNOWN and _holds_numbers(value)]
        if beside:
            raise Refused(f"its language model takes {', '.join(beside)} beside the rows of an image")
        raise Embedded(inputs_embeds, given.get("per_layer_inputs"))

    def get_per_layer_inputs(self, ids: torch.Tensor, *args: Any) -> torch.Tensor:
        """The tokens of which a language model that reads them in its layers, too, makes what these take."""
        return ids


def _holds_numbers(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or (isinstance(value, list | tuple) and any(map(_holds_numbers, value)))


def _check_causal(mask: Any) -> None:
    """Raise ``Refused`` for masks [..., queries, keys] that let a token see later ones."""
    if isinstance(mask, Mapping):
        for each in mask.values():
            _check_causal(each)
    elif isinstance(mask, torch.Tensor) and mask.ndim == 4 and mask.shape[2] == mask.shape[3]:
        seen = mask if mask.dtype == torch.bool else mask == 0
        if bool(seen.triu(1).any()):
            raise Refused(MUTUAL)


class Tokens(nn.Module):
    """Takes the place of the wrapper's embedding: ids int64 [...] -> [..., size]."""

    def __init__(self, embed: Any, table: torch.Tensor, device: torch.device) -> None:
        super().__init__()
        # not as parts of this module: the weights are the language model's
        self.__dict__["embed"] = embed
        self.__dict__["weight"] = torch.empty((), dtype=table.dtype, device=device).expand(table.shape)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.__dict__["embed"](ids.flatten(), None)[:, : self.__dict__["weight"].shape[1]]
        return rows.unflatten(0, ids.shape)  # type: ignore[no-any-return]


class WrapperEncoder(Encoder):
    """The towers of a wrapper. Its inputs are what the wrapper's processor makes of an image, ``IDS`` and ``SPAN``."""

    parts = 1

    def __init__(self, w: Weights, wrapper: PreTrainedModel, embed: Any) -> None:
        super().__init__()
        self.dtype, self.__dict__["embed"] = w.dtype, embed
        self.placed = "position_ids" in inspect.signature(wrapper.forward).parameters
        self.layout = Layout(wrapper, find_base(wrapper))
        plan, place = Plan(wrapper, 1), find_language_model(wrapper)
        table: Any = wrapper.get_input_embeddings()
        self.width = embed.width if hasattr(embed, "extend") else table.weight.shape[1]
        wrapper.set_input_embeddings(Tokens(embed, table.weight, w.device))
        wrapper.set_submodule(place, StandIn(wrapper.get_submodule(place)))
        self.unread = _drop_unseen(wrapper)
        self.dispensable = frozenset(_declare(w, wrapper, self.layout, plan))
        for name, module in wrapper.named_modules():
            make_own_buffers(_find_owner(wrapper, name), name, module, w.device)
            if type(module) in _CONVOLUTIONS and module.padding_mode == "zeros":
                module.__dict__["forward"] = partial(_convolve, module)
        self.wrapper = wrapper

    def begin(self, inputs: Mapping[str, torch.Tensor]) -> Any:
        return inputs

    @torch.inference_mode()
    def advance(self, state: Any, part: int) -> Any:
        given = {
            name: each.to(self.dtype) if each.is_floating_point() else each
            for name, each in state.items()
            if name not in (IDS, SPAN)
        }
        ids, (first, last) = state[IDS][None], state[SPAN].tolist()
        if self.placed:  # which wrappers work out themselves, for the language model alone
            given["position_ids"] = torch.arange(ids.shape[1], device=ids.device)[None]
        try:
            self.wrapper(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **given)
        except Refused as cause:
            raise BadRequest(str(cause)) from cause
        except Embedded as found:
            rows = found.rows[0]
            if found.ids is not None:
                rows = self.embed.extend(rows, found.ids[0], None)
            return rows[first : last + 1]
        raise RuntimeError(f"{type(self.wrapper).__name__} does not call its language model")


class NoEncoder(Encoder):
    """Stands for the towers of a wrapper that can't be run: refuses every image."""

    parts = 1

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason

    def begin(self, inputs: Mapping[str, torch.Tensor]) -> Any:
        raise BadRequest(self.reason)


def _drop_unseen(wrapper: PreTrainedModel) -> list[str]:
    """Drop the head and the modules that images do not go through; the names of these."""
    head = wrapper.get_output_embeddings()
    unread = [
        name for name, module in wrapper.named_modules()
        if module is head or (name and any(word in name.rpartition(".")[2] for word in _OTHERS))
    ]  # fmt: skip
    unread = [name for name in unread if not any(name.startswith(f"{other}.") for other in unread)]
    drop(wrapper, unread)
    return unread


def _declare(w: Weights, wrapper: PreTrainedModel, layout: Layout, plan: Plan) -> list[str]:
    """Declare the parameters that are left; the names of the checkpoint's tensors.

    Linear layers become lsv's, in plain weights, so that a platform's kernels serve them.
    """
    first = len(w.declaration.slots)
    adopt_buffers(wrapper)
    plain = Weights(dataclasses.replace(w.declaration, quantizer=Unquantised()))
    for path, module in find_linears(wrapper, layout, find_shared(wrapper, layout), quantised=True):
        wrapper.set_submodule(path, plan.linear(plain, path, module, "column"))
    declared = {id(slot.parameter) for slot in w.declaration.slots}
    for name, parameter in wrapper.named_parameters():
        if id(parameter) not in declared:
            parameter.requires_grad_(False)
            w.adopt(parameter, layout.pieces(name), exact=not parameter.is_floating_point())
    return [piece.name for slot in w.declaration.slots[first:] for piece in slot.pieces]


def _convolve(module: Any, x: torch.Tensor) -> torch.Tensor:
    """What a convolution of torch computes."""
    return products.convolve(
        x, module.weight, module.bias,
        stride=module.stride, padding=module.padding, dilation=module.dilation, groups=module.groups,
    )  # fmt: skip


def _find_owner(wrapper: PreTrainedModel, path: str) -> PreTrainedModel:
    """The innermost model of transformers that holds a module, and knows how its buffers begin."""
    parts = path.split(".")
    for depth in range(len(parts), 0, -1):
        owner = wrapper.get_submodule(".".join(parts[:depth]))
        if isinstance(owner, PreTrainedModel):
            return owner
    return wrapper


def _find_native(config: Mapping[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    """The native class of the language model of a config.json, and that model's own config.json."""
    families = read_families()
    for architecture in architectures_of(config, families):
        for offer in lsv_models():
            if architecture in offer.architectures and set(offer.modalities) == {"text"}:
                return load_object(offer.load), read_half(config, architecture, families)
    return None


def _make_native(w: Weights, config: Mapping[str, Any], max_len: int) -> Model | None:
    found = _find_native(config)
    if found is None:
        return None
    make, half = found
    prefixes = (*make.prefixes, *w.declaration.prefixes)
    return make(Weights(dataclasses.replace(w.declaration, prefixes=prefixes)), half, max_len)  # type: ignore[no-any-return]


def _make_adapted(w: Weights, parsed: PreTrainedConfig, config: Mapping[str, Any], max_len: int) -> Model:
    checked = parse({**config, "dtype": dtype_name(w.dtype)}, max_len)
    prove(checked, Adapted)
    return Adapted(w, checked, max_len)


def _sections(text: Any) -> Mapping[str, Any]:
    """The rule of positions in time, height and width; empty where tokens have one place."""
    rule = getattr(text, "rope_parameters", None)
    return rule if isinstance(rule, Mapping) and rule.get("mrope_section") else {}


def _turn_by_axes(w: Weights, model: nn.Module, rule: Mapping[str, Any], max_len: int) -> None:
    """Have the ropes of a language model turn by time, height and width. Raises ``Refused`` where it has others."""
    turned = bool(rule.get("mrope_interleaved") or rule.get("interleaved"))
    kinds: dict[type[Rope], type[MRope]] = {Rope: InterleavedMRope if turned else MRope, PairRope: PairMRope}
    made: dict[int, MRope] = {}
    for owner in list(model.modules()):
        for name, rope in list(owner.named_children()):
            if type(rope) in kinds:
                own = made.get(id(rope)) or made.setdefault(id(rope), kinds[type(rope)](w, rope.rope, max_len))
                setattr(owner, name, own)
    if not made:
        raise Refused("its language model has no rope that turns by time, height and width")


class Seeing:
    """Makes a ``Model`` of a wrapper: its language model as it is served alone, and an encoder of images."""

    prefixes = ()

    def __call__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> Model:
        try:
            return self._make(w, config, max_len)
        except LsvError:
            raise
        except Exception as cause:  # transformers' own classes raise whatever they meet
            known = (name for offer in lsv_models() for name in offer.architectures)
            raise refuse(str((config.get("architectures") or ["?"])[0]), cause, known) from cause

    def _make(self, w: Weights, config: Mapping[str, Any], max_len: int) -> Model:
        parsed = CONFIG_MAPPING[config["model_type"]].from_dict(decode({**config, "dtype": dtype_name(w.dtype)}))
        model = _make_native(w, config, max_len)
        native = model is not None
        if model is None:
            model = _make_adapted(w, parsed, config, max_len)
        model.encoder = self._make_encoder(w, parsed, model, max_len, native=native)
        if native:
            model.outside = frozenset()
        if isinstance(model.encoder, WrapperEncoder):
            _read_beside(model, model.encoder, native=native)
        return model

    def _make_encoder(
        self, w: Weights, parsed: PreTrainedConfig, model: Model, max_len: int, *, native: bool
    ) -> Encoder:
        """The wrapper's towers; one that refuses images where they can't be run."""
        declared, name, text = len(w.declaration.slots), name_architecture(parsed), parsed.get_text_config()
        rule = _sections(text)
        try:
            if w.declaration.towerless:
                raise Refused(w.declaration.towerless)
            if getattr(text, "use_bidirectional_attention", None):
                raise Refused(MUTUAL)
            if rule and native:
                _turn_by_axes(w, model, rule, max_len)
            if rule:
                model.axes = MRope.axes  # type: ignore[misc]
            with torch.device("meta"):
                wrapper = make_model(parsed, w.dtype, None)
            found: Encoder = WrapperEncoder(w.replicated(), wrapper, model.embed)
            told, said = logging.INFO, f"{name}: images go through transformers' own tower"
        except Exception as cause:
            del w.declaration.slots[declared:]
            reason = str(cause) if isinstance(cause, Refused) else f"building its tower failed: {cause!r:.300}"
            found = NoEncoder(reason)
            told, said = logging.WARNING, f"{name}: images are refused, text is served: {reason}"
        if w.shard.rank == 0:
            log.log(told, "%s", said)
        return found


def _read_beside(model: Model, encoder: WrapperEncoder, *, native: bool) -> None:
    """Have a language model read the encoder's tensors, too."""
    own, spell, names = model.rename, encoder.layout.rename, encoder.dispensable

    def rename(name: str) -> str:
        spelt = spell(name)
        return spelt if spelt in names else own(name)

    model.rename = rename  # type: ignore[method-assign]
    model.ignores = (*model.ignores, *ignored(encoder.layout, encoder.unread, encoder.wrapper))
    if native:
        model.outside = names


make = Seeing()
