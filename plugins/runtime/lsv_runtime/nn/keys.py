"""``config.json`` read key by key: unread keys that could change results are refused, here and nowhere else."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from lsv_base.errors import CheckpointError

T = TypeVar("T")

log = logging.getLogger(__name__)

_MOST = (1 << 31) - 1
"""No size in a config.json is larger."""
MOST_LAYERS = 10_000
"""Far more than any model has."""

# Keys about training, generation, file formats or a library's own bookkeeping: results do not depend on them.
# fmt: off
_HARMLESS = frozenset((
    "architectures", "auto_map", "bad_words_ids", "begin_suppress_tokens", "bos_token_id", "chunk_size_feed_forward",
    "cross_attention_hidden_size", "decoder_start_token_id", "diversity_penalty", "do_sample", "dtype",
    "early_stopping", "encoder_no_repeat_ngram_size", "eos_token_id", "exponential_decay_length_penalty",
    "finetuning_task", "forced_bos_token_id", "forced_eos_token_id", "id2label", "is_decoder", "is_encoder_decoder",
    "label2id", "length_penalty", "max_length", "max_position_embeddings", "max_window_layers", "min_length",
    "model_type", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_labels", "num_return_sequences",
    "output_attentions", "output_hidden_states", "output_router_logits", "output_scores", "pad_token_id", "prefix",
    "pretraining_tp", "problem_type", "pruned_heads", "quantization_config", "remove_invalid_values",
    "repetition_penalty", "return_dict", "return_dict_in_generate", "sep_token_id", "suppress_tokens",
    "task_specific_params", "temperature", "tf_legacy_loss", "tokenizer_class", "top_k", "top_p", "torch_dtype",
    "torchscript", "transformers_version", "typical_p", "unk_token_id", "unsloth_fixed", "unsloth_version",
    "use_bfloat16", "use_cache", "use_return_dict", "use_sliding_window", "vocab_size_multiple", "pad_token",
    "attn_implementation", "use_flash_attn", "use_flash_attention_2",
))
# Words of names that speak of training alone, and of names that speak of what a model computes.
_TRAINING = frozenset(("coef", "dropout", "drop", "init", "initializer", "jitter", "loss", "pdrop", "layerdrop"))
_COMPUTED = frozenset((
    "act", "activation", "alibi", "alpha", "attention", "attn", "audio", "base", "bias", "bidirectional", "block",
    "blocks", "cap", "causal", "chunk", "chunks", "clip", "conv", "decay", "deepstack", "depth", "dim", "dims",
    "embed", "embedding", "embeddings", "eps", "epsilon", "expansion", "expert", "experts", "factor", "ff", "ffn",
    "final", "fn", "freq", "gate", "gated", "global", "groups", "head", "heads", "hidden", "image", "inner",
    "interleaved", "intermediate", "k", "kernel", "key", "kv", "latent", "layer", "layernorm", "layers", "local",
    "logit", "logits", "lora", "mamba", "mask", "memory", "mlp", "moe", "multiplier", "mup", "norm", "normalize",
    "parallel", "patch", "patches", "pattern", "pos", "position", "positions", "post", "pre", "proj", "projection",
    "q", "qk", "qkv", "query", "rank", "recurrent", "residual", "rms", "rope", "rotary", "route", "routed", "router",
    "routing", "scale", "scaling", "shared", "sink", "sinks", "size", "sliding", "soft", "softcap", "softcapping",
    "sparse", "sparsity", "spatial", "ssm", "state", "step", "stride", "temperature", "temporal", "theta", "tie",
    "topk", "type", "types", "v", "value", "video", "vision", "visual", "vocab", "width", "window", "yarn",
))
# fmt: on
_WORD = re.compile(r"[a-z]+")


def matters(key: str) -> bool:
    """Whether a key that nobody has read may change what a model computes, going by the words in its name."""
    words = frozenset(_WORD.findall(key.lower()))
    if key.endswith(("_token_id", "_token_ids", "_token_index")):
        return False
    return key not in _HARMLESS and not key.startswith("_") and not words & _TRAINING and bool(words & _COMPUTED)


class Keys:
    """A JSON object that knows which of its keys have not been read yet.

    ``names`` are those that the file has for keys instead of the common ones: ``{"num_hidden_layers": "num_layers"}``.
    """

    def __init__(self, json: Mapping[str, Any], names: Mapping[str, str] | None = None) -> None:
        self.json = json
        self._names = names or {}
        self._left = set(json)
        self._passed: set[str] = set()

    def own(self, key: str) -> str:
        """What the file calls a key."""
        own = self._names.get(key, key)
        return own if own in self.json or key not in self.json else key

    def take(self, key: str, kind: type[T], default: T | None = None) -> T:
        """The value of ``key``; ``default`` where it is absent or null. Raises ``CheckpointError`` on another type."""
        key = self.own(key)
        self._left.discard(key)
        value = None if key in self._passed else self.json.get(key)
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
        value, key = self.take(key, int, default), self.own(key)
        if value < 1:
            raise CheckpointError(f"config.json: {key} must be positive, got {value}")
        if value > most:
            raise CheckpointError(f"config.json: {key} must be at most {most}, got {value}")
        return value

    def layers(self, key: str, default: int | None = None) -> int:
        """A count of layers, which are all built before the first weight is looked for: at most ``MOST_LAYERS``."""
        return self.count(key, default, most=MOST_LAYERS)

    def maybe(self, key: str, kind: type[T], absent: T | None = None) -> T | None:
        """The value of ``key``: None where it is null, and ``absent`` where it is not there."""
        own = self.own(key)
        self._left.discard(own)
        passed = own in self._passed
        return None if passed or self.json.get(own, absent) is None else self.take(key, kind, absent)

    def agree(self, key: str, own: object) -> None:
        """``key`` says what the family does anyway. Raises ``CheckpointError`` where it says something else."""
        self._left.discard(key)
        given = self.json.get(key)
        if given is not None and given != own:
            raise CheckpointError(f"config.json: {key} is {given!r:.100}, and this architecture has {own!r}")

    def pass_over(self, *keys: str) -> None:
        """Keys of other families, which count as absent. The log names those that ask for something."""
        own = {self.own(key) for key in keys}
        self._left -= own
        self._passed |= own
        asking = sorted(key for key in own if self.json.get(key) not in (None, False, "", [], {}))
        if asking:
            log.info("config.json has keys that this family does not have; they are passed over: %s", ", ".join(asking))

    def skip(self, *keys: str) -> None:
        """Keys that change nothing here although their names sound as if they did."""
        self._left.difference_update(keys)

    def finish(self, architecture: str) -> None:
        """Raise ``CheckpointError`` naming the unread keys that could change results, and tell of others in the log.

        Empty and false values ask for nothing. ``architecture`` is who did not read them, for the message.
        """
        left = sorted(key for key in self._left if self.json[key] not in (None, False, "", [], {}))
        unknown = [key for key in left if matters(key)]
        ignored = [key for key in left if key not in _HARMLESS and not key.startswith("_") and key not in unknown]
        if ignored:
            log.info("config.json has keys that are taken to change nothing: %s", ", ".join(ignored)[:500])
        if unknown:
            raise CheckpointError(
                f"config.json has keys {architecture} does not know and that could change results: "
                f"{', '.join(unknown)}; remove them with --hf-overrides '{{\"<key>\": null}}' if they do not matter"
            )
