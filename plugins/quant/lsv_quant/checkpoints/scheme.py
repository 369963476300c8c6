"""Reading ``quantization_config`` and the like: anything that is not understood or can't be honoured is refused by
name, and what only describes a checkpoint is passed over.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from lsv_base.errors import CheckpointError
from lsv_base.untrusted.patterns import Patterns

T = TypeVar("T")

log = logging.getLogger(__name__)

# fmt: off
_DESCRIPTIVE = frozenset((
    "act_group_aware", "amp", "autoround_version", "backend", "batch_size", "block_name_to_quantize",
    "cache_block_outputs", "damp_auto_increment", "damp_percent", "dataset", "dequantize", "disable_exllama",
    "do_fuse", "enable_alg_ext", "enable_minmax_tuning", "enable_norm_bias_tuning", "enable_quanted_input",
    "enable_torch_compile", "exllama_config", "fuse_max_seq_len", "global_compression_ratio",
    "gradient_accumulate_steps", "iters", "kv_cache_scheme", "low_cpu_mem_usage", "low_gpu_mem_usage", "lr",
    "max_input_length", "meta",
    "minmax_lr", "model_file_base_name", "model_free", "model_name_or_path", "model_seqlen",
    "module_name_preceding_first_block", "modules_to_fuse", "momentum", "mse", "not_use_best_mse", "nsamples",
    "pad_token_id", "quantization_status", "quantizer", "sampler", "scale_dtype", "seed", "seqlen",
    "static_attention_granularity", "static_groups", "static_kv_granularity", "supported_types",
    "to_quant_block_names", "tokenizer", "true_sequential", "use_cuda_fp16", "use_exllama", "version",
))
"""Keys of every format's writers that say how a checkpoint was made or is run elsewhere, or that the KV cache reads."""
_WRITERS = frozenset((
    "author", "creator", "framework", "generator", "library", "producer", "provider", "quantized_by", "tool", "toolkit",
    "writer",
))
"""Keys under which writers name themselves."""
_REPEATED = ("method", "quantization_method")
"""Keys that repeat ``quant_method``."""
# fmt: on


class Scheme:
    """A JSON object that knows which of its keys have not been read. ``where`` is its file and place there, for
    messages.
    """

    def __init__(
        self,
        json: Any,
        where: str = "config.json: quantization_config",
        path: Sequence[str] = ("quantization_config",),
        patterns: Patterns | None = None,
    ) -> None:
        """``path`` is where the object is in config.json; ``patterns`` compiles all of the config's expressions."""
        if not isinstance(json, Mapping):
            raise CheckpointError(f"{where} must be an object, got {json!r}")
        self.json, self.where, self.path = json, where, tuple(path)
        self.patterns = patterns or Patterns(where)
        self._left = set(json)

    def choose(self, key: str, allowed: Sequence[T], default: T | None = None) -> T:
        """The value of ``key``, or ``default`` if it is absent or null. Raises ``CheckpointError`` if it is not one of
        ``allowed``.
        """
        self._left.discard(key)
        value = self.json.get(key)
        value = default if value is None else value
        for one in allowed:
            if value == one and isinstance(value, type(one)):
                return one
        raise self.error(f"{key} is {value!r}; what can be read is {', '.join(map(repr, allowed))}")

    def names(self, key: str) -> tuple[str, ...]:
        """A list of strings, empty if the key is absent or null."""
        self._left.discard(key)
        value = self.json.get(key) or []
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self.error(f"{key} must be a list of names, got {value!r}")
        return tuple(value)

    def count(self, key: str, default: int | None = None) -> int | None:
        """A positive integer, or ``default``."""
        self._left.discard(key)
        value = self.json.get(key)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.error(f"{key} must be a positive whole number, got {value!r}")
        return value

    def number(self, key: str, default: float) -> float:
        """A positive number, or ``default``."""
        self._left.discard(key)
        value = self.json.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.error(f"{key} must be a positive number, got {value!r}")
        return float(value)

    def counts(self, key: str, length: int) -> tuple[int, ...] | None:
        """``length`` positive integers."""
        self._left.discard(key)
        value = self.json.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != length or not all(type(n) is int and n > 0 for n in value):
            raise self.error(f"{key} must be {length} positive whole numbers, got {value!r}")
        return tuple(value)

    def inner(self, key: str) -> Scheme | None:
        """The object under ``key``, None if it is absent or null."""
        self._left.discard(key)
        value = self.json.get(key)
        return None if value is None else self.below(key, value)

    def below(self, key: str, value: Any) -> Scheme:
        """What an object has under ``key``."""
        return Scheme(value, f"{self.where}.{key}", (*self.path, key), self.patterns)

    def pass_over(self, *keys: str) -> None:
        """Mark keys as read that do not affect the result, or that others read."""
        self._left.difference_update(keys)

    def finish(self) -> None:
        """Raise ``CheckpointError`` naming the unread keys that may change what weights mean.

        Empty and false values ask for nothing. The log names other keys that are not known to any format.
        """
        left = sorted(key for key in self._left - _DESCRIPTIVE if self.json[key] not in (None, False, "", [], {}))
        named = [key for key in left if self._names_writer(key)]
        if named:
            log.info("%s: keys that only name the writer are passed over: %s", self.where, self._shown(named))
        unknown = [key for key in left if key not in named]
        if unknown:
            raise self.error(
                f"{self._shown(unknown)} can't be honoured: nothing is known about it. If it does not change what "
                f"weights mean, start with --hf-overrides '{self._without(unknown)}'"
            )

    def _names_writer(self, key: str) -> bool:
        """Whether a key repeats the format's name, or names a tool."""
        value = self.json[key]
        repeated = key in _REPEATED and value == self.json.get("quant_method")
        return isinstance(value, str) and (key in _WRITERS or repeated)

    def _shown(self, keys: Sequence[str]) -> str:
        return ", ".join(f"{key} = {self.json[key]!r:.100}" for key in keys)

    def _without(self, keys: Sequence[str]) -> str:
        """What replaces keys by null."""
        changes: dict[str, Any] = dict.fromkeys(keys)
        for key in reversed(self.path):
            changes = {key: changes}
        return json.dumps(changes)

    def error(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: {problem}")
