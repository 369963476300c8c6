"""Files of Intel Neural Compressor's FP8 mode: the configuration that QUANT_CONFIG names, and what was measured.

A measurement is the largest absolute number of each module's input, in one JSON file a rank. Beside files that
Neural Compressor wrote lies a pickle (.npz) of the same numbers, which is never read. Source: the package
``neural_compressor.torch.algorithms.fp8_quant``, its ``_quant_common.quant_config`` and ``_core``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from lsv.config import EngineConfig
from lsv_base.errors import CheckpointError, ConfigError
from lsv_hpu.devices import LARGEST_FP8, Gaudi

_HARDWARE: Mapping[Gaudi, tuple[int, int, int]] = {"gaudi2": (-8, 4, 4), "gaudi3": (-55, 7, 1)}
"""Exponents of the scales that cost nothing: first, last, step. They are those of the exponent biases 3, 7, 11, 15 and
0 … 62."""
_OLDER = {"whitelist": "allowlist", "blacklist": "blocklist"}
_DESCRIBED = (
    "method", "fp8_config", "hp_dtype", "measure_exclude", "recalc_scales", "use_qdq", "seperate_measure_files",
    "device_for_scales", "device_type", "measure_on_hpu", "mod_dict", "calibration_sample_interval", "quantize_weight",
    "ignore_modules_wo_measures",
)  # fmt: skip
"""Keys that say how Neural Compressor itself works, not what is computed."""

Method = Literal["maxabs_hw", "maxabs_pow2", "maxabs_arbitrary", "unit_scale"]


class Selection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Modules by a part of their name or by their class."""

    names: tuple[str, ...] = ()
    types: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.names or self.types)

    def has(self, name: str, types: frozenset[str]) -> bool:
        return any(part in name for part in self.names) or not types.isdisjoint(self.types)


class Backoffs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The share of the range that what was measured may fill."""

    input_backoff: float = 0.25
    weight_backoff: float = 0.5


class QuantConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``scale_method`` derives scales from what ``observer`` measured; ``dump_stats_path`` begins the names of files.

    Whether scales are constants of a graph (``scale_format``) makes no difference here: they always are tensors.
    """

    mode: Literal["MEASURE", "QUANTIZE"] = "QUANTIZE"
    observer: Literal["maxabs"] = "maxabs"
    scale_method: Method = "maxabs_hw"
    scale_format: Literal["scalar", "const"] = "scalar"
    scale_params: Backoffs = Backoffs()
    dump_stats_path: str = "stats"
    allowlist: Selection = Selection()
    blocklist: Selection = Selection()
    dynamic_quantization: Literal[False] = False
    fake_quant: Literal[False] = False

    def covers(self, name: str, types: frozenset[str]) -> bool:
        """Whether a module is measured or quantised; an empty allowlist allows all."""
        allowed = not self.allowlist or self.allowlist.has(name, types)
        return allowed and not self.blocklist.has(name, types)

    def file(self, rank: int, size: int) -> Path:
        """Where a rank's measurements go."""
        return Path(f"{self.dump_stats_path}_hooks_{self.observer}_{rank}_{size}.json")

    def found(self, rank: int, size: int) -> Path:
        """Where they are. Raises ``ConfigError``: measurements only fit the number of ranks they were made for."""
        names = [self.file(rank, size)]
        if size == 1:
            names.append(Path(f"{self.dump_stats_path}_hooks_{self.observer}.json"))
        for name in names:
            if name.is_file():
                return name
        raise ConfigError(
            f"{names[0]} does not exist: measure the model on {size} {'device' if size == 1 else 'devices'} (mode "
            "MEASURE), or correct dump_stats_path in QUANT_CONFIG",
            param="hpu.quant_config",
        )

    def scale(self, largest: float, backoff: float, gaudi: Gaudi) -> float:
        """What a tensor whose largest number is ``largest`` is divided by to be e4m3 on a device."""
        if self.scale_method == "unit_scale" or largest == 0:
            return 1.0
        exact = largest / (LARGEST_FP8[gaudi] * backoff)
        if self.scale_method == "maxabs_arbitrary":
            return exact
        exponent = math.ceil(math.log2(exact))
        if self.scale_method == "maxabs_hw":
            first, last, step = _HARDWARE[gaudi]
            exponent = min(max(math.ceil(exponent / step) * step, first), last)
        return 2.0**exponent


class Measured(msgspec.Struct, frozen=True, rename="pascal"):
    """One rank's file: by a module's name its numbers, of inputs, outputs and parameters, however nested."""

    mode: str
    nodes: Mapping[str, Mapping[str, Any]]
    device: Gaudi | None = None
    global_rank: int | None = None
    local_rank: int | None = None

    def inputs(self) -> dict[str, float]:
        """The largest input of each module. Raises ``ValueError`` for a value that is not a number or is negative."""
        return {
            name: max(_numbers(node.get("inputs", node.get("input"))), default=0.0) for name, node in self.nodes.items()
        }


def read_config(path: Path) -> QuantConfig:
    """Raises ``ConfigError`` for a file that can't be read or asks for what is not there."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as cause:
        raise ConfigError(f"QUANT_CONFIG: can't read {path}: {cause.strerror}", param="hpu.quant_config") from cause
    except msgspec.DecodeError as cause:
        raise ConfigError(f"QUANT_CONFIG: {path}: {cause}", param="hpu.quant_config") from cause
    found = {_OLDER.get(key, key): value for key, value in found.items() if key not in _DESCRIBED}
    for key, turn in (
        ("mode", str.upper),
        ("observer", str.lower),
        ("scale_method", str.lower),
        ("scale_format", str.lower),
    ):
        if isinstance(found.get(key), str):
            found[key] = turn(found[key])
    try:
        return msgspec.convert(found, QuantConfig)
    except msgspec.ValidationError as cause:
        raise ConfigError(
            f"QUANT_CONFIG: {path}: {cause}; see the hpu plugin's README", param="hpu.quant_config"
        ) from None


def read_measured(path: Path, gaudi: Gaudi) -> dict[str, float]:
    """The largest input of each module by name.

    Raises ``CheckpointError`` for a file of another form, ``ConfigError`` for one measured on another kind of device;
    files of Neural Compressor do not say on which.
    """
    try:
        measured = msgspec.json.decode(path.read_bytes(), type=Measured)
        if measured.mode != "DynamicRange":
            raise ValueError(f"Mode is {measured.mode}, expected DynamicRange")
        inputs = measured.inputs()
    except (msgspec.DecodeError, ValueError) as cause:
        raise CheckpointError(f"{path} has no measurements: {cause}") from cause
    if measured.device not in (None, gaudi):
        raise ConfigError(
            f"{path} was measured on {measured.device}, and this is {gaudi}: measure the model here",
            param="hpu.quant_config",
        )
    return inputs


def write_measured(path: Path, inputs: Mapping[str, float], gaudi: Gaudi, rank: int) -> None:
    nodes = {name: {"inputs": [[[largest]]]} for name, largest in inputs.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(Measured("DynamicRange", nodes, gaudi, rank, rank)))


def find_problems(config: EngineConfig) -> Iterator[str]:
    """What in a configuration of this platform does not fit ``--quantization inc``, one sentence each."""
    named = config.options.get("hpu.quant_config")
    if config.quantization != "inc":
        if named:
            yield f"hpu.quant_config={named} (QUANT_CONFIG) is for --quantization inc: give that too, or leave it out"
        return
    if not named:
        yield "quantization inc needs the file that hpu.quant_config (QUANT_CONFIG) names"
        return
    try:
        found = read_config(Path(str(named)))
        if found.mode == "QUANTIZE":
            for rank in range(config.topology.tensor):
                found.found(rank, config.topology.tensor)
        elif not config.options.get("hpu.skip_warmup"):
            yield "warming up would be measured too: give hpu.skip_warmup (VLLM_SKIP_WARMUP) with mode MEASURE"
    except ConfigError as problem:
        yield problem.message


def _numbers(found: Any) -> Iterator[float]:
    if isinstance(found, list):
        for one in found:
            yield from _numbers(one)
    elif isinstance(found, int | float) and not isinstance(found, bool) and found >= 0:
        yield float(found)
    elif found is not None:
        raise ValueError(f"{str(found)[:60]} is not a number, or a negative one")
