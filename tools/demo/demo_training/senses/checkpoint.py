"""The checkpoint of the text model and its tower together, in one folder of the Hugging Face form."""

from __future__ import annotations

import json
from pathlib import Path

import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from demo_training.checkpoint import TOWER, WEIGHTS
from demo_training.senses.tower import HEADS, INNER, LAYERS, NORM_EPS, SIZE, Tower
from demo_training.tokenizer import media_tokens, save_tokenizer
from lsv_demo.plugin import ARCHITECTURE


def load_tower(folder: Path, hidden: int) -> Tower:
    """The tower of a checkpoint, in bfloat16."""
    tower = Tower(hidden).bfloat16()
    tensors = load_file(folder / WEIGHTS)
    own = {name.removeprefix(TOWER): tensor for name, tensor in tensors.items() if name.startswith(TOWER)}
    tower.load_state_dict(own)
    return tower


def save(language: transformers.LlamaForCausalLM, tower: Tower, tokenizer: Tokenizer, folder: Path) -> None:
    """Write both. To transformers the folder is a Llama for text: it ignores the tower."""
    folder.mkdir(parents=True, exist_ok=True)
    language.save_pretrained(folder)
    tensors = load_file(folder / WEIGHTS)
    tensors |= {f"{TOWER}{name}": tensor.contiguous() for name, tensor in tower.state_dict().items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = [ARCHITECTURE]
    config["senses"] = {
        "hidden_size": SIZE, "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "layer_norm_eps": NORM_EPS, "tokens": media_tokens(tokenizer),
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_tokenizer(tokenizer, folder, language.config.max_position_embeddings)
