"""FSMT (Ng et al. 2019), fairseq's translators of WMT19: each language has a vocabulary and an embedding of its own."""

from __future__ import annotations

import torch

from lsv_models.seq2seq.bart import Bart
from lsv_models.seq2seq.heads import LooseHead
from lsv_models.seq2seq.mbart import skip_padding
from lsv_runtime.nn.embed import Head
from lsv_runtime.nn.keys import Keys
from lsv_runtime.weights.place import Weights


class Fsmt(Bart):
    rows, embed_norm, logits_bias = "fairseq", None, False
    scaled, activation, shared = True, "relu", False

    def read_more(self, keys: Keys) -> None:
        keys.skip("langs", "vocab_size")
        keys.maybe("decoder", object)
        keys.agree("pad_token_id", self.offset - 1)

    def text_positions(self, ids: torch.Tensor) -> torch.Tensor:
        return skip_padding(ids, self.offset - 1)

    def read_vocabularies(self, keys: Keys) -> tuple[int, int]:
        keys.agree("tie_word_embeddings", False)
        return keys.count("tgt_vocab_size"), keys.count("src_vocab_size")

    def make_head(self, w: Weights, size: int) -> Head:
        return LooseHead(w / "model" / "decoder" / "output_projection", self.vocab_size, size, self.tokens)
