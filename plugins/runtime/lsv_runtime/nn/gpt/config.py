"""The numbers of a GPT-like decoder, read from its ``config.json`` under whichever names its family gave them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lsv_base.errors import CheckpointError
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.rope import RopeConfig, read_rope, read_ropes

_SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "norm_eps": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"),
    "activation": ("hidden_act", "activation_function", "activation"),
    "positions": ("max_position_embeddings", "n_positions", "n_ctx"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GptConfig:
    """The numbers of a GPT-like decoder."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    activation: str
    tied: bool
    """Whether the head shares the embedding's weight."""
    windows: tuple[int | None, ...]
    """Each layer's sliding window in tokens, None for full attention."""
    positions: int = 0
    """How many positions were learned."""
    rope: RopeConfig | None = None
    unrotated: frozenset[int] = frozenset()
    """The layers that have no positions although there is a rope."""
    slopes: tuple[float, ...] | None = None
    """Of ALiBi, by head."""
    scales: tuple[float, ...] | None = None
    """What products of queries and keys are multiplied by, by layer; None for 1 / sqrt(head_dim)."""
    clip: float | None = None
    """Bounds q, k and v."""
    embed_size: int | None = None
    """The width of the embedding and the head where it is not ``hidden_size``."""
    embed_scale: float = 1.0
    logit_scale: float = 1.0

    @classmethod
    def read(
        cls, keys: Keys, *, activation: str = "gelu_new", tied: bool = True, eps: float = 1e-5, kv_heads: int = 0
    ) -> GptConfig:
        """Take the keys that all families share. The arguments are the family's defaults for absent keys; an absent
        number of KV heads is ``kv_heads``, or that of heads.

        Raises ``CheckpointError`` when a key is missing, malformed, or contradicts another spelling of itself.
        """
        for name in keys.json:
            if name.startswith("summary_"):  # of a head that sums up, which no decoder has
                keys.maybe(name, object)
        names = {number: _spelling(keys, number) for number in _SPELLINGS}
        layers, heads = keys.layers(names["layers"]), keys.count(names["heads"])
        hidden_size = keys.count(names["hidden_size"])
        head_dim = keys.count("head_dim", hidden_size // heads or 1)
        groups = keys.count(names["kv_heads"], kv_heads or heads)
        if heads % groups or (hidden_size % heads and "head_dim" not in keys.json):
            raise CheckpointError(
                f"config.json: {names['heads']}={heads} must be a multiple of {names['kv_heads']}={groups} and divide "
                f"{names['hidden_size']}={hidden_size}"
            )
        return cls(
            vocab_size=keys.count("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=keys.count(names["intermediate_size"], 4 * hidden_size),
            layers=layers,
            heads=heads,
            kv_heads=groups,
            head_dim=head_dim,
            norm_eps=keys.take(names["norm_eps"], float, eps),
            activation=keys.take(names["activation"], str, activation),
            tied=keys.take("tie_word_embeddings", bool, tied),
            windows=(None,) * layers,
            positions=keys.take(names["positions"], int, 0),
        )


def _spelling(keys: Keys, number: str) -> str:
    """The name that a config.json has for a number; the most usual one where it has none."""
    used = [name for name in _SPELLINGS[number] if keys.json.get(name) is not None] or [_SPELLINGS[number][0]]
    values = {name: keys.maybe(name, object) for name in used}
    if number not in ("positions", "activation") and len(set(map(str, values.values()))) > 1:
        raise CheckpointError(f"config.json: these are one number, and differ: {values}")
    return used[0]


def read_rotary(keys: Keys, head_dim: int, *, theta: float = 10000.0, fraction: float | None = None) -> RopeConfig:
    """The rope of a config.json that rotates ``fraction`` of each head unless it says otherwise; None is always all."""
    theta = keys.take("rotary_emb_base", float, theta)
    if fraction is None:
        keys.pass_over("rotary_pct")
        return read_ropes(keys, head_dim, theta, fraction=None)[0]
    fraction = keys.take("rotary_pct", float, fraction)
    rope = read_rope(keys, head_dim, theta)
    told = (keys.json, keys.json.get("rope_parameters") or {}, keys.json.get("rope_scaling") or {})
    if any(place.get("partial_rotary_factor") is not None for place in told):
        return rope
    return rotate_first(rope, int(head_dim * fraction))


def rotate_first(rope: RopeConfig, features: int) -> RopeConfig:
    """The rope over the first ``features`` of each head."""
    if not 0 < features <= rope.head_dim or features % 2:
        raise CheckpointError(
            f"config.json: rotary_dim is {features}, expected an even number of the {rope.head_dim} features of a head"
        )
    parameters: dict[str, Any] = {**rope.parameters, "partial_rotary_factor": features / rope.head_dim}
    return replace(rope, rotary_dim=features, parameters=parameters)
