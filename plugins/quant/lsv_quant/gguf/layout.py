"""Where the tensors of a model are in its file, by the names lsv's models declare. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from lsv.errors import CheckpointError
from lsv_quant.gguf.file import GgufFile
from lsv_quant.gguf.types import TYPES, Form, joint_form

ROPE_FACTORS = "rope_freqs.weight"


class Family(NamedTuple):
    """Models of one ``general.architecture``.

    ``interleaved``: the rows of a head of q and k are stored for a rotation of neighbours instead of halves.
    ``experts``: where they are, and the names of gate, up and down.
    """

    architecture: str
    model_type: str
    interleaved: bool = False
    experts: tuple[str, tuple[str, str, str]] = ("mlp", ("gate_proj", "up_proj", "down_proj"))


_FAMILIES = {
    "llama": Family("LlamaForCausalLM", "llama", interleaved=True),
    "qwen2": Family("Qwen2ForCausalLM", "qwen2"),
    "qwen3": Family("Qwen3ForCausalLM", "qwen3"),
    "qwen3moe": Family("Qwen3MoeForCausalLM", "qwen3_moe"),
}
_MIXTRAL = Family("MixtralForCausalLM", "mixtral", True, ("block_sparse_moe", ("w1", "w3", "w2")))
_ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_PARTS = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_EXPERTS = {"ffn_gate_exps": 0, "ffn_up_exps": 1, "ffn_down_exps": 2}
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("w1", "w3"))


class Place(NamedTuple):
    """Where a model's tensor is: one of the file, or ``expert`` of a stack; ``heads`` > 0 in it are interleaved."""

    tensor: str
    expert: int | None = None
    heads: int = 0


def family_of(metadata: Mapping[str, Any]) -> Family:
    """The family of a file. Raises ``CheckpointError`` for an unknown ``general.architecture``."""
    name = metadata.get("general.architecture")
    if name == "llama" and metadata.get("llama.expert_count"):
        return _MIXTRAL
    if not isinstance(name, str) or name not in _FAMILIES:
        raise CheckpointError(
            f"the GGUF file holds a model of architecture {name!r}; those that can be read are {', '.join(_FAMILIES)}",
            param="model",
        )
    return _FAMILIES[name]


def has_own_head(file: GgufFile) -> bool:
    """Whether the output head is a tensor of its own: not the embedding's, or in another form, as with a quantised
    table, which is held both plain and as codes.
    """
    return "output.weight" in file.tensors or TYPES[file.tensors["token_embd.weight"].type].form is not None


def places(file: GgufFile) -> dict[str, Place]:
    """Places by name. Raises ``CheckpointError`` for unknown tensors."""
    family = family_of(file.metadata)
    found = {name: place for tensor in file.tensors for name, place in _places_of(tensor, file, family)}
    if has_own_head(file):
        found.setdefault("lm_head.weight", Place("token_embd.weight"))
    return found


def _places_of(tensor: str, file: GgufFile, family: Family) -> Iterator[tuple[str, Place]]:
    match = _BLOCK.fullmatch(tensor)
    stem, _, end = tensor.rpartition(".")
    axes = len(file.tensors[tensor].shape)
    if tensor == ROPE_FACTORS:
        return
    if axes > 2 and (match is None or match[2] not in _EXPERTS):
        raise CheckpointError(f"the GGUF file has a tensor {tensor} with {axes} axes, not a vector or a matrix")
    if match is None and stem in _ENDS:
        yield f"{_ENDS[stem]}.{end}", Place(tensor)
    elif match is not None and match[2] in _PARTS:
        yield (
            f"model.layers.{match[1]}.{_PARTS[match[2]]}.{end}",
            Place(tensor, heads=_heads(match[2], tensor, file, family)),
        )
    elif match is not None and match[2] == "ffn_gate_inp":
        yield f"model.layers.{match[1]}.{family.experts[0]}.gate.{end}", Place(tensor)
    elif match is not None and match[2] in _EXPERTS and axes == 3:
        place, names = family.experts
        for expert in range(file.tensors[tensor].shape[0]):
            name = f"model.layers.{match[1]}.{place}.experts.{expert}.{names[_EXPERTS[match[2]]]}.{end}"
            yield name, Place(tensor, expert)
    else:
        raise CheckpointError(
            f"the GGUF file has a tensor {tensor}, which {family.architecture} has no place for", param="model"
        )


def _heads(part: str, tensor: str, file: GgufFile, family: Family) -> int:
    """How many heads of interleaved rows a tensor has. Raises ``CheckpointError`` where they do not divide it."""
    if not family.interleaved or part not in ("attn_q", "attn_k"):
        return 0
    heads = file.metadata.get("llama.attention.head_count")
    if part == "attn_k":
        heads = file.metadata.get("llama.attention.head_count_kv", heads)
    rows = file.tensors[tensor].shape[0]
    if type(heads) is not int or heads < 1 or rows % (2 * heads):
        raise CheckpointError(f"the GGUF file's {tensor} has {rows} rows, which are not pairs in {heads!r:.100} heads")
    return heads


def forms(file: GgufFile, where: Mapping[str, Place]) -> dict[str, Form]:
    """The forms, by name, of the linear layers that are held as codes; layers that a model may fuse share one."""
    own = {
        name.removesuffix(".weight"): TYPES[file.tensors[place.tensor].type].form
        for name, place in where.items()
        if _is_linear(name, file, place)
    }
    found = {}
    for name in own:
        place, _, part = name.rpartition(".")
        fellows = next((group for group in _FUSED if part in group), (part,))
        names = (f"{place}.{fellow}" if place else fellow for fellow in fellows)
        form = joint_form(own[fellow] for fellow in names if fellow in own)
        if form is not None:
            found[name] = form
    return found


def _is_linear(name: str, file: GgufFile, place: Place) -> bool:
    """Embeddings and routers are never quantised."""
    shape = file.tensors[place.tensor].shape
    return len(shape) > 1 and not name.endswith((".embed_tokens.weight", "_moe.gate.weight", "mlp.gate.weight"))
