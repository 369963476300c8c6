"""From a resolved configuration to a model: declare on meta, bind kernels, fill with weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from lsv import ops
from lsv.attention import AttentionLayer, token_bytes
from lsv.config import BoundOp, EngineConfig
from lsv.errors import ConfigError
from lsv.kv.spec import KVGroup, KVSpec, group_specs
from lsv.nn.dtypes import cache_dtype
from lsv.nn.model import Model
from lsv.nn.sampling import Sampling
from lsv.offers import CheckpointOffer, KernelOffer, ModelOffer, QuantizerOffer
from lsv.platform import Communicator
from lsv.plugins.catalog import Catalog
from lsv.resolve.locate import read_config
from lsv.weights import kv_scales
from lsv.weights.checkpoint import CheckpointSource, DummySource, RenamedSource, SafetensorsSource
from lsv.weights.fill import Filler, Report
from lsv.weights.place import Declaration, Shard, Slot, Weights
from lsv.weights.quantizer import Quantizer, Skipping, Unquantised


@dataclass(slots=True)
class Declared:
    """A model whose weights are declared (on meta) or filled. ``layers`` and ``specs`` are by layer index."""

    model: Any
    sampling: Sampling
    json: Mapping[str, Any]
    layers: tuple[AttentionLayer, ...]
    specs: tuple[KVSpec, ...]
    groups: tuple[KVGroup, ...]
    slots: tuple[Slot, ...]
    device: torch.device
    vocab_size: int
    filler: Filler
    filled: bool = False

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights: as declared, and once they are filled as they are held."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        return sum(tensor.nbytes for tensor in tensors if not (self.filled and tensor.is_meta))


def declare(
    config: EngineConfig,
    catalog: Catalog,
    *,
    communicator: Communicator | None = None,
    torch_device: torch.device | str = "cpu",
) -> Declared:
    """Build the model on meta from config.json alone. ``communicator`` None means a single rank.

    Raises ``CheckpointError`` for a config.json the architecture can't follow, ``ConfigError`` for sizes that
    can't be cut over the ranks.
    """
    json = read_config(Path(config.model), config.overrides)
    dtype: torch.dtype = getattr(torch, config.dtype)
    shard = Shard(communicator.group.rank, communicator.group.size) if communicator else Shard()
    quantizer = _make_quantizer(config, json, catalog)
    build = catalog.load(catalog.find(ModelOffer, config.model_offer))
    prefixes = getattr(build, "prefixes", ())
    declaration = Declaration(dtype, torch.device(torch_device), quantizer, shard, communicator, prefixes)
    model: Model = build(Weights(declaration), json, config.max_model_len)
    kv_dtype = cache_dtype(config.kv_dtype, dtype)
    specs = tuple(_spec(layer, kv_dtype) for layer in model.attention_layers())
    groups = group_specs(specs)
    model.place_layers(_place(model.attention_layers(), groups))
    slots = tuple(declaration.slots)
    module: Any = model
    return Declared(
        model=module,
        sampling=Sampling(model.vocab_size, dtype),
        json=json,
        layers=model.attention_layers(),
        specs=specs,
        groups=groups,
        slots=slots,
        device=declaration.device,
        vocab_size=model.vocab_size,
        filler=Filler(module, slots, (*model.ignores, kv_scales.NAMES)),
    )


def bind(
    declared: Declared, catalog: Catalog, platform: str, reference: bool, config: EngineConfig | None = None
) -> tuple[BoundOp, ...]:
    """Choose kernels for all ops; ``reference`` leaves each to its plain-torch form.

    With a configuration, kernels that are not wanted for it refuse every op.
    """
    offers: Sequence[KernelOffer] = () if reference else tuple(catalog.offers(KernelOffer))
    if config is not None:
        offers = [_as_wanted(offer, config) for offer in offers]
    return ops.bind(nn.ModuleList((declared.model, declared.sampling)), offers, platform, catalog.load)


def _as_wanted(offer: KernelOffer, config: EngineConfig) -> KernelOffer:
    why = offer.unwanted(config) if offer.unwanted else None
    return offer if why is None else msgspec.structs.replace(offer, supports=lambda spec: why)


def fill(declared: Declared, source: CheckpointSource, progress: Report = lambda done, total: None) -> None:
    """Check all tensors, then stream them in; ``progress`` is told (slots done, slots in all).

    Filling again reloads into the same storage. Raises ``CheckpointError`` before a byte of data is read when
    the checkpoint does not fit.
    """
    declared.model.eval()
    source = RenamedSource(source, declared.model.rename)
    declared.filler.fill(source, declared.device, progress)
    declared.layers = tuple(kv_scales.with_scales(declared.layers, source))
    declared.model.place_layers(declared.layers)
    declared.filled = True


def open_source(config: EngineConfig, declared: Declared, catalog: Catalog) -> CheckpointSource:
    """The source ``load_format`` asks for: ``dummy``, an offered format by name, or ``auto``."""
    if config.load_format == "dummy":
        return DummySource(declared.slots, config.seed)
    if config.load_format == "auto":
        offers = [offer for offer in catalog.offers(CheckpointOffer) if offer.recognises(config.model)]
        if len(offers) > 1:
            names = ", ".join(offer.name for offer in offers)
            raise ConfigError(f"more than one format recognises {config.model}: {names}; choose with --load-format")
        if not offers:
            return SafetensorsSource(Path(config.model))
        return catalog.load(offers[0])(config.model)  # type: ignore[no-any-return]
    if config.load_format == "safetensors":
        return SafetensorsSource(Path(config.model))
    offer = catalog.find(CheckpointOffer, config.load_format)
    return catalog.load(offer)(config.model)  # type: ignore[no-any-return]


def _make_quantizer(config: EngineConfig, json: Mapping[str, Any], catalog: Catalog) -> Quantizer:
    if config.quantization is None:
        return Unquantised()
    load = catalog.load(catalog.find(QuantizerOffer, config.quantization))
    quantizer: Quantizer = load(json.get("quantization_config") or {})
    return Skipping(quantizer, config.quantization_ignore) if config.quantization_ignore else quantizer


def _spec(layer: AttentionLayer, dtype: torch.dtype) -> KVSpec:
    return KVSpec(layer.index, layer.kind, token_bytes(layer, dtype), window=layer.window, cross_len=layer.source)


def _place(layers: Sequence[AttentionLayer], groups: Sequence[KVGroup]) -> list[AttentionLayer]:
    """The layers, each with its group and its position there."""
    places = {index: (group.index, place) for group in groups for place, index in enumerate(group.layers)}
    return [dataclasses.replace(layer, group=places[layer.index][0], place=places[layer.index][1]) for layer in layers]
