"""The numbers of a decoder-only transformer, read from its ``config.json``."""

from __future__ import annotations

from dataclasses import dataclass

from lsv.errors import CheckpointError
from lsv.nn.keys import Keys
from lsv.nn.rope import RopeConfig, read_rope


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """The numbers of a decoder-only transformer."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    activation: str
    """Of the gated MLP: a name that ``lsv.nn.mlp.find_activation`` knows."""
    rope: RopeConfig
    tied: bool
    """Whether the head shares the embedding's weight."""
    attention_bias: bool
    mlp_bias: bool
    windows: tuple[int | None, ...]
    """Each layer's sliding window in tokens, None for full attention."""

    @classmethod
    def read(
        cls, keys: Keys, *, rope_theta: float = 10000.0, head_dim: int | None = None, norm_eps: float = 1e-6
    ) -> DecoderConfig:
        """Take the keys that all decoders share. The arguments are the family's defaults for absent keys.

        Raises ``CheckpointError`` when a key is missing or malformed; the caller takes its own keys and ends with
        ``keys.finish``.
        """
        layers, heads = keys.layers("num_hidden_layers"), keys.count("num_attention_heads")
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
