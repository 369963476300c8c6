"""A model that counts, and heads that know it: drafts are right for the states they belong to, and for no others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lsv_testing.tiny import tiny

if TYPE_CHECKING:
    from torch import Tensor

NUMBERS = 64
"""As many numbers as its states have: it says the next one of the last token's, and 0 after the greatest."""


def counting_model(path: Path) -> Path:
    """Write a llama whose normed state behind a token is the token's number alone, whatever came before."""
    import torch
    from safetensors.torch import load_file, save_file

    file = tiny("llama", path, tie_word_embeddings=False, hidden_size=NUMBERS) / "model.safetensors"
    tensors = load_file(file)
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.zero_()  # nothing but the embedding reaches the head
    every = torch.arange(len(tensors["lm_head.weight"]))
    tensors["model.norm.weight"].fill_(1.0)
    tensors["model.embed_tokens.weight"] = torch.eye(NUMBERS)[every % NUMBERS].contiguous()
    tensors["lm_head.weight"] = head_for(1, len(every))
    save_file(tensors, file, metadata={"format": "pt"})
    return path


def head_for(ahead: int, vocabulary: int) -> Tensor:
    """A matrix [vocabulary, numbers] that says of a state the number so many places on."""
    import torch

    weight = torch.zeros(vocabulary, NUMBERS)
    numbers = torch.arange(NUMBERS)
    weight[(numbers + ahead) % NUMBERS, numbers] = 1.0
    return weight
