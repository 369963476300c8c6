"""A tokenizer for tests of engines and clients: one letter a token."""

from __future__ import annotations

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from lsv.text.tokenizer import Tokenizer


def letters(size: int, *, templates: dict[str, str] | None = None) -> Tokenizer:
    """``size`` tokens from U+0041 on; the last one is the special ``<end>``, which ends an answer."""
    vocab = {chr(0x41 + token): token for token in range(size - 1)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken("<end>", special=True)])
    return Tokenizer(backend, special_tokens={"eos_token": "<end>"}, templates=templates)
