"""Files of Intel Neural Compressor's FP8 mode: the configuration that QUANT_CONFIG names, and what was measured or
derived for each module of a model.

Beside each JSON file lies a pickle (.npz) of the same numbers, which is never read. Source: the package
``neural_compressor.torch.algorithms.fp8_quant``, its ``_quant_common.quant_config`` and ``_core``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from lsv.errors import CheckpointError, ConfigError
from lsv_quant.scheme import Scheme

Device = Literal["gaudi2", "gaudi3"]
Kind = Literal["DynamicRange", "Scale"]

_LARGEST: Mapping[Device, float] = {"gaudi2": 240.0, "gaudi3": 448.0}
"""Of e4m3 on a device."""
_HARDWARE: Mapping[Device, tuple[int, int, int]] = {"gaudi2": (-8, 4, 4), "gaudi3": (-55, 7, 1)}
"""Exponents of the scales that cost nothing: first, last, step. They are those of the exponent biases 3, 7, 11, 15 and
0 … 62."""
_COMPUTED = ("maxabs_hw", "maxabs_pow2", "maxabs_arbitrary", "unit_scale")
_MODES = ("quantize", "measure", "auto", "load", "none", "shape")
_DESCRIBED = (
    "method", "fp8_config", "hp_dtype", "scale_format", "measure_exclude", "ignore_modules_wo_measures",
    "recalc_scales", "use_qdq", "fake_quant", "seperate_measure_files", "device_for_scales", "device_type",
    "measure_on_hpu", "mod_dict", "calibration_sample_interval", "quantize_weight", "dynamic_quantization",
)  # fmt: skip
"""Keys that say how to measure or run, not what files hold."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Modules by a part of their name or by their class."""

    names: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class IncConfig:
    """``method`` derives scales from what ``observer`` measured; ``prefix`` begins the names of all files."""

    mode: str
    observer: str
    method: str
    prefix: str
    allowed: Selection
    blocked: Selection
    input_backoff: float
    weight_backoff: float

    def file(self, kind: Kind, folder: Path, rank: int, size: int) -> Path:
        """Where a rank's numbers are; ``folder`` is what the prefix is relative to.

        Raises ``ConfigError`` if there is no such file: measurements only fit the number of ranks they were made for.
        """
        method = f"_{self.method.upper()}" if kind == "Scale" else ""
        stem = f"{self.prefix}_hooks_{self.observer}{method}"
        names = [f"{stem}_{rank}_{size}.json", *([f"{stem}.json"] if size == 1 else [])]
        for name in names:
            if (folder / name).is_file():
                return folder / name
        raise ConfigError(
            f"{folder / names[0]} does not exist: measure the model with {size} ranks, or correct QUANT_CONFIG"
        )


@dataclass(frozen=True, slots=True)
class Numbers:
    """Of one module, float32: for each of its inputs and outputs, and for its parameters by name.

    A number is for a tensor or for each channel; a weight may have two: by output and by input.
    """

    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]
    params: Mapping[str, tuple[torch.Tensor, ...]]


def read_config(path: Path) -> IncConfig:
    """Raises ``CheckpointError`` for a file that can't be read or asks for what is not known."""
    found = _read(path)
    words = {key: found[key].lower() for key in ("mode", "scale_method") if isinstance(found.get(key), str)}
    scheme = Scheme({**found, **words}, str(path))
    backoffs = scheme.inner("scale_params") or Scheme({}, str(path))
    config = IncConfig(
        mode=scheme.choose("mode", _MODES, "quantize"),
        observer=scheme.choose("observer", ("maxabs", "maxabs_per_channel"), "maxabs"),
        method=str(scheme.json.get("scale_method") or "maxabs_hw"),
        prefix=str(scheme.json.get("dump_stats_path") or "stats"),
        allowed=_selection(scheme, "allowlist", "whitelist"),
        blocked=_selection(scheme, "blocklist", "blacklist"),
        input_backoff=float(backoffs.json.get("input_backoff", 0.25)),
        weight_backoff=float(backoffs.json.get("weight_backoff", 0.5)),
    )
    backoffs.pass_over("input_backoff", "weight_backoff")
    backoffs.finish()
    scheme.pass_over("scale_method", "dump_stats_path", *_DESCRIBED)
    scheme.finish()
    return config


def read_numbers(path: Path, kind: Kind) -> Mapping[str, Numbers]:
    """Modules by name. Raises ``CheckpointError`` for a file of another kind or form."""
    scheme = Scheme(_read(path), str(path))
    scheme.choose("Mode", (kind,))
    nodes = scheme.inner("Nodes")
    if nodes is None:
        raise scheme.error("Nodes is missing")
    found = {name: _read_node(nodes, name) for name in nodes.json}
    scheme.pass_over("GlobalRank", "LocalRank", "NumSamples")
    scheme.finish()
    return found


def scales_from(ranges: Mapping[str, Numbers], config: IncConfig, device: Device) -> Mapping[str, Numbers]:
    """What tensors are divided by to be e4m3 on a device, from the largest numbers that were measured.

    Raises ``ConfigError`` for a method that needs the weights themselves; its scales are in a file of their own.
    """
    if config.method not in _COMPUTED:
        raise ConfigError(
            f"scale_method {config.method} can't be derived from measurements; what can is {', '.join(_COMPUTED)}"
        )
    return {name: _scaled(numbers, config, device) for name, numbers in ranges.items()}


def _scaled(ranges: Numbers, config: IncConfig, device: Device) -> Numbers:
    def scale(measured: torch.Tensor, backoff: float) -> torch.Tensor:
        if config.method == "unit_scale":
            return torch.ones_like(measured)
        exact = measured / (_LARGEST[device] * backoff)
        if config.method == "maxabs_arbitrary":
            return exact
        exponents = exact.log2().ceil()
        if config.method == "maxabs_hw":
            first, last, step = _HARDWARE[device]
            exponents = ((exponents / step).ceil() * step).clamp(first, last)
        return exponents.exp2()

    return Numbers(
        tuple(scale(found, config.input_backoff) for found in ranges.inputs),
        tuple(scale(found, config.input_backoff) for found in ranges.outputs),
        {name: tuple(scale(part, config.weight_backoff) for part in found) for name, found in ranges.params.items()},
    )


def _read(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except OSError as cause:
        raise CheckpointError(f"can't read {path}: {cause.strerror}") from cause
    except ValueError as cause:
        raise CheckpointError(f"{path} is not JSON: {cause}") from cause
    if not isinstance(found, Mapping):
        raise CheckpointError(f"{path} must be an object, got {str(found)[:60]}")
    return found


def _selection(scheme: Scheme, *keys: str) -> Selection:
    """Under its name of today or of before."""
    for key in keys:
        found = scheme.inner(key)
        if found is not None:
            selection = Selection(found.names("names"), found.names("types"))
            found.finish()
            return selection
    return Selection()


def _read_node(nodes: Scheme, name: str) -> Numbers:
    node = nodes.inner(name)
    if node is None:
        raise nodes.error(f"{name} is null")
    params = node.inner("params") or Scheme({}, node.where)
    numbers = Numbers(
        _tensors(node, "inputs", "input"),
        _tensors(node, "outputs", "output"),
        {param: _parts(params, param) for param in params.json},
    )
    node.finish()
    return numbers


def _tensors(node: Scheme, *keys: str) -> tuple[torch.Tensor, ...]:
    """A list of numbers or of lists, under its name of today or of before."""
    node.pass_over(*keys)
    found: Any = next((node.json[key] for key in keys if node.json.get(key) is not None), [])
    return tuple(_tensor(node, value) for value in (found if isinstance(found, list) else [found]))


def _parts(params: Scheme, name: str) -> tuple[torch.Tensor, ...]:
    found = params.json[name]
    parts = [found[key] for key in sorted(found)] if isinstance(found, Mapping) else [found]
    return tuple(_tensor(params, part) for part in parts)


def _tensor(place: Scheme, value: Any) -> torch.Tensor:
    try:
        tensor = torch.tensor(value, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError) as cause:
        raise place.error(f"{str(value)[:60]} is not a number or an array of them") from cause
    if not bool((tensor >= 0).all()):
        raise place.error(f"{str(value)[:60]} has numbers that are negative or not numbers")
    return tensor
