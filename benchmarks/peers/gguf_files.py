"""Write a checkpoint as a GGUF file with all matrices in one type, for speed only (no rope scaling is written).

    python gguf_files.py CHECKPOINT bf16|q8_0|q4_0

Started by prepare.py under an interpreter that has ``gguf`` and ``numpy``. Reads one-file bf16 safetensors by itself,
because numpy has no bf16.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

TYPES = {
    "bf16": gguf.GGMLQuantizationType.BF16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
}
PRE_TOKENIZERS = {"qwen2": "qwen2", "llama": "llama-bpe"}
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def main() -> None:
    source, kind = Path(sys.argv[1]), sys.argv[2]
    target = Path(f"{source}-{kind}.gguf")
    if target.exists():
        return
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    fresh = target.with_name(f".{target.name}")
    writer = gguf.GGUFWriter(fresh, config["model_type"])
    add_facts(writer, config)
    add_tokenizer(writer, source, config)
    for name, values in read_tensors(source / "model.safetensors"):
        add_tensor(writer, name, values, config, TYPES[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    fresh.rename(target)


def add_facts(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    heads = config["num_attention_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_rope_dimension_count(size)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def add_tokenizer(writer: gguf.GGUFWriter, source: Path, config: dict[str, Any]) -> None:
    tokenizer = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    special = {entry["id"]: entry["content"] for entry in tokenizer["added_tokens"]}
    texts = {index: text for text, index in tokenizer["model"]["vocab"].items()} | special
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    kinds = [gguf.TokenType.CONTROL if index in special else gguf.TokenType.NORMAL for index in range(len(texts))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(PRE_TOKENIZERS[config["model_type"]])
    writer.add_token_list([texts[index] for index in range(len(texts))])
    writer.add_token_types(kinds)
    writer.add_token_merges(merges or ["a b"])  # the format wants at least one
    writer.add_eos_token_id(max(special))


def read_tensors(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Names and values in float32."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    data = np.memmap(path, np.uint8, "r", offset=8 + length)
    for name, entry in header.items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            bits = data[first:last].view(np.uint16).astype(np.uint32) << 16
            yield name, bits.view(np.float32).reshape(entry["shape"])


def add_tensor(
    writer: gguf.GGUFWriter, name: str, values: np.ndarray, config: dict[str, Any], kind: gguf.GGMLQuantizationType
) -> None:
    """Vectors stay in float32, matrices become ``kind``."""
    place, _, end = name.rpartition(".")
    block = ""
    if place.startswith("model.layers."):
        _, _, layer, place = place.split(".", 3)
        block = f"blk.{layer}."
    if config["model_type"] == "llama" and place in ("self_attn.q_proj", "self_attn.k_proj"):
        values = interleave(values, config["num_attention_heads" if "q_proj" in place else "num_key_value_heads"])
    target = f"{block}{NAMES[place]}.{end}"
    if values.ndim == 1:
        writer.add_tensor(target, values)
    else:
        writer.add_tensor(target, gguf.quants.quantize(values, kind), raw_dtype=kind)


def interleave(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head in the order of a rotation of neighbours, instead of one of halves."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


if __name__ == "__main__":
    main()
