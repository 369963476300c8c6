"""``config.json`` read key by key: unread keys that could change results are refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from lsv.errors import CheckpointError

T = TypeVar("T")

_MOST = (1 << 31) - 1
"""No size in a config.json is larger."""
MOST_LAYERS = 10_000
"""Far more than any model has."""

# Keys about training, generation, file formats or a library's own bookkeeping: results do not depend on them.
# fmt: off
_HARMLESS = frozenset((
    "_name_or_path", "_attn_implementation", "_commit_hash", "architectures", "attention_dropout",
    "auto_map", "bos_token_id", "chunk_size_feed_forward", "classifier_dropout", "dtype", "embd_pdrop",
    "eos_token_id", "finetuning_task", "hidden_dropout", "id2label", "initializer_range", "is_decoder",
    "is_encoder_decoder", "label2id", "max_position_embeddings", "max_window_layers", "model_type",
    "num_labels", "output_attentions", "output_hidden_states", "output_router_logits", "pad_token_id",
    "pretraining_tp", "problem_type", "quantization_config", "resid_pdrop", "return_dict",
    "router_aux_loss_coef", "router_jitter_noise", "task_specific_params", "tokenizer_class",
    "torch_dtype", "torchscript", "transformers_version", "unk_token_id", "use_cache", "use_return_dict",
    "use_sliding_window",
))
# fmt: on


class Keys:
    """A JSON object that knows which of its keys have not been read yet."""

    def __init__(self, json: Mapping[str, Any]) -> None:
        self.json = json
        self._left = set(json)

    def take(self, key: str, kind: type[T], default: T | None = None) -> T:
        """The value of ``key``; ``default`` where it is absent or null. Raises ``CheckpointError`` on another type."""
        self._left.discard(key)
        value = self.json.get(key)
        if value is None:
            value = default
        if kind is float and type(value) is int and abs(value) < _MOST:
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise CheckpointError(f"config.json: {key} must be {kind.__name__}, got {value!r:.100}")
        if isinstance(value, float) and not math.isfinite(value):
            raise CheckpointError(f"config.json: {key} must be a finite number, got {value!r}")
        return value

    def count(self, key: str, default: int | None = None, *, most: int = _MOST) -> int:
        """The value of ``key``, a positive integer of at most ``most``. Raises ``CheckpointError`` for any other."""
        value = self.take(key, int, default)
        if value < 1:
            raise CheckpointError(f"config.json: {key} must be positive, got {value}")
        if value > most:
            raise CheckpointError(f"config.json: {key} must be at most {most}, got {value}")
        return value

    def layers(self, key: str, default: int | None = None) -> int:
        """A count of layers, which are all built before the first weight is looked for: at most ``MOST_LAYERS``."""
        return self.count(key, default, most=MOST_LAYERS)

    def maybe(self, key: str, kind: type[T]) -> T | None:
        """The value of ``key``, or None where it is absent or null."""
        self._left.discard(key)
        return None if self.json.get(key) is None else self.take(key, kind)

    def finish(self, architecture: str) -> None:
        """Raise ``CheckpointError`` naming the unread keys, except those with empty or false values.

        ``architecture`` is who did not read them, for the message.
        """
        unknown = sorted(key for key in self._left - _HARMLESS if self.json[key] not in (None, False, "", [], {}))
        if unknown:
            raise CheckpointError(
                f"config.json has keys {architecture} does not know and that could change results: "
                f"{', '.join(unknown)}; remove them with --hf-overrides '{{\"<key>\": null}}' if they do not matter"
            )
