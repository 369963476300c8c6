"""PEGASUS-X (Phang et al. 2022): the encoder's tokens see their block, and some that belong to no place see all."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from lsv_base.errors import CheckpointError
from lsv_models.seq2seq.layers import EncoderAttention, EncoderLayer, Form, Side, see_all
from lsv_models.seq2seq.mbart import MBart
from lsv_runtime import products
from lsv_runtime.nn.keys import Keys
from lsv_runtime.weights.place import Weights


class BlockAttention(EncoderAttention):
    """x [before + T, hidden] -> the same: the rows ``before`` those of the text see all, the others these and the rows
    of their block. Blocks begin ``shift`` places before the text.
    """

    def __init__(self, w: Weights, c: Side, form: Form, *, before: int, block: int, shift: int) -> None:
        super().__init__(w, c, form)
        self.before, self.block, self.shift = before, block, shift

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        before = self.before
        attended = see_all(q[:before], k, v, self.layer, None)
        return torch.cat((attended, self._attend_to_blocks(q[before:], k, v)))

    def _attend_to_blocks(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q [T, heads, dim], k and v [before + T, heads, dim] -> [T, heads, dim]."""
        length = len(q)
        there = self._cut(torch.ones(length, 1, 1, dtype=torch.bool, device=q.device))[..., 0]
        seen = functional.pad(there.transpose(1, 2), (self.before, 0), value=True)[:, None]  # [blocks, 1, 1, keys]
        keys, values = (
            torch.cat((x[: self.before].expand(len(seen), -1, -1, -1), self._cut(x[self.before :])), dim=1)
            for x in (k, v)
        )
        queries, keys, values = (x.transpose(1, 2) for x in (self._cut(q), keys, values))
        attended = products.attend(queries, keys, values, mask=seen)
        return attended.transpose(1, 2).flatten(0, 1)[self.shift : self.shift + length]

    def _cut(self, x: torch.Tensor) -> torch.Tensor:
        """[T, heads, dim] -> [blocks, block, heads, dim], with zeros around."""
        behind = -(len(x) + self.shift) % self.block
        return functional.pad(x, (0, 0, 0, 0, self.shift, behind)).unflatten(0, (-1, self.block))


class BlockLayer(EncoderLayer):
    """One whose first rows have a norm of their own before attention."""

    def __init__(self, w: Weights, c: Side, form: Form, attention: BlockAttention) -> None:
        super().__init__(w, c, form, attention=attention)
        self.before = attention.before
        self.before_norm = form.norm(w / "global_self_attn_layer_norm", c.hidden_size, c.norm_eps)

    def forward(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        normed = torch.cat((self.before_norm(x[: self.before]), self.attn.norm(x[self.before :])))
        return self.mlp(x + self.attn.inner(normed, bias))  # type: ignore[no-any-return]


class PegasusX(MBart):
    form = Form(norms="pre", bias=False)
    rows, offset, embed_norm, logits_bias = "fairseq", 0, None, False
    scaled, positions = True, 16384

    def read_more(self, keys: Keys) -> None:
        self.before, self.block = keys.count("num_global_tokens", 32), keys.count("block_size", 512)
        self.staggered = keys.take("stagger_local_blocks", bool, True)
        if self.staggered and self.block % 2:
            raise CheckpointError(
                f"config.json: block_size must be even for blocks that are staggered, got {self.block}"
            )

    def _make_encoder(self, w: Weights, c: Side, source: int) -> None:
        super()._make_encoder(w, c, source)
        self.everywhere = (w / "embed_global").take("weight", (self.before, c.hidden_size))

    def make_source_layer(self, w: Weights, c: Side, layer: int) -> EncoderLayer:
        shift = self.block // 2 if self.staggered and layer % 2 else 0
        given: Any = {"before": self.before, "block": self.block, "shift": shift}
        return BlockLayer(w, c, self.form, BlockAttention(w / "self_attn", c, self.form, **given))

    def read_text(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.cat((self.everywhere, super().read_text(ids)))
