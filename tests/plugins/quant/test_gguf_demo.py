"""The text part of the model that ships with lsv as a file of llama.cpp's: weights, tokenizer and template together."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import lsv_demo
from lsv import LLM, SamplingParams

Tensor = tuple[str, tuple[int, ...], np.ndarray[Any, np.dtype[Any]]]
Write = Callable[[Path, Mapping[str, Any], Mapping[str, Tensor]], Path]

DEMO = Path(lsv_demo.__file__).parent / "checkpoint"
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
ENDS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}


def pack(values: torch.Tensor) -> Tensor:
    """A vector as it is, a matrix in Q8_0."""
    numbers = values.float().numpy()
    if numbers.ndim == 1:
        return "F32", numbers.shape, numbers
    blocks = numbers.reshape(-1, 32)
    scales = (np.abs(blocks).max(axis=1, keepdims=True) / 127).astype(np.float16)
    codes = np.round(blocks / scales.astype(np.float32)).astype(np.int8)
    return "Q8_0", numbers.shape, np.concatenate((scales.view(np.uint8), codes.view(np.uint8)), axis=1)


def demo_tensors() -> dict[str, Tensor]:
    found = {}
    for name, values in load_file(DEMO / "model.safetensors").items():
        stem = name.removesuffix(".weight")
        if stem.startswith("tower."):
            continue
        if stem.endswith(("q_proj", "k_proj")):  # halves of a head -> pairs of neighbours
            values = values.reshape(-1, 2, 32, 256).transpose(1, 2).reshape(values.shape)
        if stem not in ENDS:
            _, _, layer, part = stem.split(".", 3)
        found[f"{ENDS[stem] if stem in ENDS else f'blk.{layer}.{NAMES[part]}'}.weight"] = pack(values)
    return found


@pytest.mark.row("F-415", "F-234", "F-692")
def test_the_demo_model_talks_out_of_one_file(tmp_path: Path, write_gguf: Write) -> None:
    source = json.loads((DEMO / "tokenizer.json").read_text())
    vocabulary = source["model"]["vocab"] | {token["content"]: token["id"] for token in source["added_tokens"]}
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    metadata = {
        "general.architecture": "llama", "llama.block_count": 6, "llama.embedding_length": 256,
        "llama.feed_forward_length": 512, "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-6, "llama.context_length": 2048,
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if vocabulary[token] < 3 else 1 for token in tokens],
        "tokenizer.ggml.merges": [m if isinstance(m, str) else " ".join(m) for m in source["model"]["merges"]],
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": json.loads((DEMO / "tokenizer_config.json").read_text())["chat_template"],
    }  # fmt: skip
    file = write_gguf(tmp_path / "demo.gguf", metadata, demo_tensors())
    with LLM(str(file), reference_ops=True) as llm:
        assert llm.config.quantization == "gguf"
        assert llm.get_default_sampling_params() == SamplingParams(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05)
        (sampling,) = [reason for reason in llm.config.reasons if reason.name == "default_sampling"]
        assert sampling.value == "temperature=0.8 top_p=0.95 top_k=40 min_p=0.05"
        assert sampling.why.startswith("llama.cpp's defaults, because the GGUF file recommends none")
        messages = [{"role": "user", "content": "Where does Mira live?"}]
        (output,) = llm.chat(messages, SamplingParams(max_tokens=20, temperature=0))
    assert output.outputs[0].text.strip() == "Mira lives in Lorn."
