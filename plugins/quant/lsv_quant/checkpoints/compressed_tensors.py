"""compressed-tensors checkpoints, as llm-compressor writes them: groups of layers, each with its own scheme.

Int8 weights with a scale for each output run in int8 (W8A8) if the config plans activations to be quantised per token,
or per group of a token's inputs. Activations with a scale of their own are rounded by it. Of weights
in e4m3, kernels may round activations where the config plans it per token as they come. All other activations stay as
they are, whatever the config plans for them.
Source: the ``compressed_tensors`` package, ``quantization.quant_args`` for the config and ``compressors`` for the
tensors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lsv_base.errors import CheckpointError
from lsv_quant.checkpoints.compressed_forms import (
    Numbers,
    make_float,
    make_int,
    make_marlin,
    make_mxfp4,
    make_mxfp8,
    make_nvfp4,
    make_packed,
)
from lsv_quant.checkpoints.scheme import Scheme
from lsv_quant.recognise import SPARSE
from lsv_runtime.weights.quantizer import (
    LayerName,
    LinearLayer,
    PerLayer,
    Quantizer,
    Unquantised,
    compile_names,
    per_part,
)

_FORMATS = (
    "int-quantized", "float-quantized", "naive-quantized", "pack-quantized", "nvfp4-pack-quantized",
    "mxfp4-pack-quantized", "mxfp8-quantized", "marlin-24", "dense",
)  # fmt: skip
_MIXED = "mixed-precision"
_STRATEGIES = ("tensor", "channel", "group", "block", "tensor_group", "token")
_DYNAMIC: tuple[bool | str, ...] = (True, False, "local")
_ORDERED: tuple[bool | str, ...] = (True, "group", "dynamic")
_PLAIN = Unquantised()


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that are stored alike. A target is a full name, ``re:`` with the beginning of names, or ``Linear``."""

    targets: tuple[LayerName, ...]
    quantizer: Quantizer


class CompressedTensors(PerLayer):
    """The quantizer of a checkpoint: each layer's is that of the group with the most specific match."""

    name = "compressed-tensors"

    def __init__(self, groups: Sequence[Group], ignored: Sequence[LayerName]) -> None:
        self._groups, self._ignored = groups, ignored

    def choose(self, layer: LinearLayer) -> Quantizer:
        return per_part(layer, self._of_part)

    def table(self, layer: LinearLayer) -> Quantizer | None:
        """The format of embeddings that a target names in full: patterns of layers may match their names by chance."""
        names = layer.spellings(layer.name)
        return next((group.quantizer for group in self._groups if not set(names).isdisjoint(group.targets)), None)

    def _of_part(self, names: Sequence[str]) -> Quantizer:
        if any(_rank(target, name) is not None for target in self._ignored for name in names):
            return _PLAIN
        found = [
            (rank, str(target), number)
            for number, group in enumerate(self._groups)
            for target in group.targets
            for name in names
            if (rank := _rank(target, name)) is not None
        ]
        return self._groups[min(found)[-1]].quantizer if found else _PLAIN


def _rank(target: LayerName, name: str) -> int | None:
    """How specifically a target matches a layer, 0 for its own name; None if it does not."""
    if not isinstance(target, str):
        return 1 if target.match(name) else None
    if target == name:
        return 0
    return 2 if target == "Linear" else None


def make(quantization_config: Mapping[str, Any]) -> CompressedTensors:
    """The quantizer of a checkpoint. Raises ``CheckpointError`` for a config that can't be honoured."""
    scheme = Scheme(quantization_config)
    scheme.choose("quant_method", ("compressed-tensors",))
    format = scheme.choose("format", (*_FORMATS, _MIXED), "dense")
    sparse = _is_sparse(scheme.inner("sparsity_config"))
    ignored = _names(scheme, "ignore")
    groups = scheme.inner("config_groups")
    cache_alone = isinstance(scheme.json.get("kv_cache_scheme"), Mapping)
    if (groups is None or not groups.json) and not (sparse or cache_alone):
        raise scheme.error("config_groups is empty: expected at least one group of layers, or a kv_cache_scheme")
    dense = _packs_densely(scheme)
    found = () if groups is None else tuple(_read_group(groups.inner(name), format, dense) for name in groups.json)
    scheme.finish()
    return CompressedTensors(found, ignored)


def _packs_densely(scheme: Scheme) -> bool:
    """Whether packed codes run on from word to word: so the package packs since 0.18. Before, a word had whole codes.

    The two have different numbers of words where they differ, so a wrong ``version`` is a shape that does not fit.
    """
    found = re.match(r"(\d+)\.(\d+)", str(scheme.json.get("version") or ""))
    return found is None or (int(found[1]), int(found[2])) >= (0, 18)


def _is_sparse(sparsity: Scheme | None) -> bool:
    """Whether weights are stored with a bit for each. Which ones is seen from the tensors: ``sparse_source`` has them
    as dense ones, also those that are quantised.
    """
    if sparsity is None or not sparsity.json:
        return False
    return sparsity.choose("format", ("dense", *SPARSE), "dense") != "dense"


def _read_group(scheme: Scheme | None, format: str, dense: bool) -> Group:
    if scheme is None:
        raise CheckpointError("config.json: quantization_config.config_groups has a group that is null")
    targets = _names(scheme, "targets")
    format = scheme.choose("format", _FORMATS, None if format == _MIXED else format)
    weights, inputs = (_read_numbers(scheme.inner(key), dense) for key in ("weights", "input_activations"))
    if scheme.inner("output_activations") is not None:
        raise scheme.error("output_activations can't be honoured: outputs are never quantised")
    scheme.finish()
    if weights is None or format == "dense":
        return Group(targets, _PLAIN)
    return Group(targets, _FORM[format](weights, inputs))


def _names(scheme: Scheme, key: str) -> tuple[LayerName, ...]:
    return compile_names(scheme.names(key), scheme.patterns, key)


def _read_numbers(scheme: Scheme | None, dense: bool) -> Numbers | None:
    if scheme is None:
        return None
    group = None if scheme.json.get("group_size") == -1 else scheme.count("group_size")
    by_default = "group" if group else "channel" if scheme.json.get("group_size") == -1 else "tensor"
    numbers = Numbers(
        where=scheme,
        bits=scheme.choose("num_bits", (2, 3, 4, 8), 8),
        type=scheme.choose("type", ("int", "float"), "int"),
        strategy=scheme.choose("strategy", _STRATEGIES, by_default),
        symmetric=scheme.choose("symmetric", (True, False), True),
        dynamic=scheme.choose("dynamic", _DYNAMIC, False),
        group=group or 0,
        block=scheme.counts("block_structure", 2),
        ordered=scheme.choose("actorder", (*_ORDERED, False, "weight", "static"), False) in _ORDERED,
        dense=dense,
    )
    scheme.pass_over("group_size", "observer", "observer_kwargs", "scale_dtype", "zp_dtype")
    scheme.finish()
    return numbers


def _make_by_type(weights: Numbers, inputs: Numbers | None) -> Quantizer:
    return (make_int if weights.type == "int" else make_float)(weights, inputs)


_FORM = {
    "int-quantized": _make_by_type,
    "float-quantized": _make_by_type,
    "naive-quantized": _make_by_type,
    "pack-quantized": make_packed,
    "nvfp4-pack-quantized": make_nvfp4,
    "mxfp4-pack-quantized": make_mxfp4,
    "mxfp8-quantized": make_mxfp8,
    "marlin-24": make_marlin,
}
