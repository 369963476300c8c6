"""BigBird-Pegasus (Zaheer et al. 2020): an encoder whose tokens see the blocks around them, the first and the last."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import repeat

import torch

from lsv_base.errors import CheckpointError
from lsv_models.seq2seq.layers import Form
from lsv_models.seq2seq.mbart import MBart
from lsv_runtime.nn.keys import Keys
from lsv_runtime.weights.naming import substitute

_NAMES = (
    (r"\.self_attn\.self\.([qkv])(?:uery|ey|alue)\.", r".self_attn.\1_proj."),
    (r"\.self_attn\.output\.", ".self_attn.o_proj."),
    (r"coder\.layernorm_embedding\.", "coder.layer_norm."),
)
_KINDS = ("block_sparse", "original_full")


class BigBirdPegasus(MBart):
    """Short texts are seen as a whole. In longer ones the random blocks of training are all the first one, as they are
    in transformers, so that it weighs more.
    """

    form = Form(norms="pre", bias=False)
    offset, embed_norm, scaled, activation, positions = 0, None, True, "gelu_new", 4096

    def read_more(self, keys: Keys) -> None:
        self.form = replace(self.form, bias=keys.take("use_bias", bool, False))
        kind = keys.take("attention_type", str, _KINDS[0])
        if kind not in _KINDS:
            raise CheckpointError(f"config.json: attention_type is {kind!r:.100}, not one of {', '.join(_KINDS)}")
        self.sparse, self.block = kind == _KINDS[0], keys.count("block_size", 64)
        self.random = keys.take("num_random_blocks", int, 3)

    def biases(self, length: int, device: torch.device) -> Iterable[torch.Tensor | None]:
        if not self.sparse or length <= (5 + 2 * self.random) * self.block:
            return repeat(None)
        block = torch.arange(length, device=device) // self.block
        query, key, last = block[:, None], block[None, :], block[-1]
        whole = (query == 0) | (query == last)
        seen = whole | (key == 0) | (key == last) | ((query - key).abs() <= 1)
        bias = torch.zeros(length, length, device=device).masked_fill(~seen, -torch.inf)
        return repeat(bias.masked_fill(~whole & (key == 0), math.log(1 + self.random)))

    def rename(self, name: str) -> str:
        return super().rename(substitute(name, _NAMES))
