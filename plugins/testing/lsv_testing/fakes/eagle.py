"""Tiny heads of EAGLE and EAGLE 3, in the formats of the published ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsv_testing.fakes.counting import NUMBERS

if TYPE_CHECKING:
    from torch import Tensor

HEADS, KV_HEADS, DIM, INNER = 4, 2, 16, 96
_CONFIG: dict[str, Any] = {
    "model_type": "llama", "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": DIM,
    "intermediate_size": INNER, "rms_norm_eps": 1e-6, "max_position_embeddings": 512, "num_hidden_layers": 1,
}  # fmt: skip


def layer_shapes(prefix: str, hidden: int, read: int) -> dict[str, tuple[int, ...]]:
    """Those of a layer whose attention reads so many numbers."""
    found: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (HEADS * DIM, read), "self_attn.k_proj": (KV_HEADS * DIM, read),
        "self_attn.v_proj": (KV_HEADS * DIM, read), "self_attn.o_proj": (hidden, HEADS * DIM),
        "mlp.gate_proj": (INNER, hidden), "mlp.up_proj": (INNER, hidden), "mlp.down_proj": (hidden, INNER),
        "post_attention_layernorm": (hidden,),
    }  # fmt: skip
    return {f"{prefix}.{name}.weight": shape for name, shape in found.items()}


def draw(shapes: dict[str, tuple[int, ...]], spread: float = 0.2) -> dict[str, Tensor]:
    """Random tensors; norms are near one."""
    import torch

    generator = torch.Generator().manual_seed(5)
    return {
        name: torch.randn(shape, generator=generator) * spread + (len(shape) == 1) for name, shape in shapes.items()
    }


def eagle_tensors(hidden: int, vocabulary: int) -> dict[str, Tensor]:
    shapes = {"embed_tokens.weight": (vocabulary, hidden), "fc.weight": (hidden, 2 * hidden), "fc.bias": (hidden,)}
    return draw({**shapes, **layer_shapes("layers.0", hidden, hidden)})


def eagle3_tensors(hidden: int, known: int, vocabulary: int, read: int = 3) -> dict[str, Tensor]:
    """Without an embedding of their own; every so many tokens are known."""
    import torch

    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, read * hidden), "lm_head.weight": (known, hidden)}
    norms = ("norm.weight", "midlayer.hidden_norm.weight", "midlayer.input_layernorm.weight")
    tensors = draw({**shapes, **dict.fromkeys(norms, (hidden,)), **layer_shapes("midlayer", hidden, 2 * hidden)})
    ids = torch.arange(known) * (vocabulary // known)
    tensors["d2t"] = ids - torch.arange(known)
    tensors["t2d"] = torch.zeros(vocabulary, dtype=torch.bool).index_fill_(0, ids, value=True)
    return tensors


def write_eagle(path: Path, *, hidden: int = 64, vocabulary: int = 320, **more: Any) -> Path:
    """Write random heads for a model of so large states to the folder ``path`` and return it."""
    return write(path, eagle_tensors(hidden, vocabulary), "EagleLlamaForCausalLM", hidden, vocabulary, **more)


def write_eagle3(
    path: Path,
    *,
    hidden: int = 64,
    vocabulary: int = 320,
    known: int = 160,
    layers: tuple[int, ...] = (0, 1),
    **more: Any,
) -> Path:
    """The same of EAGLE 3, which read the states after so many ``layers``."""
    more = {"draft_vocab_size": known, "eagle_config": {"eagle_aux_hidden_state_layer_ids": layers}, **more}
    tensors = eagle3_tensors(hidden, known, vocabulary, len(layers))
    return write(path, tensors, "LlamaForCausalLMEagle3", hidden, vocabulary, **more)


def write_counting_eagle(path: Path, *, vocabulary: int = 320) -> Path:
    """Heads that are always right for ``counting_model``, by the states alone: they have no embedding of their own, and
    leave the model's out."""
    import torch

    tensors = eagle_tensors(NUMBERS, vocabulary)
    for name in ("fc.bias", "layers.0.self_attn.o_proj.weight", "layers.0.mlp.down_proj.weight"):
        tensors[name].zero_()
    del tensors["embed_tokens.weight"]
    tensors["fc.weight"].zero_()
    numbers = torch.arange(NUMBERS)
    tensors["fc.weight"][(numbers + 1) % NUMBERS, NUMBERS + numbers] = 1.0
    return write(path, tensors, "EagleLlamaForCausalLM", NUMBERS, vocabulary)


def write(path: Path, tensors: dict[str, Tensor], named: str, hidden: int, vocabulary: int, **more: Any) -> Path:
    """The checkpoint of these tensors."""
    from safetensors.torch import save_file

    path.mkdir(parents=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")
    config = {**_CONFIG, "architectures": [named], "hidden_size": hidden, "vocab_size": vocabulary, **more}
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return path
