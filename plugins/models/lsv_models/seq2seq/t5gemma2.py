"""T5Gemma 2 (Zhang et al. 2025), the text half: the decoder looks at its own tokens and at the text in one softmax."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from lsv_models.rms.blocks import OffsetRMSNorm
from lsv_models.seq2seq.layers import EncoderAttention, EncoderLayer, Form
from lsv_models.seq2seq.t5gemma import T5Gemma, make_form
from lsv_runtime import products
from lsv_runtime.attention.chosen import each_row
from lsv_runtime.nn.attention import Attention, CrossAttention, Heads
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.embed import Embed, ScaledEmbed
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.rope import Rope
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.naming import substitute
from lsv_runtime.weights.place import Weights

_NAMES = (
    (r"^model\.encoder\.text_model\.", "model.encoder."),
    (r"^model\.decoder\.embed_tokens\.", "model.encoder.embed_tokens."),
)


class NormedAttention(EncoderAttention):
    """One that normalises the heads of q and k before they are rotated."""

    def __init__(self, w: Weights, c: DecoderConfig, form: Form, rope: Rope) -> None:
        super().__init__(w, c, form, rope)
        self.q_norm, self.k_norm = (OffsetRMSNorm(w / name, c.head_dim, c.norm_eps) for name in ("q_norm", "k_norm"))

    def turn(self, qk: torch.Tensor) -> torch.Tensor:
        heads = self.layer.heads
        return super().turn(torch.cat((self.q_norm(qk[:, :heads]), self.k_norm(qk[:, heads:])), dim=1))


class MergedAttention(Attention):
    """x [T, hidden] -> [T, hidden] over the tokens so far, or those of a window, and the encoded text together.

    Keys of both come from the same projections; those of the text are not rotated.
    """

    op = "attention.merged"

    def __init__(self, w: Weights, c: DecoderConfig, layer: int, rope: Rope, source: int) -> None:
        whole = replace(c, windows=(None,) * c.layers)
        super().__init__(
            w, whole, layer, rope, qk_norm=True, qkv_bias=c.attention_bias, out_bias=c.attention_bias,
            norm=OffsetRMSNorm, scale=c.attention_scale,
        )  # fmt: skip
        self.window = c.windows[layer]
        self.layer = replace(self.layer, gathered=True)
        self.text = _TextKeys(self, Heads(w, c), c.layers + layer, source)

    def keys_and_values(self, item: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of a text's embeddings [S, hidden]: [S, kv_heads, head_dim] each."""
        assert self.k_norm is not None
        qkv = self.qkv(item).view(len(item), -1, self.head_dim)
        _, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        return self.k_norm(k), v

    def reference(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        qkv = self.qkv(x).view(len(x), -1, self.head_dim)
        qk, v = qkv.split((self.heads + self.kv_heads, self.kv_heads), dim=1)
        q, k = self.turn(qk, step).split((self.heads, self.kv_heads), dim=1)
        backend, layers = step.backend, (self.layer, self.text.layer)
        own, text = (step.attention[layer.group] for layer in layers)
        mine = backend.gather(k, v, layers[0], step.cache, own)
        # there is no cache while memory is being measured: any keys will do
        given = (k, v) if step.cache is None else (None, None)
        read = backend.gather(*given, layers[1], step.cache, text)
        attended = torch.zeros_like(q)  # zeros for padding
        texts = each_row(backend.lengths(own if step.cache is None else text))
        for (tokens, before), (_, whole) in zip(each_row(backend.lengths(own)), texts, strict=True):
            keys, values = (torch.cat((a[before], b[whole].to(a.dtype))) for a, b in zip(mine, read, strict=True))
            seen = self._see(tokens.stop - tokens.start, before.stop - before.start, len(keys), q.device)
            attended[tokens] = self._attend(q[tokens], keys, values, seen)
        return self.project(attended, x)

    def _see(self, count: int, before: int, total: int, device: torch.device) -> torch.Tensor:
        """Which keys the last ``count`` of ``before`` tokens see, of these and the text's: bool [count, total]."""
        places = torch.arange(before, device=device)
        distance = places[before - count :, None] - places
        seen = torch.ones(count, total, dtype=torch.bool, device=device)
        seen[:, :before] = (distance >= 0) & (distance < (self.window or before))
        return seen

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        q, k, v = (heads.transpose(0, 1)[None] for heads in (q, k, v))
        grouped, scale = self.heads != self.kv_heads, self.layer.scale
        found = products.attend(q, k, v, mask=seen, scale=scale, grouped=grouped)
        return found[0].transpose(0, 1)


class _TextKeys(CrossAttention):
    """Where the keys of encoded texts are cached, for attention that makes and reads them."""

    def __init__(self, owner: MergedAttention, heads: Heads, layer: int, source: int) -> None:
        nn.Module.__init__(self)
        self.__dict__["owner"] = owner  # whose part it is
        self.layer = replace(heads.layer(layer, source=source, scale=owner.layer.scale), gathered=True)

    def write(self, item: torch.Tensor, step: Step) -> None:
        owner: MergedAttention = self.__dict__["owner"]
        k, v = owner.keys_and_values(item.to(owner.qkv.linear.layer.dtype))
        step.backend.write(k, v, self.layer, step.cache, step.attention[self.layer.group])


class MarkedEmbed(nn.Module):
    """``embed(ids)``, with a vector of its own for the token that ends an image."""

    def __init__(self, w: Weights, embed: ScaledEmbed, size: int, mark: int) -> None:
        super().__init__()
        self.embed, self.mark, self.row = embed, mark, w.take("eoi_embedding", (size,))

    def forward(self, ids: torch.Tensor, step: Step) -> torch.Tensor:
        return torch.where((ids == self.mark)[:, None], self.row, self.embed(ids, step))


class T5Gemma2(T5Gemma):
    """Images are not read: what would see them is left in the checkpoint."""

    defaults = {**T5Gemma.defaults, "full_every": 6, "rope_theta": 1e6, "local_theta": 10000.0}
    shared = True
    ignores = (*T5Gemma.ignores, r"^model\.encoder\.(vision_tower|multi_modal_projector)\.")

    def read_more(self, keys: Keys) -> None:
        self.mark = keys.take("eoi_token_index", int, 256_000)
        keys.skip("image_token_index", "boi_token_index")
        keys.agree("tie_word_embeddings", True)

    def make_embed(self, w: Weights, c: DecoderConfig, tokens: Embed) -> nn.Module:
        return MarkedEmbed(w, ScaledEmbed(tokens, c.embedding_multiplier), c.hidden_size, self.mark)

    def make_source_layer(self, w: Weights, c: DecoderConfig, rope: Rope) -> nn.Module:
        form = make_form(c)
        return EncoderLayer(w, c, form, attention=NormedAttention(w / "self_attn", c, form, rope))

    def make_layer(self, w: Weights, c: DecoderConfig, layer: int, rope: Rope, width: int, source: int) -> nn.Module:
        return EncoderLayer(w, c, make_form(c), attention=MergedAttention(w / "self_attn", c, layer, rope, source))

    def biases(self, length: int, device: torch.device) -> Iterator[torch.Tensor | None]:
        places = torch.arange(length, device=device)
        after = places[None, :] - places[:, None]
        for window in self.source_windows:
            if window is None:
                yield None
            else:
                beyond = (after > window // 2) | (-after >= (window + 1) // 2)
                yield torch.zeros(length, length, device=device).masked_fill(beyond, -torch.inf)

    def rename(self, name: str) -> str:
        return super().rename(substitute(name, _NAMES))

    def _read_side(self, keys: Keys, side: str) -> DecoderConfig:
        given: Mapping[str, Any] = keys.take(side, dict)
        return super()._read_side(Keys({side: given.get("text_config", given)}), side)
