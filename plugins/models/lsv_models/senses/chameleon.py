"""Chameleon (Chameleon Team 2024): images are tokens of the vocabulary, made by a tokenizer of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from lsv.offers import OpSpec
from lsv_base.errors import CheckpointError
from lsv_models.senses.towers.codes import CodesConfig, CodesEncoder
from lsv_runtime.nn.attention import Attention, Heads, Sizes
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.decoder import Decoder, DecoderLayer
from lsv_runtime.nn.embed import Embed, Head
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.nn.rope import Rope
from lsv_runtime.nn.step import Step
from lsv_runtime.ops import Bindable, dtype_name
from lsv_runtime.weights.place import Weights

_EPS = 1e-5
_CODE = "IMGIMG"
"""What the names of image tokens begin with."""


class HeadsNorm(Bindable):
    """Layer normalisation of every head with a weight and a bias of its own: x [T, heads, dim] -> the same."""

    op = "heads_norm"

    def __init__(self, w: Weights, heads: int, dim: int, own: tuple[int, int]) -> None:
        super().__init__()
        self.weight: nn.Parameter = w.take("weight", (heads, dim), (0, *own))
        self.bias: nn.Parameter = w.take("bias", (heads, dim), (0, *own))

    def spec(self) -> OpSpec:
        return OpSpec(self.op, dtype_name(self.weight.dtype))

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, x.shape[-1:], eps=_EPS) * self.weight + self.bias


class NormedAttention(Attention):
    """Heads of q and k are normed one by one."""

    def make_norms(self, w: Weights, c: Sizes, heads: Heads, norm: type[RMSNorm]) -> Any:
        q, k = (w / name for name in self.qk_names)
        return HeadsNorm(q, c.heads, c.head_dim, heads.queries), HeadsNorm(k, c.kv_heads, c.head_dim, heads.kv)


class ChameleonLayer(DecoderLayer):
    """A pre-norm block."""

    attention = NormedAttention
    qk_norm = True

    def reference(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        x = x + self.attn(self.before_attn(x), step)
        return x + self.mlp(self.before_mlp(x))  # type: ignore[no-any-return]


class SwinLayer(ChameleonLayer):
    """The larger model's: what a block adds is normed, not what it reads."""

    def reference(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        x = x + self.before_attn(self.attn(x, step))
        return x + self.before_mlp(self.mlp(x))  # type: ignore[no-any-return]


class TextHead(Head):
    """A head that never answers with tokens of images: these get the lowest number there is."""

    images = slice(0, 0)

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        logits = super().forward(x, step)
        logits[:, self.images] = torch.finfo(logits.dtype).min
        return logits


class Chameleon(Decoder):
    """Answers with text."""

    ignores = (*Decoder.ignores, r"^model\.vqmodel\.(decoder|post_quant_conv)\.")

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        keys = Keys(config)
        codes = CodesConfig.read(keys.take("vq_config", dict))
        images = _read_images(keys.take("vocabulary_map", dict), codes.codes)
        layer = SwinLayer if keys.take("swin_norm", bool, False) else ChameleonLayer
        keys.skip("model_parallel_size", "image_token_id")
        c = DecoderConfig.read(keys, norm_eps=_EPS)
        keys.finish(type(self).__name__)
        if images.stop > c.vocab_size:
            raise CheckpointError(
                f"config.json: tokens of images end at {images.stop}, the vocabulary at {c.vocab_size}"
            )
        rope = Rope(w, c.rope, max_len)
        super().__init__(w, c, (layer(w / "model" / "layers" / i, c, i, rope) for i in range(c.layers)))
        assert isinstance(self.head, TextHead), "nothing scales what it says"
        assert isinstance(self.embed, Embed), "nothing scales what it reads"
        self.head.images = images
        self.encoder = CodesEncoder(w.replicated() / "model" / "vqmodel", codes, c.hidden_size, self.embed)

    def make_head(self, w: Weights, c: DecoderConfig, tied: Embed | None) -> Head:
        return TextHead(w, c.vocab_size, c.hidden_size, tied=tied)


def _read_images(vocabulary: Mapping[str, Any], codes: int) -> slice:
    """The tokens that stand for codes of images. Raises ``CheckpointError`` unless they are one run, a code each."""
    found = sorted(token for name, token in vocabulary.items() if name.startswith(_CODE) and type(token) is int)
    if len(found) != codes or found != list(range(found[0], found[0] + codes)):
        raise CheckpointError(
            f"config.json: vocabulary_map must have {codes} tokens {_CODE}… in a row, as many as vq_config has codes, "
            f"and has {len(found)}"
        )
    return slice(found[0], found[0] + codes)
