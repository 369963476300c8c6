"""The declared model: built on meta from config.json alone, its layers placed in the KV cache."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from lsv.config import EngineConfig
from lsv.kv.spec import STATE_WINDOW, KVGroup, KVSpec, group_specs
from lsv.offers import ModelOffer, QuantizerOffer
from lsv.plugins.catalog import Catalog
from lsv.resolve.locate import read_config
from lsv_base.errors import ConfigError
from lsv_runtime.attention import AttentionBackend, AttentionLayer, token_bytes
from lsv_runtime.attention.states import StateLayer
from lsv_runtime.devices.communicator import Communicator
from lsv_runtime.nn.dtypes import cache_dtype, model_dtype
from lsv_runtime.nn.embed import quantise_tables
from lsv_runtime.nn.exchange import TokenExchange
from lsv_runtime.nn.latent import LatentAttention
from lsv_runtime.nn.model import Architecture, Model
from lsv_runtime.nn.moe import MoE
from lsv_runtime.nn.pooling.scoring import make_scorer, without_head
from lsv_runtime.nn.sampling import Sampling
from lsv_runtime.ops import Bindable
from lsv_runtime.weights import kv_scales
from lsv_runtime.weights.fill import Filler
from lsv_runtime.weights.halves import Half
from lsv_runtime.weights.place import Declaration, Shard, TensorSlot, Tie, Weights
from lsv_runtime.weights.placement import Placement
from lsv_runtime.weights.quantizer import Linear, Quantizer, Unquantised, WithIgnored
from lsv_runtime.worker.load.planned import planned_bytes
from lsv_runtime.worker.load.streamed import StreamedLayers


@dataclass(slots=True)
class Declared:
    """A model whose weights are declared on meta, until ``lsv_runtime.worker.load.loaded.fill`` has filled them."""

    model: Model
    sampling: Sampling
    """The ops behind the model's logits; kernels are bound to them as to the model's own."""
    layers: tuple[AttentionLayer, ...]
    """The attention layers by index, with their places in the cache; with the checkpoint's scales once filled."""
    states: tuple[StateLayer, ...]
    """The recurrent layers by index, with their places in the cache."""
    specs: tuple[KVSpec, ...]
    """What each layer keeps, by layer index."""
    groups: tuple[KVGroup, ...]
    """The layers that share a block table."""
    slots: tuple[TensorSlot, ...]
    device: torch.device
    """Where weights are filled to."""
    vocab_size: int
    filler: Filler
    ties: tuple[Tie, ...] = ()
    """The heads that share the embedding's weight."""
    shared: tuple[Bindable, ...] = ()
    """What computes between the ranks; kernels are bound to it as to the model's ops."""
    filled: bool = False
    streamed: StreamedLayers | None = None
    """The model's layers, where some of them are kept on the host."""
    half: Half | None = None
    """Where the model is in its checkpoint, if that holds more."""

    def rename(self, name: str) -> str:
        """A checkpoint's name of a tensor or layer -> the one that the model declared."""
        return self.model.rename(name if self.half is None else self.half.rename(name))

    def leaves_out(self, name: str) -> bool:
        """Whether a checkpoint's name of a tensor or layer is of something that stands beside the model."""
        return self.half is not None and self.half.leaves_out(name)

    def within(self, half: Half) -> Declared:
        """The same model, in a checkpoint that holds more."""
        others = (rf"^{re.escape(half.rename(name))}(\.|$)" for name in half.unread)
        ignores, held = (*self.filler.ignores, *others), self.filler.slots
        return dataclasses.replace(self, half=half, filler=Filler(self.model, held, ignores, every=self.slots))

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights on the device: planned before they are filled, actual afterwards."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        held = sum(tensor.nbytes for tensor in tensors if not tensor.is_meta) if self.filled else None
        held = planned_bytes(self.model) if held is None else held
        return held if self.streamed is None else held - self.streamed.saved


def declare(
    config: EngineConfig,
    catalog: Catalog,
    *,
    communicator: Communicator | None = None,
    exchange: TokenExchange | None = None,
    torch_device: torch.device | str = "cpu",
    architecture: Architecture | None = None,
    untied: frozenset[str] = frozenset(),
    half: Half | None = None,
    towerless: str = "",
) -> Declared:
    """Build the model on meta from config.json alone. ``communicator`` None means a single rank, ``exchange`` is with
    replicas that share its experts, ``architecture`` None the one of the configuration's offer. Heads whose tensors
    are ``untied`` have weights of their own, whatever config.json says. ``half`` is where the model is in a checkpoint
    that holds more, and ``towerless`` says why a tower is left out that the model can do without.

    Raises ``CheckpointError`` for a config.json the architecture can't follow, ``ConfigError`` for sizes that
    can't be split over the ranks and for an unknown dtype.
    """
    json, dtype = read_config(Path(config.model), config.overrides), model_dtype(config.dtype)
    causal = True
    if architecture is None:
        offer = catalog.find(ModelOffer, config.model_offer)
        architecture, causal = catalog.load(offer), offer.causal
    assert architecture is not None
    declaration = Declaration(
        dtype,
        torch.device(torch_device),
        make_quantizer(config, json, catalog),
        Shard(communicator.group.rank, communicator.group.size) if communicator else Shard(),
        communicator,
        _make_placement(config, communicator if exchange is None else exchange.communicator),
        (*architecture.prefixes, *(half.prefixes if half else ())),
        untied,
        towerless,
    )
    w, pooler = Weights(declaration), config.pooler
    model = architecture(w, without_head(json, pooler) if causal else json, config.max_model_len)
    _check_quantised(model, config, catalog)
    if model.scorer is None:
        model.scorer = make_scorer(w, model, json, pooler)
    quantise_tables(model, w)
    if config.cached:
        specs, groups = _lay_out(model, config)
    else:
        specs, groups = (), ()
        model.place_layers([dataclasses.replace(layer, causal=False) for layer in model.attention_layers()])
    slots = held = tuple(declaration.slots)
    if declaration.placement is not None:
        held = _own_slots(model, slots, config, exchange)
        declaration.placement.check()
    passed_over = (*(tie.head for tie in declaration.ties), *declaration.unread)
    ignored = (f"^{re.escape(name)}$" for name in passed_over)
    declared = Declared(
        model=model,
        sampling=Sampling(model.vocab_size, dtype, processed=config.processed_logprobs),
        layers=model.attention_layers(),
        states=model.state_layers(),
        specs=specs,
        groups=groups,
        slots=slots,
        device=declaration.device,
        vocab_size=model.vocab_size,
        filler=Filler(model, held, (*model.ignores, *ignored, kv_scales.NAMES), every=slots),
        ties=tuple(declaration.ties),
        shared=(*(communicator.ops if communicator else ()), *(exchange.communicator.ops if exchange else ())),
    )
    return declared if half is None else declared.within(half)


def _make_placement(config: EngineConfig, communicator: Communicator | None) -> Placement | None:
    """Over the ranks that share experts; None where each expert is cut, or one rank has all."""
    if config.topology.expert == 1 or communicator is None:
        return None
    group = communicator.group
    return Placement(group.rank, group.size, () if config.experts is None else config.experts.map)


def _own_slots(
    model: Model, slots: Sequence[TensorSlot], config: EngineConfig, exchange: TokenExchange | None
) -> tuple[TensorSlot, ...]:
    """Those of what this rank has; the others are of experts that other ranks have, maybe those of other replicas.

    Raises ``ConfigError`` for a model without experts, or with some that can't be spread.
    """
    found = [module for module in model.modules() if isinstance(module, MoE)]
    if not found or any(module.spread is None for module in found):
        why = "runs through transformers' code, whose experts are cut" if found else "has no experts"
        raise ConfigError(
            f"enable_expert_parallel: {config.architecture} {why}; leave it out", param="enable_expert_parallel"
        )
    for module in found:
        module.exchange = exchange
    held = {id(parameter) for parameter in model.parameters()}
    return tuple(slot for slot in slots if id(slot.parameter) in held)


def keep_latents(declared: Declared, backend: AttentionBackend, config: EngineConfig) -> str | None:
    """Have latent attention keep latents where ``backend`` serves heads of their size, before weights are filled.

    What the cache holds, and why; None for a model without latent attention.
    """
    modules = [module for module in declared.model.modules() if isinstance(module, LatentAttention)]
    if not modules or not config.cached:
        return None
    twice = _refusal(modules, backend, once=True)
    if twice is not None and (refusal := _refusal(modules, backend, once=False)) is not None:
        return f"keys and values of all heads are cached instead of latents: {refusal}"
    for module in modules:
        module.absorb(once=twice is None)
    model = declared.model
    declared.specs, declared.groups = _lay_out(model, config)
    declared.layers, declared.states = model.attention_layers(), model.state_layers()
    return "latents are cached" if twice is None else f"latents are cached twice, as keys and as values: {twice}"


def _refusal(modules: Sequence[LatentAttention], backend: AttentionBackend, *, once: bool) -> str | None:
    """None, or why the backend can't attend to the modules' latents."""
    found = (backend.supports(module.latent_layer(once=once)) for module in modules)
    return next((why for why in found if why is not None), None)


def make_quantizer(config: EngineConfig, json: Mapping[str, Any], catalog: Catalog) -> Quantizer:
    """The weight format of a configuration, whose config.json is ``json``."""
    if config.quantization is None:
        return Unquantised()
    load = catalog.load(catalog.find(QuantizerOffer, config.quantization))
    quantizer: Quantizer = load(json.get("quantization_config") or {})
    return WithIgnored(quantizer, config.quantization_ignore) if config.quantization_ignore else quantizer


def _check_quantised(model: Model, config: EngineConfig, catalog: Catalog) -> None:
    """Raises ``ConfigError`` where a format of experts finds none: nothing would be quantised."""
    if config.quantization is None or not catalog.find(QuantizerOffer, config.quantization).experts:
        return
    if all(module.format == "plain" for module in model.modules() if isinstance(module, Linear)):
        raise ConfigError(
            f"quantization={config.quantization} is for experts, and {config.architecture} has none that it could "
            "quantise: choose another format",
            param="quantization",
        )


def _lay_out(model: Model, config: EngineConfig) -> tuple[tuple[KVSpec, ...], tuple[KVGroup, ...]]:
    """Give the model's layers their places in the cache: what they keep there, and in which groups."""
    chunks = {layer.chunk for layer in model.attention_layers() if layer.chunk is not None}
    if odd := [chunk for chunk in chunks if chunk % config.block_size]:
        raise ConfigError(
            f"block_size={config.block_size} does not divide the {odd[0]} tokens of a chunk, within which layers of "
            "this model attend: choose another --block-size",
            param="block_size",
        )
    specs = _specs(model, cache_dtype(config.kv_dtype, model_dtype(config.dtype)))
    groups = group_specs(specs, config.block_size)
    model.place_layers(place_in(groups, model.attention_layers()))
    model.place_states(place_in(groups, model.state_layers()))
    return specs, groups


def _specs(model: Model, dtype: torch.dtype) -> tuple[KVSpec, ...]:
    """What layers keep in a cache of this dtype, by their index."""
    tokens = [
        KVSpec(
            layer.index,
            layer.kind,
            token_bytes(layer, dtype),
            window=layer.reach,
            chunk=layer.chunk,
            reads=layer.reads,
            cross_len=layer.source,
            optional=layer.optional,
        )
        for layer in model.attention_layers()
    ]
    states = [KVSpec(layer.index, "state", 0, layer.state_bytes, window=STATE_WINDOW) for layer in model.state_layers()]
    return tuple(sorted(tokens + states, key=lambda spec: spec.layer))


Layer = TypeVar("Layer", AttentionLayer, StateLayer)


def place_in(groups: Sequence[KVGroup], layers: Sequence[Layer]) -> list[Layer]:
    """The layers, each with its group and its position there; one that reads another's keys and values has that's."""
    places = {index: (group.index, place) for group in groups for place, index in enumerate(group.layers)}
    found = (places[layer.keeper if isinstance(layer, AttentionLayer) else layer.index] for layer in layers)
    return [
        dataclasses.replace(layer, group=group, place=place)
        for layer, (group, place) in zip(layers, found, strict=True)
    ]
