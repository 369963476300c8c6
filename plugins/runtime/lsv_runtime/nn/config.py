"""The numbers of a decoder-only transformer, read from its ``config.json``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lsv_base.errors import CheckpointError
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.rope import RopeConfig, read_ropes

_WINDOWS = ("sliding_window", "layer_types", "sliding_window_pattern", "use_sliding_window", "max_window_layers")
"""The keys of windows."""


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
    """Of the gated MLP: a name that ``lsv_runtime.nn.mlp.find_activation`` knows."""
    rope: RopeConfig
    local_rope: RopeConfig
    """That of layers with a window; in most families the same."""
    tied: bool
    """Whether the head shares the embedding's weight."""
    attention_bias: bool
    attention_out_bias: bool
    mlp_bias: bool
    windows: tuple[int | None, ...]
    """Each layer's sliding window in tokens, None for full attention."""
    attention_scale: float | None = None
    """What products of queries and keys are multiplied by; None for one over the root of ``head_dim``."""
    attention_cap: float | None = None
    """Bounds these products: ``cap * tanh(product / cap)``."""
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    """On what attention and MLP add to their input, in layers that have it."""
    logit_divisor: float = 1.0
    logit_cap: float | None = None
    """Bounds logits in the same way."""

    @classmethod
    def read(
        cls,
        keys: Keys,
        *,
        rope_theta: float = 10000.0,
        local_theta: float | None = None,
        rotary_fraction: float | None = None,
        head_dim: int | None = None,
        norm_eps: float = 1e-6,
        activation: str = "silu",
        tied: bool = False,
        attention_bias: bool = False,
        windows: bool = False,
        full_every: int | None = None,
        first_window: int | None = None,
    ) -> DecoderConfig:
        """Take the keys that all decoders share. The arguments are the family's defaults for absent keys.

        With a ``local_theta``, layers with a window have a rope of their own, which ``rope_scaling`` leaves alone.
        Families whose layers may have a window set ``windows``, ``full_every`` or ``first_window``; in others keys of
        windows are passed over, as in transformers. ``full_every`` is ``sliding_window_pattern``: every so many layers
        one has no window. With a ``first_window`` there are windows only where ``use_sliding_window`` asks for them: it
        is ``max_window_layers``, from which layer on. A ``rotary_fraction`` is ``partial_rotary_factor``, which other
        families do not have: None rotates whole heads.

        Raises ``CheckpointError`` when a key is missing or malformed; the caller takes its own keys and ends with
        ``keys.finish``.
        """
        layers, heads = keys.layers("num_hidden_layers"), keys.count("num_attention_heads")
        hidden_size = keys.count("hidden_size")
        head_dim = keys.count("head_dim", head_dim or hidden_size // heads)
        rope, local_rope = read_ropes(keys, head_dim, rope_theta, local_theta, rotary_fraction)
        if not (windows or full_every or first_window is not None):
            keys.pass_over(*_WINDOWS)
        attention_bias = keys.take("attention_bias", bool, attention_bias)
        if local_rope != rope and keys.json.get("sliding_window") is None:
            raise CheckpointError(
                "config.json: layers with a window have a rope of their own, so sliding_window must be there "
                "(--disable-sliding-window takes it away)"
            )
        return cls(
            vocab_size=keys.count("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=keys.count("intermediate_size"),
            layers=layers,
            heads=heads,
            kv_heads=_read_kv_heads(keys, heads),
            head_dim=head_dim,
            norm_eps=keys.take("rms_norm_eps", float, norm_eps),
            activation=keys.take("hidden_act", str, activation),
            rope=rope,
            local_rope=local_rope,
            tied=keys.take("tie_word_embeddings", bool, tied),
            attention_bias=attention_bias,
            attention_out_bias=keys.take("attention_out_bias", bool, attention_bias),
            mlp_bias=keys.take("mlp_bias", bool, False),
            windows=_read_windows(keys, layers, full_every, first_window),
        )


def _read_kv_heads(keys: Keys, heads: int) -> int:
    kv_heads = keys.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise CheckpointError(
            f"config.json: num_attention_heads={heads} is not a multiple of num_key_value_heads={kv_heads}"
        )
    return kv_heads


def _read_windows(keys: Keys, layers: int, full_every: int | None, first_window: int | None) -> tuple[int | None, ...]:
    """A window per layer: by ``layer_types``, by a pattern, or from ``max_window_layers`` on, or everywhere."""
    window = keys.maybe("sliding_window", int)
    kinds = keys.maybe("layer_types", list)
    pattern = keys.maybe("sliding_window_pattern", object)
    wanted = keys.take("use_sliding_window", bool, first_window is None)
    if not wanted or window is None:
        return (None,) * layers
    if kinds is None:
        first = keys.take("max_window_layers", int, first_window or 0)
        local = _read_pattern(full_every if pattern is None else pattern)
        return tuple(_positive(window) if layer >= first and local(layer) else None for layer in range(layers))
    unknown = sorted({str(kind) for kind in kinds} - {"full_attention", "sliding_attention"})
    if unknown or len(kinds) != layers:
        raise CheckpointError(
            f"config.json: layer_types must list full_attention or sliding_attention for {layers} layers, "
            f"got {len(kinds)} entries{', among them ' + ', '.join(unknown) if unknown else ''}"
        )
    return tuple(_positive(window) if kind == "sliding_attention" else None for kind in kinds)


def _positive(window: int) -> int:
    if window < 1:
        raise CheckpointError(f"config.json: sliding_window must be positive, or null for none, got {window}")
    return window


def _read_pattern(pattern: object) -> Callable[[int], bool]:
    """Which layers have a window: all but every so many, or a word that is repeated, L for those that have one."""
    if pattern is None:
        return lambda layer: True
    if isinstance(pattern, str) and pattern and set(pattern) <= {"L", "G"}:
        return lambda layer: pattern[layer % len(pattern)] == "L"
    if type(pattern) is int and pattern > 0:
        return lambda layer: (layer + 1) % pattern != 0
    raise CheckpointError(
        f"config.json: sliding_window_pattern must be a positive number or a word of L and G, got {pattern!r:.100}"
    )
