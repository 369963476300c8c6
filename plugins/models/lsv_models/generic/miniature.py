"""A small config.json of the same family: few narrow layers, and every choice that is not a size kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

VOCABULARY = 384
_HIDDEN, _HEADS, _HEAD_DIM = 64, 4, 16
_MOST_LAYERS = 8
_MOST_EXPERTS = 4

_LAYERS = ("num_hidden_layers", "layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "num_decoder_layers")
_HEAD_COUNTS = (
    "num_attention_heads", "attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads",
    "swa_num_attention_heads", "num_global_attention_heads", "local_num_attention_heads",
)  # fmt: skip
_KV_COUNTS = (
    "num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads", "swa_num_key_value_heads",
    "num_global_key_value_heads", "multi_query_group_num",
)  # fmt: skip
# fmt: off
_SIZES: Mapping[str, int] = {
    # widths of the stream
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim_model", "embed_dim", "embedding_size",
                     "word_embed_proj_dim", "emb_dim", "input_embedding_size", "output_embedding_size"), _HIDDEN),
    # widths inside of blocks
    **dict.fromkeys(("intermediate_size", "ffn_dim", "decoder_ffn_dim", "n_inner", "d_ff", "dim_ff", "dff", "d_inner",
                     "ffn_hidden_size", "intermediate_size_mlp", "dense_intermediate_size", "mlp_hidden_size",
                     "block_ff_dim", "prefix_dense_intermediate_size"), 96),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size",
                     "expert_ffn_hidden_size", "moe_shared_expert_intermediate_size", "expert_intermediate_size",
                     "moe_ffn_hidden_size"), 32),
    # parts of heads and their low ranks
    **dict.fromkeys(("head_dim", "attention_head_dim", "d_kv", "kv_channels", "swa_head_dim", "dim_head",
                     "attention_head_size", "qk_nope_head_dim", "v_head_dim", "swa_v_head_dim"), _HEAD_DIM),
    **dict.fromkeys(("qk_rope_head_dim", "rotary_dim"), _HEAD_DIM // 2),
    "qk_head_dim": _HEAD_DIM + _HEAD_DIM // 2, "global_head_dim": 2 * _HEAD_DIM, "kv_lora_rank": 24,
    "q_lora_rank": 24, "hidden_size_per_layer_input": 16, "adapter_rank": 8, "altup_num_inputs": 2,
    "laurel_rank": 8, "index_head_dim": _HEAD_DIM, "index_n_heads": 32, "swiglu_rank": 8,
    # tables
    "vocab_size": VOCABULARY, "vocab_size_per_layer_input": VOCABULARY, "type_vocab_size": 2, "n_langs": 2,
}
# fmt: on
_HEAD_PARTS = ("qk_nope_head_dim", "qk_rope_head_dim")
_EXPERTS = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
    "zero_expert_num",
    "num_routed_experts",
)  # fmt: skip
_TOPS = ("num_experts_per_tok", "moe_top_k", "moe_topk", "num_experts_per_token", "top_k_experts", "moe_k")
_GROUPS = ("n_group", "topk_group", "n_groups", "moe_n_group", "moe_topk_group", "num_expert_group")
_REACHES = frozenset(("window", "chunk", "local", "block", "topk", "floor"))
"""Words of names that tell from which distance or length on something changes, so that a short input shows it."""
_PERIODS = frozenset(("interval", "pattern", "period", "freq", "step", "offset", "every"))
"""Words of names that tell how often layers of a kind come, or where the first one is."""
_KEPT = ("attention_chunk_size", "moe_topk_group")
"""From where on the adapter refuses inputs, so that a short one may not show it."""
_LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")
_DROPPED = ("quantization_config", "torch_dtype", "dtype", "auto_map", "_name_or_path", "transformers_version")
_FIRST = (
    "first_k_dense_replace", "num_dense_layers", "moe_layer_start_index", "prefix_dense_layers", "max_window_layers",
)  # fmt: skip
_DEPTHS = (*_LAYERS, "depth", "encoder_layers")
_SECTIONS = ("n_input_layers", "n_recurrent_layers", "n_output_layers")
"""The numbers of layers before, in and after the section whose layers run several times."""
_AXES = ("mrope_section", "xdrope_section")
_REACH = 8
_ORIGINAL = 16
"""Shorter than the inputs of the proof."""
_LENGTH = 512


def shrink(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same config.json with small sizes. What is stated per layer is kept for the first layers."""
    small = {key: value for key, value in config.items() if key not in _DROPPED}
    layers = _count_layers(config)
    for key, value in small.items():
        if _is_tower(value):
            small[key] = _shorten(value)
        else:
            small[key] = _shrink_value(key, value, config, layers)
    if "initializer_range" in small:
        small["initializer_range"] = 1.0  # nGPT stores vectors as multiples of it; weights are drawn anew anyway
    return small


def _is_tower(value: Any) -> bool:
    """Whether a value configures a model of its own. The parts of DBRX have a ``model_type`` too, but no name in it."""
    return isinstance(value, Mapping) and bool(value.get("model_type"))


def _shorten(tower: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a tower with fewer layers. The copy does not run it, and has no weights for it."""
    short = {key: value for key, value in tower.items() if key not in _DROPPED}
    for key, value in short.items():
        if _is_tower(value):
            short[key] = _shorten(value)
        elif key in _DEPTHS and isinstance(value, int):
            short[key] = min(value, 2)
    return short


def _shrink_value(key: str, value: Any, config: Mapping[str, Any], layers: tuple[int, int]) -> Any:
    whole, few = layers
    if key in _LAYERS:
        return few if value == whole else min(value, few)
    if isinstance(value, Mapping) and value and all(str(name).isdigit() for name in value):
        value = {name: inner for name, inner in value.items() if int(name) < few}  # by the number of a layer
    if isinstance(value, Mapping) and key.startswith("rope"):
        return _shrink_rope(value, config)
    if isinstance(value, Mapping):
        return {name: _shrink_value(name, inner, {**config, **value}, layers) for name, inner in value.items()}
    if isinstance(value, list) and len(value) == whole and whole > 1:
        return [_shrink_value(key, inner, config, layers) for inner in value[:few]]
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    return _shrink_number(key, value, config, few)


def _shrink_number(key: str, value: int, config: Mapping[str, Any], few: int) -> int:
    if key.endswith(("_token_id", "_token_index")):
        return value % VOCABULARY
    if key in _HEAD_COUNTS:
        return _HEADS
    if key in _KV_COUNTS:
        heads = next((config[name] for name in _HEAD_COUNTS if isinstance(config.get(name), int)), value)
        return _HEADS if value >= heads else 1 if value == 1 else 2
    if key == "head_dim" and value == config.get("qk_rope_head_dim"):
        return min(value, _SIZES["qk_rope_head_dim"])
    if key in ("head_dim", "qk_head_dim") and value == _whole_head(config):
        return sum(min(config.get(part) or 0, _SIZES[part]) for part in _HEAD_PARTS)
    if key in _SIZES:
        return min(value, _SIZES[key])
    if key in _SECTIONS and _is_sectioned(config):
        return _shrink_section(key, value, config, few)
    if key in _EXPERTS:
        return min(value, _MOST_EXPERTS)
    if key in _TOPS:
        return min(value, 2)
    if key in _GROUPS or key in _FIRST:
        return min(value, 1)
    if key not in _KEPT and not _REACHES.isdisjoint(key.split("_")):
        return min(value, _REACH)
    if key == "original_max_position_embeddings" and _is_scaled(config):
        return min(value, _ORIGINAL)
    if key in _LENGTHS:
        return value if _is_scaled(config) else _LENGTH
    if key == "num_kv_shared_layers":
        return min(value, 2)
    return value


def _shrink_section(key: str, value: int, config: Mapping[str, Any], few: int) -> int:
    """How many of ``few`` layers a section keeps. The repeated section gets all that the other two leave."""
    before, repeated, after = _SECTIONS
    if key != repeated:
        return min(value, 2)
    return few - sum(min(config[name], 2) for name in (before, after))


def _whole_head(config: Mapping[str, Any]) -> int:
    """The size of a head that has features with a position and others."""
    return sum(config.get(part) or 0 for part in _HEAD_PARTS)


def _shrink_share(config: Mapping[str, Any]) -> Fraction:
    """The share of a head's features that the copy keeps."""
    heads = next((config[name] for name in _HEAD_COUNTS if isinstance(config.get(name), int)), _HEADS)
    width = next((config[name] for name in ("hidden_size", "d_model") if isinstance(config.get(name), int)), 0)
    whole = config.get("head_dim") or width // heads or _HEAD_DIM
    return Fraction(_shrink_number("head_dim", whole, config, 0), whole)


def _shrink_axes(sections: Sequence[int], share: Fraction) -> list[int]:
    """How many feature pairs rotate by each axis of a position. Together they stay as many as a head has, and equal
    ones but the last stay equal.
    """
    first = [int(section * share) for section in sections[:-1]]
    return [*first, int(sum(sections) * share) - sum(first)]


def _shrink_rope(rule: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """A rope rule, or rules by the kind of layer, that counts from a short input: dynamic ones from a longer one, for
    beyond it transformers itself computes in pieces what it does not compute at once.
    """
    inner = {key: _shrink_rope(value, config) if isinstance(value, Mapping) else value for key, value in rule.items()}
    for key in _AXES:
        if isinstance(inner.get(key), list) and all(isinstance(section, int) for section in inner[key]):
            inner[key] = _shrink_axes(inner[key], _shrink_share(config))
    turned, head = config.get("qk_rope_head_dim"), config.get("head_dim")
    if turned and head and inner.get("partial_rotary_factor") == turned / head:
        small = [_shrink_number(key, config[key], config, 0) for key in ("qk_rope_head_dim", "head_dim")]
        inner["partial_rotary_factor"] = small[0] / small[1]
    original = inner.get("original_max_position_embeddings")
    if isinstance(original, int):
        inner["original_max_position_embeddings"] = _LENGTH if _rule(inner) == "dynamic" else min(original, _ORIGINAL)
    return inner


def _rule(rope: Mapping[str, Any]) -> str:
    return str(rope.get("rope_type") or rope.get("type") or "default")


def _is_scaled(config: Mapping[str, Any]) -> bool:
    """Whether a rope rule is stated by the longest input."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return isinstance(rope, Mapping) and _rule(rope) not in ("default", "dynamic")


def _count_layers(config: Mapping[str, Any]) -> tuple[int, int]:
    """How many layers there are, and how many of them show every kind."""
    whole = next((config[name] for name in _LAYERS if isinstance(config.get(name), int)), 2)
    few = _MOST_LAYERS if _is_sectioned(config) else 2
    for key, value in config.items():
        if isinstance(value, list) and len(value) == whole:
            few = max(few, _first_of_all(value))
        elif isinstance(value, int) and not _PERIODS.isdisjoint(key.split("_")) and "time" not in key:
            few = max(few, value + 1)
    shared = 2 if config.get("num_kv_shared_layers") else 0  # layers that read what earlier ones of their kind keep
    return whole, min(whole, few + shared, _MOST_LAYERS)


def _is_sectioned(config: Mapping[str, Any]) -> bool:
    return all(isinstance(config.get(key), int) for key in _SECTIONS)


def _first_of_all(kinds: Sequence[Any]) -> int:
    """The length of the shortest beginning that has every value of the whole."""
    return max(kinds.index(kind) for kind in kinds) + 1
