"""What sets a ``general.architecture`` apart: names of tensors and keys, as data. Imports no torch.

Sources: gguf-py's ``constants.py`` and ``tensor_mapping.py``, and llama.cpp's ``convert_hf_to_gguf.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Config = dict[str, Any]
Rule = Callable[[Any, Config], Mapping[str, Any]]
"""What a key's value and what is known already say together, by keys of config.json."""
Key = tuple[str | Rule, type]
"""A key of config.json, dots between nested ones, or a rule; and the type of the value."""
Name = str | tuple[str, str, str]
"""Below a layer's place; three names share the rows of q, k and v in one tensor. A ``*`` in it is the number of a
row."""

QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_PARTS: Mapping[str, Name] = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": QKV[0], "attn_k": QKV[1], "attn_v": QKV[2], "attn_qkv": QKV, "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}  # fmt: skip
_ENDS: Mapping[str, str] = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
BIASES: Mapping[str, str] = {"attention_bias": "attn_q.bias"}
EXPERTS: Mapping[str, Key] = {
    "expert_count": ("num_experts", int), "expert_used_count": ("num_experts_per_tok", int),
    "expert_feed_forward_length": ("moe_intermediate_size", int),
}  # fmt: skip
LOCAL_EXPERTS: Mapping[str, Key] = {**EXPERTS, "expert_count": ("num_local_experts", int)}


def ignored(value: Any, config: Config) -> Mapping[str, Any]:
    """A key that says what the model does anyway."""
    return {}


BESIDE_TOWERS: Mapping[str, Key] = {"rope.dimension_sections": (ignored, list), "n_deepstack_layers": (ignored, int)}
"""Of language models that came beside a tower: a text's tokens have one position on all axes, and nothing is added."""
WINDOW: Mapping[str, Key] = {"attention.sliding_window": ("sliding_window", int)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Models of one ``general.architecture``, as lsv's family of that ``name`` declares them.

    Defaults are those of Llama's many relatives. Tensors of one name follow one another in it.
    """

    name: str
    model_type: str
    parts: Mapping[str, Name] = field(default_factory=dict)
    """Of layers: names by the file's, which are without ``.weight`` and ``.bias`` where both may be."""
    ends: Mapping[str, str] = field(default_factory=dict)
    layers: str = "model.layers"
    experts: tuple[str, str, str, str] = ("mlp.experts", "gate_proj", "up_proj", "down_proj")
    """Where single experts are, and the names of gate, up and down."""
    interleaved: bool = False
    """Whether the rows of a head of q and k are stored for a rotation of neighbours instead of halves."""
    partial: bool = False
    """Whether the family may rotate a part of each head."""
    by_head: bool = False
    """Whether the rows of q, k and v in one tensor are wanted KV head by KV head; files have them one after another."""
    single_rows: frozenset[str] = frozenset()
    """What files have as a vector and the model wants as a matrix of one row."""
    offset_norms: bool = False
    """Whether norms are wanted less one."""
    latent: bool = False
    """Whether attention is DeepSeek's."""
    rope: bool = True
    keys: Mapping[str, Key] = field(default_factory=dict)
    there: Mapping[str, str] = field(default_factory=lambda: BIASES)
    """Keys of config.json that say whether the first layer, or the model, has a tensor."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """The rest of config.json."""
    without: frozenset[str] = frozenset()
    """Common keys that its config.json lacks."""
    when: str = ""
    """A tensor that a file must have, or a key that must not be 0, for this to be its architecture."""

    def part(self, name: str) -> Name | None:
        """What a layer's ``name`` is called in the model, below its layer; None for a tensor it has no place for."""
        own = self.parts.get(name)
        if own is not None:
            return own
        stem, _, end = name.rpartition(".")
        found = self.parts.get(stem, _PARTS.get(stem))
        if isinstance(found, tuple):
            return (f"{found[0]}.{end}", f"{found[1]}.{end}", f"{found[2]}.{end}")
        return None if found is None else f"{found}.{end}"

    def end(self, name: str) -> str | None:
        """What a tensor outside all layers is called in the model."""
        stem, _, end = name.rpartition(".")
        found = self.ends.get(stem, _ENDS.get(stem))
        return None if found is None else f"{found}.{end}"
