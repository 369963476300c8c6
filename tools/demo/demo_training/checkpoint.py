"""The language model of a checkpoint, with or without a tower beside it."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer

WEIGHTS = "model.safetensors"
TOWER = "tower."
"""What the names of the tower's tensors start with."""


def load_text(folder: Path) -> tuple[transformers.LlamaForCausalLM, Tokenizer]:
    """The language model in bfloat16, and its tokenizer."""
    language = transformers.LlamaForCausalLM._from_config(
        transformers.LlamaConfig.from_pretrained(folder), dtype=torch.bfloat16
    )
    tensors = load_file(folder / WEIGHTS)
    text = {name: tensor for name, tensor in tensors.items() if not name.startswith(TOWER)}
    found = language.load_state_dict(text, strict=False)
    assert set(found.missing_keys) <= {"lm_head.weight"}, "all but the tied head is in the checkpoint"
    language.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    return language, Tokenizer.from_file(str(folder / "tokenizer.json"))
