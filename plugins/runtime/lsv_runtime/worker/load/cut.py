"""The declared model of one stage: what is left of the whole one when other ranks have the other layers."""

from __future__ import annotations

import logging

import msgspec
from torch import nn

from lsv.config import EngineConfig
from lsv_base.errors import ConfigError
from lsv_runtime.nn.dtypes import model_dtype
from lsv_runtime.nn.embed import Head
from lsv_runtime.nn.model import ElsewhereEncoder, Encoder, Model, handed_on
from lsv_runtime.pipeline.stage import Stage, check_partition, share_out
from lsv_runtime.weights.fill import Filler
from lsv_runtime.worker.load.declared import Declared, place_in

log = logging.getLogger(__name__)

_HEAD = 0.875
"""What a byte of the head costs where one of a layer costs 1: of half a billion parameters, 24 layers and a vocabulary
of 152,000 tokens, 17 layers took 168 ms, and 7 layers, the head and sampling 147 ms."""
_LAST = ("norm", "head", "scorer")
"""The parts of a model that follow its layers."""


def cut(declared: Declared, stage: Stage, config: EngineConfig) -> None:
    """Leave the stage's layers in the declared model, and what comes before the first or follows the last.

    Everything that all ranks must agree on (block tables, bound kernels) was decided on the whole model before. Raises
    ``ConfigError`` for a model that can't be cut.
    """
    model = declared.model
    _check(model, config)
    counts = config.topology.layers or _balance(model, stage.count)
    check_partition(counts, len(model.layers), stage.count)
    first = sum(counts[: stage.number])
    log.info("stage %d of %d has %d of %d layers", stage.number + 1, stage.count, counts[stage.number], sum(counts))
    width = handed_on(model)
    if model.encoder is not None and model.encoder.deeper > counts[0]:
        raise _too_few(model.encoder.deeper, counts)
    if not stage.begins:
        model.receives = model.stream or (width, model_dtype(config.dtype))
    if model.encoder is not None:
        model.encoder.width = model.encoder.width or width  # which is told by the norm, and that is elsewhere
    model.layers = nn.ModuleList(model.layers[first : first + counts[stage.number]])
    model.ends = stage.ends
    lenders = _lenders(model) if stage.ends else set()
    for name, part in list(model.named_children()):
        held = stage.ends if name in _LAST else stage.begins or not lenders.isdisjoint(part.modules())
        if name != "layers" and not held:
            setattr(model, name, ElsewhereEncoder(part) if isinstance(part, Encoder) else None)
    _keep_held(declared)


def _lenders(model: Model) -> set[nn.Module]:
    """Embeddings that the last stage keeps for its head."""
    heads = (module for module in model.modules() if isinstance(module, Head))
    return {head.lender for head in heads if head.lender is not None}


def _check(model: Model, config: EngineConfig) -> None:
    if not model.staged:
        raise ConfigError(
            f"pipeline_parallel_size={config.topology.pipeline}: layers of {config.architecture} need more than the "
            "output of the layer before; spread it by --tensor-parallel-size instead",
            param="pipeline_parallel_size",
        )


def _too_few(deeper: int, counts: tuple[int, ...]) -> ConfigError:
    return ConfigError(
        f"pipeline_parallel_size={len(counts)}: what is made of media is added behind each of the first {deeper} "
        f"layers, and the first stage has {counts[0]}: give it more by --pipeline-layer-partition, or use fewer stages",
        param="pipeline_parallel_size",
    )


def _balance(model: Model, stages: int) -> tuple[int, ...]:
    """Layers a stage by the bytes that a decoding step reads; those of the head are read faster than those of a layer,
    for they are in one piece.
    """
    head = getattr(model, "head", None)
    behind = int(_HEAD * _bytes(head)) if isinstance(head, nn.Module) else 0
    return share_out([_bytes(layer) for layer in model.layers], behind, stages)


def _bytes(module: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in module.parameters())


def _keep_held(declared: Declared) -> None:
    """Weights and places in the cache of the layers that are left; groups keep their numbers."""
    model = declared.model
    layers, states = model.attention_layers(), model.state_layers()
    own = {layer.index for layer in layers} | {state.index for state in states}
    groups = tuple(
        msgspec.structs.replace(group, layers=tuple(index for index in group.layers if index in own))
        for group in declared.groups
    )
    model.place_layers(place_in(groups, layers))
    model.place_states(place_in(groups, states))
    declared.layers, declared.states = model.attention_layers(), model.state_layers()
    declared.specs = tuple(spec for spec in declared.specs if spec.layer in own)
    declared.groups = groups
    held = {id(parameter) for parameter in model.parameters()}
    slots = tuple(slot for slot in declared.slots if id(slot.parameter) in held)
    declared.filler = Filler(model, slots, declared.filler.ignores, every=declared.slots)
