"""Marian (Junczys-Dowmunt et al. 2018) and the small Blenderbot: BART's layers with positions of their own."""

from __future__ import annotations

from lsv_models.seq2seq.bart import Bart
from lsv_runtime.nn.keys import Keys


class Marian(Bart):
    """Its two languages may have vocabularies of their own; the head always shares the decoder's embedding."""

    rows, offset, embed_norm = "sinusoids", 0, None

    def read_vocabularies(self, keys: Keys) -> tuple[int, int]:
        self.shared = keys.take("share_encoder_decoder_embeddings", bool, True)
        size, source = super().read_vocabularies(keys)
        own = keys.count("decoder_vocab_size", size)
        return (size, size) if self.shared else (own, source)

    def rename(self, name: str) -> str:
        renamed = super().rename(name)
        return "model.decoder.embed_tokens.weight" if renamed == "lm_head.weight" else renamed


class BlenderbotSmall(Bart):
    offset, embed_norm, positions = 0, "tokens", 512
