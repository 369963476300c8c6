"""A model is parts; core runs them: embedding, layers, final norm, head."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from lsv.attention import AttentionLayer
from lsv.nn.attention import Attention, CrossAttention
from lsv.nn.config import DecoderConfig
from lsv.nn.embed import Embed, Head
from lsv.nn.norm import RMSNorm
from lsv.nn.step import Step
from lsv.offers import OpSpec
from lsv.ops import Bindable
from lsv.weights.naming import Prefixes, rename
from lsv.weights.place import Weights
from lsv.weights.quantizer import joint_format


class Model(Protocol):
    """What core needs of an architecture; ``ModelOffer.load`` names a callable ``(w, config, max_len) -> Model``.

    A model is an ``nn.Module``; ``config`` is config.json, ``max_len`` the longest input. ``ignores`` are regular
    expressions of checkpoint tensors that are known not to be needed. ``norm`` takes the layers' output rows. One that
    has an ``encoder`` (``Encoder``) takes media; one whose tokens stand in several dimensions says so by ``axes``. A
    class may name in ``prefixes`` (``lsv.weights.naming``) what checkpoints write instead of its names' beginnings.
    """

    vocab_size: int
    ignores: tuple[str, ...]
    layers: nn.ModuleList
    norm: nn.Module

    def embed(self, ids: torch.Tensor, step: Step) -> torch.Tensor:
        """ids int64 [T] -> [T, hidden]."""
        ...

    def head(self, hidden: torch.Tensor, step: Step) -> torch.Tensor:
        """Normed hidden states [R, hidden] -> logits [R, vocab_size]."""
        ...

    def rename(self, name: str) -> str:
        """A checkpoint's name of a tensor -> the name under which the model declared it."""
        ...

    def attention_layers(self) -> tuple[AttentionLayer, ...]:
        """The attention layers of this rank, by index."""
        ...

    def place_layers(self, layers: Sequence[AttentionLayer]) -> None:
        """Replace the attention layers by the same ones with their places in the KV cache."""
        ...


class Encoder(Protocol):
    """What a model that takes pictures, sounds or clips has as ``encoder``: a tower cut into ``parts`` of like cost.

    Inputs are those of one item, by the names its processor gave them. Between two parts a step of decoding may run.
    """

    parts: int

    def begin(self, inputs: Mapping[str, torch.Tensor]) -> Any:
        """What the first part works on; ``inputs`` are on the device."""
        ...

    def advance(self, state: Any, part: int) -> Any:
        """What the next part works on; after the last one the embeddings [count, hidden]."""
        ...

    def largest(self, most: int) -> Mapping[str, torch.Tensor]:
        """Inputs of the item that takes most memory among those of at most ``most`` embeddings, on the CPU; what they
        show does not matter. Asked for only where a device measures memory; who leaves it out is not measured.
        """
        ...


class DecoderLayer(Bindable):
    """A pre-norm block: ``x + attn(norm(x))``, then ``x + mlp(norm(x))``."""

    op: ClassVar[str] = "layer"

    def __init__(self, before_attn: RMSNorm, attn: Attention, before_mlp: RMSNorm, mlp: Bindable) -> None:
        super().__init__()
        self.before_attn, self.attn = before_attn, attn
        self.before_mlp, self.mlp = before_mlp, mlp

    def spec(self) -> OpSpec:
        attn, mlp = self.attn.spec(), self.mlp.spec()
        format = joint_format(attn.format, mlp.format)
        op = attn.op.replace(Attention.op, self.op, 1)
        return OpSpec(op, attn.dtype, format, {**mlp.shape, **attn.shape}, attn.flags | mlp.flags | {mlp.op})

    def reference(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        x = x + self.attn(self.before_attn(x), step)
        return x + self.mlp(self.before_mlp(x))  # type: ignore[no-any-return]


class Attending(nn.Module):
    """Models made of the attention modules of ``lsv.nn.attention``."""

    def attention_layers(self) -> tuple[AttentionLayer, ...]:
        return tuple(attention.layer for attention in self._attentions())

    def place_layers(self, layers: Sequence[AttentionLayer]) -> None:
        for attention, layer in zip(self._attentions(), layers, strict=True):
            attention.layer = layer

    def _attentions(self) -> list[Attention | CrossAttention]:
        found = [module for module in self.modules() if isinstance(module, Attention | CrossAttention)]
        return sorted(found, key=lambda attention: attention.layer.index)


class Decoder(Attending):
    """A decoder-only transformer with the tensor names that Llama made common."""

    prefixes: ClassVar[Prefixes] = ()
    ignores: tuple[str, ...] = (r"(^|\.)rotary_emb\.inv_freq$",)

    def __init__(self, w: Weights, c: DecoderConfig, layers: Iterable[DecoderLayer]) -> None:
        super().__init__()
        self.vocab_size = c.vocab_size
        self.embed = Embed(w / "model" / "embed_tokens", c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(layers)
        self.norm = RMSNorm(w / "model" / "norm", c.hidden_size, c.norm_eps)
        self.head = Head(w / "lm_head", c.vocab_size, c.hidden_size, tied=self.embed if c.tied else None)
        if c.tied:
            self.ignores = (*self.ignores, r"^lm_head\.weight$")

    def rename(self, name: str) -> str:
        return rename(name, self.prefixes)


@torch.inference_mode()
def run(model: Model, step: Step) -> torch.Tensor:
    """All layers over the step's tokens; the normed hidden states [R', hidden] of ``step.logits_rows``."""
    x = model.embed(step.ids, step)
    if step.media is not None:
        x = x.index_copy(0, step.media.places, step.media.rows.to(x.dtype))
    for layer in model.layers:
        x = layer(x, step)
    return model.norm(x.index_select(0, step.logits_rows))  # type: ignore[no-any-return]


@torch.inference_mode()
def write_item(model: nn.Module, item: torch.Tensor, step: Step) -> None:
    """What all cross layers keep of an item's embeddings [count, hidden], which are the tokens of ``step``."""
    for module in model.modules():
        if isinstance(module, CrossAttention):
            module.write(item, step)
