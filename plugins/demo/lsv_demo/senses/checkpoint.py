"""The checkpoint of the text model and its tower together, in one folder of the Hugging Face form."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from lsv_demo.plugin import ARCHITECTURE
from lsv_demo.senses.tower import HEADS, INNER, LAYERS, NORM_EPS, SIZE, Tower
from lsv_demo.tokenizer import media_tokens, save_tokenizer

WEIGHTS = "model.safetensors"
PREFIX = "tower."


def load_text(folder: Path) -> tuple[LlamaForCausalLM, Tokenizer]:
    """The language model of a checkpoint in bfloat16, with or without a tower, and its tokenizer."""
    language = LlamaForCausalLM._from_config(LlamaConfig.from_pretrained(folder), dtype=torch.bfloat16)
    tensors = load_file(folder / WEIGHTS)
    found = language.load_state_dict({name: tensors[name] for name in tensors if _is_text(name)}, strict=False)
    assert set(found.missing_keys) <= {"lm_head.weight"}, "all but the tied head is in the checkpoint"
    language.generation_config = GenerationConfig.from_pretrained(folder)
    return language, Tokenizer.from_file(str(folder / "tokenizer.json"))


def _is_text(name: str) -> bool:
    return not name.startswith(PREFIX)


def load_tower(folder: Path, hidden: int) -> Tower:
    """The tower of a checkpoint, in bfloat16."""
    tower = Tower(hidden).bfloat16()
    tensors = load_file(folder / WEIGHTS)
    tower.load_state_dict({name.removeprefix(PREFIX): tensors[name] for name in tensors if not _is_text(name)})
    return tower


def save(language: LlamaForCausalLM, tower: Tower, tokenizer: Tokenizer, folder: Path) -> None:
    """Write both. For transformers the folder is a Llama: it passes over the tower and reads text."""
    folder.mkdir(parents=True, exist_ok=True)
    language.save_pretrained(folder)
    tensors = load_file(folder / WEIGHTS)
    tensors |= {f"{PREFIX}{name}": tensor.contiguous() for name, tensor in tower.state_dict().items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = [ARCHITECTURE]
    config["senses"] = {
        "hidden_size": SIZE, "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "layer_norm_eps": NORM_EPS, "tokens": media_tokens(tokenizer),
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_tokenizer(tokenizer, folder, language.config.max_position_embeddings)
