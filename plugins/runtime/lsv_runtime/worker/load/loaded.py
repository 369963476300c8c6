"""The loaded model: all steps of loading in order, the last of which reads the weights."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch

from lsv.config import EngineConfig, Fit
from lsv.engine.executor import ReportProgress
from lsv.offers import CheckpointOffer
from lsv.plugins.catalog import Catalog
from lsv_base.errors import CheckpointError, ConfigError
from lsv_runtime.adapters.slots import Slots, allocate, attach
from lsv_runtime.adapters.store import AdapterStore
from lsv_runtime.attention import AttentionBackend
from lsv_runtime.devices.communicator import Communicator
from lsv_runtime.devices.device import Device
from lsv_runtime.drafts.making import check_taps
from lsv_runtime.nn.dtypes import model_dtype
from lsv_runtime.nn.exchange import TokenExchange
from lsv_runtime.pipeline.stage import WHOLE, Stage
from lsv_runtime.weights import kv_scales
from lsv_runtime.weights.checkpoint import CheckpointSource, DummySource, RenamedSource, SafetensorsSource
from lsv_runtime.weights.fill import Report, check
from lsv_runtime.weights.halves import Half, find_half
from lsv_runtime.weights.pickled import PickledSource, pickled_files
from lsv_runtime.weights.sharded import ShardedSource, is_sharded
from lsv_runtime.weights.stacks import UnfoldedSource
from lsv_runtime.weights.staging import Staging
from lsv_runtime.weights.ties import TiedSource, find_untied
from lsv_runtime.worker.load.bound import Bound, bind
from lsv_runtime.worker.load.cut import cut
from lsv_runtime.worker.load.declared import Declared, declare
from lsv_runtime.worker.load.fit import measure_fit, plan_fit
from lsv_runtime.worker.load.parts import with_parts
from lsv_runtime.worker.load.streamed import stream_layers

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A filled model, and what fits beside it."""

    bound: Bound
    fit: Fit
    adapters: AdapterStore | None = None
    """None where none are served."""

    @property
    def declared(self) -> Declared:
        return self.bound.declared

    @property
    def backend(self) -> AttentionBackend:
        return self.bound.backend

    def allocate_cache(self, config: EngineConfig, device: Device) -> Any:
        """What the backend allocates for ``fit.num_blocks`` pages and the null page."""
        return self.bound.allocate(self.fit.num_blocks + 1, config, device)


def load(
    config: EngineConfig,
    catalog: Catalog,
    device: Device,
    communicator: Communicator | None,
    report: ReportProgress,
    stage: Stage = WHOLE,
    world: Communicator | None = None,
    exchange: TokenExchange | None = None,
    tell: Callable[[str], None] = lambda stage: None,
) -> Loaded:
    """Declare the model, bind its ops, plan the memory; then fill the weights. ``tell`` hears of stages that end.

    ``communicator`` None means a single rank, or one a stage; ``world`` is all ranks where there are several stages,
    ``exchange`` with replicas that share its experts. Raises ``StartError`` before any weight is read when the
    configuration can't be served.
    """
    place = device.torch_device
    declared = declare_stored(config, catalog, communicator=communicator, exchange=exchange, torch_device=place)
    places = _attach_adapters(declared, config)
    bound = bind(declared, config, catalog)
    if stage.count > 1:
        check_taps(declared.model, config, catalog)
        cut(declared, stage, config)
        bound = bound if stage.ends else replace(bound, beside=())  # drafts are made where tokens are sampled
    declared.streamed = stream_layers(declared.model, config, device)
    every = world or communicator
    adapters = None
    if config.adapters is not None:
        model = declared.model
        adapters = AdapterStore(
            model, declared.rename, places, config.adapters, communicator, device.torch_device, every,
            declared.leaves_out,
        )  # fmt: skip
    # shapes may depend on the cache's size, and replicas that share experts run them all together
    equal = [group for group in (every, None if exchange is None else exchange.communicator) if group is not None]
    fit = plan_fit(bound, config, device, equal)
    tell("Declaring the model")
    with closing(_source(config, declared, catalog, communicator)) as source:
        staging = Staging(device) if device.pinned else None
        fill(declared, source, lambda done, total: report("weights", done, total), staging)
    if adapters is not None:
        allocate(declared.model, device.torch_device)
    device.release_cache()  # filling has left memory reserved for the largest tensors
    tell("Loading weights")
    fit = measure_fit(fit, bound, config, device, equal)
    tell("Measuring the largest step")
    fit = msgspec.structs.replace(fit, weight_bytes=declared.weight_bytes)
    return Loaded(bound, fit, adapters)


def declare_stored(
    config: EngineConfig,
    catalog: Catalog,
    *,
    communicator: Communicator | None = None,
    exchange: TokenExchange | None = None,
    torch_device: torch.device | str = "cpu",
) -> Declared:
    """Declare the model as its files have it: config.json may tie a head to the embedding that has another weight.

    Reads the two tensors where files hold both. Raises what ``declare`` does, and ``CheckpointError``.
    """
    make = partial(
        declare, config, catalog, communicator=communicator, exchange=exchange, torch_device=torch_device
    )  # fmt: skip
    declared = make()
    if why := _find_misfit(config, declared, catalog):
        make = partial(make, towerless=why)
        declared = make()
    if (half := locate_half(config, declared, catalog)) is not None:
        make = partial(make, half=half)
        declared = declared.within(half) if config.quantization is None else make()  # formats go by stored names
    computes_tokens = config.pooler.task == "generate" or config.pooler.contrast is not None
    if config.load_format == "dummy" or not declared.ties or not computes_tokens:
        return declared
    with closing(open_source(config, declared, catalog)) as opened:
        source = RenamedSource(opened, declared.rename)
        untied = find_untied(source, declared.ties, model_dtype(config.dtype))
    if not untied:
        return declared
    log.warning(
        "config.json ties the head to the embedding, but the checkpoint's %s differs from it: the head is not tied, as "
        "in transformers; tie_word_embeddings=false in config.json says the same",
        ", ".join(sorted(untied)),
    )
    return make(untied=untied)


def _find_misfit(config: EngineConfig, declared: Declared, catalog: Catalog) -> str:
    """Why a checkpoint does not hold a tower that the model can do without as it is declared; empty where it does."""
    names = frozenset() if declared.model.encoder is None else declared.model.encoder.dispensable
    if not names or config.load_format == "dummy":
        return ""
    slots = [slot for slot in declared.slots if any(piece.name in names for piece in slot.pieces)]
    with closing(open_source(config, declared, catalog)) as source:
        if isinstance(source, ShardedSource):
            return ""
        stored = RenamedSource(source, declared.model.rename).tensors()
    try:
        check(slots, {name: stored[name] for name in names & stored.keys()}, ())
    except CheckpointError as misfit:
        return misfit.message
    return ""


def locate_half(config: EngineConfig, declared: Declared, catalog: Catalog) -> Half | None:
    """Where the language model of a declared model is in its checkpoint; None for files that hold nothing else, and
    for no files.

    Raises ``CheckpointError`` where it is nowhere.
    """
    if not (config.wrapper or declared.model.outside is not None) or config.load_format == "dummy":
        return None
    outside = declared.model.outside or frozenset()
    with closing(open_source(config, declared, catalog)) as source:
        if isinstance(source, ShardedSource):
            return None
        wanted = {piece.name for slot in declared.slots for piece in slot.pieces} - outside
        stored = [name for name in source.tensors() if declared.model.rename(name) not in outside]
        half = find_half(stored, wanted, declared.model.rename)
    if config.wrapper:
        others = ", ".join(half.unread) or "nothing"
        log.info("%s: only the language model is served; the checkpoint also holds %s", config.wrapper, others)
    return half


def _attach_adapters(declared: Declared, config: EngineConfig) -> dict[str, Slots]:
    """Give the declared model's layers slots, where adapters are served."""
    asked = config.adapters
    if asked is None:
        return {}
    dtype = model_dtype(config.dtype if asked.dtype == "auto" else asked.dtype)
    return attach(declared.model, asked.slots, asked.max_rank, dtype)


def _source(
    config: EngineConfig, declared: Declared, catalog: Catalog, communicator: Communicator | None
) -> CheckpointSource:
    """The checkpoint, with the scales of the KV cache that the configuration brings."""
    if config.kv_scales is None:
        return open_source(config, declared, catalog)
    rank, ranks = (communicator.group.rank, communicator.group.size) if communicator else (0, 1)
    scales = kv_scales.read_file(config.kv_scales, rank, ranks, declared.layers)
    return kv_scales.WithFile(open_source(config, declared, catalog), scales)


def open_source(config: EngineConfig, declared: Declared, catalog: Catalog) -> CheckpointSource:
    """The checkpoint, and those of the model's parts, in the format that ``load_format`` asks for."""
    if config.load_format == "dummy":
        return DummySource(declared.slots, config.seed)

    def open_folder(folder: str) -> CheckpointSource:
        return _open_folder(folder, config, declared, catalog)

    own = open_folder(config.model)
    return with_parts(own, config, declared, open_folder) if config.parts else own


def _open_folder(folder: str, config: EngineConfig, declared: Declared, catalog: Catalog) -> CheckpointSource:
    """The source of one checkpoint: of an offered format by name, or ``auto``."""
    if config.load_format == "auto":
        offers = [offer for offer in catalog.offers(CheckpointOffer) if offer.recognises(folder)]
        if len(offers) > 1:
            names = ", ".join(offer.name for offer in offers)
            raise ConfigError(f"more than one format recognises {folder}: {names}; choose with --load-format")
        if not offers:
            return _own_source(Path(folder), declared)
        return catalog.load(offers[0])(folder)  # type: ignore[no-any-return]
    if config.load_format == "safetensors":
        return SafetensorsSource(Path(folder))
    if config.load_format == "sharded_state":
        return ShardedSource(Path(folder), declared.slots, **config.loader)
    if config.load_format == "pt":
        return PickledSource(Path(folder))
    offer = catalog.find(CheckpointOffer, config.load_format)
    return catalog.load(offer)(folder)  # type: ignore[no-any-return]


def _own_source(folder: Path, declared: Declared) -> CheckpointSource:
    """Safetensors where there are any, of the whole model or of its ranks; else what torch has saved."""
    if is_sharded(folder):
        return ShardedSource(folder, declared.slots)
    if not any(folder.glob("*.safetensors")) and pickled_files(folder):
        return PickledSource(folder)
    return SafetensorsSource(folder)


def fill(
    declared: Declared,
    source: CheckpointSource,
    progress: Report = lambda done, total: None,
    staging: Staging | None = None,
) -> None:
    """Check all tensors, then stream them in; ``progress`` is told (tensors done, tensors in all).

    Filling again reloads into the same storage. Raises ``CheckpointError`` before a byte of data is read when
    the checkpoint does not fit.
    """
    declared.model.eval()
    source = TiedSource(RenamedSource(source, declared.rename), declared.ties)
    source = UnfoldedSource(source, declared.model.stacks)
    streamed = declared.streamed
    declared.filler.fill(source, declared.device, progress, staging, None if streamed is None else streamed.move)
    if streamed is not None:
        streamed.settle()
    declared.layers = tuple(kv_scales.with_scales(declared.layers, source))
    declared.model.place_layers(declared.layers)
    declared.filled = True
