"""Random-weight checkpoints in the shape of real models, for measuring speed (never quality)."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file


def _sparse(experts: int, top: int) -> dict:
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 1024,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "intermediate_size": 3072,
        "moe_intermediate_size": 512,
        "num_experts": experts,
        "num_experts_per_tok": top,
        "norm_topk_prob": True,
        "vocab_size": 151936,
        "max_position_embeddings": 32768,
        "rope_theta": 1e6,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "eos_token_id": 151645,
    }


def _llama(*, hidden: int, heads: int, intermediate: int, vocabulary: int, eos: int) -> dict:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": 16,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "intermediate_size": intermediate,
        "vocab_size": vocabulary,
        "max_position_embeddings": 8192,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "eos_token_id": eos,
    }


SHAPES = {
    "qwen2.5-0.5b": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 896,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "intermediate_size": 4864,
        "vocab_size": 151936,
        "max_position_embeddings": 32768,
        "rope_theta": 1e6,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "eos_token_id": 151645,
    },
    "qwen3-0.6b": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 3072,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rope_theta": 1e6,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "eos_token_id": 151645,
    },
    "llama-0.3b": _llama(hidden=1024, heads=16, intermediate=4096, vocabulary=32000, eos=2),
    "llama-3.2-1b": _llama(hidden=2048, heads=32, intermediate=8192, vocabulary=128256, eos=128009),
    **{f"qwen3-moe-{experts}x{top}": _sparse(experts, top) for experts, top in ((32, 4), (64, 8))},
}


def make_checkpoint(shape: str, folder: Path, layers: int | None = None) -> Path:
    """Write ``shape``, with so many ``layers`` or its own, under ``folder`` unless it is there already; weights are
    N(0, 0.02) in bf16, seeded.
    """
    target = folder / (shape if layers is None else f"{shape}-{layers}")
    if (target / "model.safetensors").exists():
        return target
    target.mkdir(parents=True, exist_ok=True)
    config = SHAPES[shape] | ({} if layers is None else {"num_hidden_layers": layers})
    (target / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    save_file(_weights(config), target / "model.safetensors", metadata={"format": "pt"})
    return target


def head_dim(shape: dict) -> int:
    return shape.get("head_dim", shape["hidden_size"] // shape["num_attention_heads"])


def _weights(c: dict) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden, inner = c["hidden_size"], c.get("moe_intermediate_size", c["intermediate_size"])
    q, kv = (c[name] * head_dim(c) for name in ("num_attention_heads", "num_key_value_heads"))
    biased = c["model_type"] == "qwen2"

    def normal(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16).normal_(0, 0.02, generator=generator)

    tensors = {"model.embed_tokens.weight": normal(c["vocab_size"], hidden), "model.norm.weight": 1 + normal(hidden)}
    for layer in range(c["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        for name, rows in (("q_proj", q), ("k_proj", kv), ("v_proj", kv)):
            tensors[f"{at}.self_attn.{name}.weight"] = normal(rows, hidden)
            if biased:
                tensors[f"{at}.self_attn.{name}.bias"] = normal(rows)
        tensors[f"{at}.self_attn.o_proj.weight"] = normal(hidden, q)
        if c["model_type"].startswith("qwen3"):
            for name in ("q_norm", "k_norm"):
                tensors[f"{at}.self_attn.{name}.weight"] = 1 + normal(head_dim(c))
        experts = c.get("num_experts", 0)
        if experts:
            tensors[f"{at}.mlp.gate.weight"] = normal(experts, hidden)
        for mlp in [f"{at}.mlp.experts.{number}" for number in range(experts)] or [f"{at}.mlp"]:
            for name, shape in (
                ("gate_proj", (inner, hidden)),
                ("up_proj", (inner, hidden)),
                ("down_proj", (hidden, inner)),
            ):
                tensors[f"{mlp}.{name}.weight"] = normal(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}.{name}.weight"] = 1 + normal(hidden)
    return tensors
