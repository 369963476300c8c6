"""``config.json`` of a decoder, read key by key: what nobody consumed and could change results is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from lsv.errors import CheckpointError
from lsv.nn.rope import RopeConfig, read_rope

T = TypeVar("T")

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
    """A JSON object whose keys are taken one by one, so that those left over are known."""

    def __init__(self, json: Mapping[str, Any]) -> None:
        self.json = json
        self._left = set(json)

    def take(self, key: str, kind: type[T], default: T | None = None) -> T:
        """The value of ``key``; ``default`` where it is absent or null. Raises ``CheckpointError`` on another type."""
        self._left.discard(key)
        value = self.json.get(key)
        if value is None:
            value = default
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise CheckpointError(f"config.json: {key} must be {kind.__name__}, got {value!r}")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """A positive whole number."""
        value = self.take(key, int, default)
        if value < 1:
            raise CheckpointError(f"config.json: {key} must be positive, got {value}")
        return value

    def maybe(self, key: str, kind: type[T]) -> T | None:
        """The value of ``key``, or None where it is absent or null."""
        self._left.discard(key)
        return None if self.json.get(key) is None else self.take(key, kind)

    def finish(self, architecture: str) -> None:
        """Raise ``CheckpointError`` naming the keys nobody took; empty and false values switch nothing on."""
        unknown = sorted(key for key in self._left - _HARMLESS if self.json[key] not in (None, False, "", [], {}))
        if unknown:
            raise CheckpointError(
                f"config.json has keys {architecture} does not know and that could change results: "
                f"{', '.join(unknown)}; remove them with --hf-overrides '{{\"<key>\": null}}' if they do not matter"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """The numbers of a decoder-only transformer. ``windows[i]`` is layer i's sliding window or None."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    activation: str
    rope: RopeConfig
    tied: bool
    attention_bias: bool
    mlp_bias: bool
    windows: tuple[int | None, ...]

    @classmethod
    def read(
        cls, keys: Keys, *, rope_theta: float = 10000.0, head_dim: int | None = None, norm_eps: float = 1e-6
    ) -> DecoderConfig:
        """Take the keys all decoders share. The arguments are the family's defaults for keys that may be absent.

        Raises ``CheckpointError`` when a key is missing or malformed; the caller takes its own keys and ends with
        ``keys.finish``.
        """
        layers, heads = keys.count("num_hidden_layers"), keys.count("num_attention_heads")
        hidden_size = keys.count("hidden_size")
        head_dim = keys.count("head_dim", head_dim or hidden_size // heads)
        return cls(
            vocab_size=keys.count("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=keys.count("intermediate_size"),
            layers=layers,
            heads=heads,
            kv_heads=_read_kv_heads(keys, heads),
            head_dim=head_dim,
            norm_eps=keys.take("rms_norm_eps", float, norm_eps),
            activation=keys.take("hidden_act", str, "silu"),
            rope=read_rope(keys, head_dim, rope_theta),
            tied=keys.take("tie_word_embeddings", bool, False),
            attention_bias=keys.take("attention_bias", bool, False),
            mlp_bias=keys.take("mlp_bias", bool, False),
            windows=_read_windows(keys, layers),
        )


def _read_kv_heads(keys: Keys, heads: int) -> int:
    kv_heads = keys.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise CheckpointError(
            f"config.json: num_attention_heads={heads} is not a multiple of num_key_value_heads={kv_heads}"
        )
    return kv_heads


def _read_windows(keys: Keys, layers: int) -> tuple[int | None, ...]:
    """A window per layer: by ``layer_types``, or from ``max_window_layers`` on, or everywhere."""
    window = keys.maybe("sliding_window", int)
    kinds = keys.maybe("layer_types", list)
    if keys.json.get("use_sliding_window") is False or window is None:
        return (None,) * layers
    if kinds is None:
        first = keys.maybe("max_window_layers", int) or 0
        return tuple(window if layer >= first else None for layer in range(layers))
    unknown = sorted({str(kind) for kind in kinds} - {"full_attention", "sliding_attention"})
    if unknown or len(kinds) != layers:
        raise CheckpointError(
            f"config.json: layer_types must list full_attention or sliding_attention for {layers} layers, "
            f"got {len(kinds)} entries{', among them ' + ', '.join(unknown) if unknown else ''}"
        )
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
