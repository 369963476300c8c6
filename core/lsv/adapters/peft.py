"""``adapter_config.json`` as PEFT writes it: which modules an adapter changes, and by how much. Imports no torch.

Source: ``peft.tuners.lora.config.LoraConfig`` and ``peft.tuners.lora.model``, release 0.17.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from lsv_base.errors import BadRequest, CheckpointError, LsvError
from lsv_base.untrusted.files import open_regular, read_descriptor, read_regular
from lsv_base.untrusted.patterns import Pattern, Patterns

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
"""The files that may hold an adapter's weights, in order of preference."""
_NAME = re.compile(r"(?:[A-Za-z0-9._-]{1,64}~)?[\w.\-:/@]{1,200}")
"""An account's own adapter has the account as a prefix, see ``lsv.request.adapter.owned_name``."""
CONFIG_BYTES = 1 << 20
WEIGHTS_BYTES = 8 << 30
"""The largest files that are read."""
_PIECE = 1 << 20
_LARGEST = 1 << 31
_KINDS = {int: "a whole number", float: "a number", bool: "true or false"}

_HARMLESS = frozenset(
    ("peft_type", "task_type", "base_model_name_or_path", "revision", "inference_mode", "auto_mapping", "r",
     "lora_alpha", "lora_dropout", "target_modules", "exclude_modules", "fan_in_fan_out", "layers_to_transform",
     "layers_pattern", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora", "init_lora_weights",
     "modules_to_save", "loftq_config", "eva_config", "runtime_config", "qalora_group_size", "peft_version",
     "megatron_core", "corda_config", "lora_ga_config")
)  # fmt: skip
"""Keys that are read here, or that say how an adapter was trained."""
_REFUSED: Mapping[str, str] = {
    "use_qalora": "QALoRA pools the inputs of its layers",
    "use_bdlora": "block-diagonal adapters are not served",
    "lora_bias": "biases of adapters are not served",
    "ensure_weight_tying": "an adapter of the embedding is not applied to the tied head",
    "trainable_token_indices": "changed rows of the embedding are not served",
    "target_parameters": "adapters of bare parameters, such as stacked experts, are not served",
    "layer_replication": "layers can't be repeated",
    "megatron_config": "layers of Megatron are not served",
    "alora_invocation_tokens": "adapters that start at an invocation token are not served",
    "arrow_config": "routed adapters are not served",
}
"""Unsupported keys that change what an adapter computes, with the reason."""
_ALTERS_BASE = ("pissa", "olora", "loftq", "corda", "lora_ga")
"""Prefixes of ``init_lora_weights`` values whose initialisation changes the base model's weights."""


class PeftConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The part of an adapter's configuration that lsv uses."""

    rank: int
    alpha: float
    targets: Pattern | tuple[str, ...] | None
    """An expression that matches whole names of modules, or their last components; None means every module."""
    endings: Mapping[str, Pattern] = {}
    """For each key of ``ranks`` and ``alphas``, the pattern that matches its modules."""
    ranks: Mapping[str, int] = {}
    """Other ranks, by a regular expression that matches the end of a module's name."""
    alphas: Mapping[str, float] = {}
    rank_stabilised: bool = False
    """Whether the scale is alpha / sqrt(rank)."""
    saved: tuple[str, ...] = ()
    """The last components of modules that the adapter has whole copies of."""
    magnitudes: bool = False
    """Whether the adapter has magnitudes (DoRA)."""

    @property
    def largest_rank(self) -> int:
        return max((self.rank, *self.ranks.values()))

    def rank_of(self, module: str) -> int:
        return self.ranks.get(self._pattern(module), self.rank)

    def scale_of(self, module: str) -> float:
        """What the product of a module's two matrices is multiplied by."""
        rank, alpha = self.rank_of(module), self.alphas.get(self._pattern(module), self.alpha)
        return alpha / math.sqrt(rank) if self.rank_stabilised else alpha / rank

    def means(self, module: str) -> bool:
        """Whether the adapter targets a module."""
        if isinstance(self.targets, Pattern):
            return self.targets.fullmatch(module)
        if self.targets is None:
            return True
        return any(f".{module}".endswith(f".{name}") for name in self.targets)

    def _pattern(self, module: str) -> str:
        """The key of ``ranks`` and ``alphas`` for a module. PEFT uses the first key that matches."""
        return next((key for key, ending in self.endings.items() if ending.match(module)), module)


def read_config(folder: Path) -> PeftConfig:
    """Raises ``CheckpointError`` without a configuration, or for an unsupported setting, which the error names."""
    path = folder / CONFIG
    descriptor = open_config(path)
    try:
        return parse_config(path, read_descriptor(path, descriptor, CONFIG_BYTES))
    finally:
        os.close(descriptor)


def open_config(path: Path) -> int:
    """A descriptor of an adapter's configuration. Raises ``CheckpointError`` unless it is a regular file."""
    try:
        return open_regular(path, CONFIG_BYTES)
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} has no {CONFIG}: it is not a PEFT adapter") from None


def open_weights(path: Path) -> int:
    """A descriptor of an adapter's weights. Raises ``CheckpointError`` as ``open_config``."""
    try:
        return open_regular(path, WEIGHTS_BYTES)
    except FileNotFoundError:
        raise CheckpointError(f"{path} no longer exists") from None


def parse_config(path: Path, text: bytes) -> PeftConfig:
    """The configuration in the file ``path``, which holds ``text``. Raises ``CheckpointError``."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as cause:
        raise CheckpointError(f"{path} is not valid JSON: {cause}") from cause
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} must hold a JSON object")
    _refuse(path, found)
    patterns = Patterns(str(path))
    ranks, alphas = _by_module(path, found, "rank_pattern", int), _by_module(path, found, "alpha_pattern", float)
    config = PeftConfig(
        rank=_take(path, found, "r", int, 8),
        alpha=_take(path, found, "lora_alpha", float, 8.0),
        targets=_targets(path, found, patterns),
        endings={
            **{one: patterns.compile(_ending(one), "rank_pattern") for one in ranks},
            **{one: patterns.compile(_ending(one), "alpha_pattern") for one in alphas if one not in ranks},
        },
        ranks=ranks,
        alphas=alphas,
        rank_stabilised=_take(path, found, "use_rslora", bool, False),
        saved=_names(path, found, "modules_to_save"),
        magnitudes=_take(path, found, "use_dora", bool, False),
    )
    if min((config.rank, *config.ranks.values())) < 1:
        raise CheckpointError(f"{path}: ranks must be at least 1")
    return config


def digest(folder: Path) -> bytes:
    """The sha256 of an adapter's files. Raises ``CheckpointError`` where one is missing."""
    path = weights_file(folder)
    config = read_regular(folder / CONFIG, CONFIG_BYTES)
    descriptor = open_weights(path)
    try:
        return digest_of(config, path, descriptor)
    finally:
        os.close(descriptor)


def digest_of(config: bytes, path: Path, descriptor: int) -> bytes:
    """The same of a configuration that was read, and of weights that are open."""
    found = hashlib.sha256(config)
    found.update(b"\0")
    offset = 0
    try:
        while piece := os.pread(descriptor, _PIECE, offset):
            found.update(piece)
            offset += len(piece)
    except OSError as cause:
        raise CheckpointError(f"can't read {path}: {cause.strerror}") from cause
    found.update(b"\0")
    return found.digest()


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Raises ``CheckpointError`` in the place of whatever else goes wrong: files may hold anything, and a server that
    reads them must not end.
    """
    try:
        yield
    except LsvError:
        raise
    except Exception as cause:
        raise CheckpointError(f"{folder}: the adapter can't be read: {type(cause).__name__}: {cause}") from cause


def is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def check_name(name: str) -> None:
    """Raises ``BadRequest`` for what is no name of a model."""
    if not is_name(name):
        raise BadRequest(
            f"an adapter's name is up to 200 letters, digits and ._-:/@, got {name!r:.100}", param="lora_name"
        )


def weights_file(folder: Path) -> Path:
    """The file of an adapter's weights. Raises ``CheckpointError`` where there is none."""
    path = next((folder / name for name in WEIGHTS if (folder / name).exists()), None)
    if path is None:
        raise CheckpointError(f"{folder} has neither {' nor '.join(WEIGHTS)}")
    return path


def _refuse(path: Path, found: Mapping[str, Any]) -> None:
    kind = found.get("peft_type", "LORA")
    if kind != "LORA":
        raise CheckpointError(f"{path}: peft_type {kind!r:.100} is not served; LORA is")
    if found.get("bias", "none") != "none":
        raise CheckpointError(f"{path}: bias {found['bias']!r:.100} is not served: its biases belong to the base model")
    begun = found.get("init_lora_weights")
    if isinstance(begun, str) and begun.lower().startswith(_ALTERS_BASE):
        raise CheckpointError(
            f"{path}: init_lora_weights {begun!r:.100} changes the base model's weights: save the adapter converted to "
            "an ordinary one (path_initial_model_for_weight_conversion of PEFT)"
        )
    for key, value in found.items():
        if key in _REFUSED and value:
            raise CheckpointError(f"{path}: {key}: {_REFUSED[key]}; merge the adapter into its model's weights")
        if key not in _HARMLESS and key not in _REFUSED and key != "bias" and value:
            raise CheckpointError(f"{path}: {key}={value!r:.100} is not known, and may change results")


def _names(path: Path, found: Mapping[str, Any], key: str) -> tuple[str, ...]:
    names = found.get(key) or ()
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name for name in names):
        raise CheckpointError(f"{path}: {key} must be a list of names, got {names!r:.100}")
    return tuple(names)


def _targets(path: Path, config: Mapping[str, Any], patterns: Patterns) -> Pattern | tuple[str, ...] | None:
    found = config.get("target_modules")
    if not found and config.get("modules_to_save"):
        return ()
    if isinstance(found, str) and found:
        return None if found == "all-linear" else patterns.compile(found, "target_modules")
    if isinstance(found, Sequence) and found and all(isinstance(name, str) and name for name in found):
        return tuple(found)
    raise CheckpointError(f"{path}: target_modules must be a list of names, or a regular expression")


def _take(path: Path, found: Mapping[str, Any], key: str, kind: type, default: Any) -> Any:
    value = found.get(key, default)
    if not _is(kind, value):
        raise CheckpointError(f"{path}: {key} must be {_KINDS[kind]}, got {value!r:.100}")
    return kind(value)


def _is(kind: type, value: Any) -> bool:
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    if isinstance(value, int):
        return abs(value) <= _LARGEST
    return kind is float and isinstance(value, float) and math.isfinite(value)


def _by_module(path: Path, found: Mapping[str, Any], key: str, kind: type) -> dict[str, Any]:
    patterns = found.get(key) or {}
    if not isinstance(patterns, dict) or not all(_is(kind, value) for value in patterns.values()):
        raise CheckpointError(f"{path}: {key} must map names to numbers, got {patterns!r:.100}")
    return {name: kind(value) for name, value in patterns.items()}


def _ending(pattern: str) -> str:
    """What matches the names of modules that end with a match of ``pattern``, at a dot."""
    return rf"(.*\.)?({pattern})$"
