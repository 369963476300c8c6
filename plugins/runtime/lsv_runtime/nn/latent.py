"""Multi-head latent attention: keys and values of all heads come from one small vector per token (DeepSeek-V2)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn import functional

from lsv.offers import OpSpec
from lsv_base.errors import CheckpointError
from lsv_runtime import products
from lsv_runtime.attention import AttentionLayer
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.linear import Column, Row
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.nn.rope import Rope, RopeConfig, read_ropes
from lsv_runtime.nn.step import Step
from lsv_runtime.ops import Bindable, dtype_name
from lsv_runtime.weights.place import Part, Weights
from lsv_runtime.weights.quantizer import joint_format

_NORM_EPS = 1e-6
"""Of the norms of latents, whatever the model's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentConfig:
    """The sizes of latent attention."""

    hidden_size: int
    heads: int
    query_rank: int | None
    """The width of the vector that queries come from; None where they come from the input."""
    rank: int
    """The width of the vector that keys and values come from."""
    plain_dim: int
    """Features of a head's query and key without a position."""
    rotated_dim: int
    """Those with one, which all heads share of a key."""
    value_dim: int
    bias: bool
    """Whether the projections from and to the hidden size have one, that of the query alone excepted."""
    paired: bool
    """Whether rotated features 2 i and 2 i + 1 are a pair, not i and i + half of them."""
    rope: RopeConfig
    scale: float

    @classmethod
    def read(cls, keys: Keys, hidden_size: int, heads: int) -> LatentConfig:
        """Take DeepSeek's keys. Raises ``CheckpointError`` when one is missing or malformed."""
        plain, rotated = keys.count("qk_nope_head_dim", 128), keys.count("qk_rope_head_dim", 64)
        if rotated % 2:
            raise CheckpointError(f"config.json: qk_rope_head_dim must be even, got {rotated}")
        keys.agree("qk_head_dim", plain + rotated)
        rope, _ = read_ropes(keys, rotated, 10000.0, fraction=None)
        return cls(
            hidden_size=hidden_size,
            heads=heads,
            query_rank=keys.count("q_lora_rank") if keys.maybe("q_lora_rank", int) is not None else None,
            rank=keys.count("kv_lora_rank", 512),
            plain_dim=plain,
            rotated_dim=rotated,
            value_dim=keys.count("v_head_dim", 128),
            bias=keys.take("attention_bias", bool, False),
            paired=keys.take("rope_interleave", bool, True),
            rope=rope,
            scale=(plain + rotated) ** -0.5 * _magnitude(rope) ** 2,
        )


def _magnitude(rope: RopeConfig) -> float:
    """What YaRN multiplies queries and keys by beside their rotation: for all features, the plain ones included."""
    all_dim, factor = rope.parameters.get("mscale_all_dim"), float(rope.parameters.get("factor") or 1.0)
    if rope.kind == "default" or not all_dim or factor <= 1:
        return 1.0
    return 0.1 * float(all_dim) * math.log(factor) + 1.0


class HeadProduct(Bindable):
    """x [T, heads, inputs] -> [T, heads, outputs], by the buffer ``weight`` [heads, outputs, inputs].

    The module around it makes the weights of others that it has read, and hands them to ``fill``.
    """

    op: ClassVar[str] = "linear.heads"

    def __init__(self, heads: int, inputs: int, outputs: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.shape, self.dtype = (heads, outputs, inputs), dtype
        self.keep("weight", torch.empty(self.shape, dtype=dtype, device="meta"))

    def spec(self) -> OpSpec:
        heads, outputs, inputs = self.shape
        return OpSpec(self.op, dtype_name(self.dtype), "plain", {"heads": heads, "inputs": inputs, "outputs": outputs})

    def fill(self, weight: torch.Tensor) -> None:
        """Take the weights, of any strides."""
        self.keep("weight", weight)
        self.pack()

    def pack(self) -> None:
        """Nothing before there are weights: the loader comes here before it comes to the module around."""
        if not self.get_buffer("weight").is_meta:
            super().pack()

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        return products.einsum("thi,hoi->tho", x, self.get_buffer("weight"))


class LatentAttention(Bindable):
    """x [T, hidden] -> [T, hidden]. Heads are split over the ranks, latents are computed on each.

    The cache holds keys and values of every head, in the larger one of their sizes; or, once it is told to ``absorb``,
    the latent and the rotated features alone, as the keys of one head that all queries share, whose values are the
    latents in them. Queries are then brought into the latent's space and answers out of it, by the two halves of
    ``kv_b_proj``. ``rope`` is None for a model without positions.
    """

    op: ClassVar[str] = "attention.latent"
    absorbed = False

    def __init__(self, w: Weights, c: LatentConfig, layer: int, rope: Rope | None) -> None:
        super().__init__()
        self.c, self.rope = c, rope
        first, last = w.shard.split(c.heads, "attention heads")
        self.heads, alone = last - first, w.replicated()
        size = c.plain_dim + c.rotated_dim

        def of_heads(name: str, dim: int, inputs: int) -> Column:
            return Column(w, [Part(name, c.heads * dim, first * dim, last * dim)], inputs)

        if c.query_rank is None:
            self.q_a = self.q_norm = None
            self.q = of_heads("q_proj", size, c.hidden_size)
        else:
            self.q_a = Column.even(alone, ["q_a_proj"], c.hidden_size, c.query_rank, bias=c.bias)
            self.q_norm = RMSNorm(w / "q_a_layernorm", c.query_rank, _NORM_EPS)
            self.q = of_heads("q_b_proj", size, c.query_rank)
        self.kv_a = Column.even(alone, ["kv_a_proj_with_mqa"], c.hidden_size, c.rank + c.rotated_dim, bias=c.bias)
        self.kv_norm = RMSNorm(w / "kv_a_layernorm", c.rank, _NORM_EPS)
        self.kv_b = of_heads("kv_b_proj", c.plain_dim + c.value_dim, c.rank)
        reads = (first * c.value_dim, last * c.value_dim)
        self.out = Row(w, "o_proj", c.heads * c.value_dim, c.hidden_size, reads=reads, bias=c.bias)
        self.layer = AttentionLayer(layer, self.heads, self.heads, max(size, c.value_dim), c.scale)

    def latent_layer(self, *, once: bool = True) -> AttentionLayer:
        """The layer as a backend sees it once it is absorbed: with latents as values in its keys, or, for backends that
        read no values there, with keys as values beside them.
        """
        width, values = self.c.rank + self.c.rotated_dim, self.c.rank if once else None
        return AttentionLayer(self.layer.index, self.heads, 1, width, self.c.scale, value_dim=values)

    def absorb(self, *, once: bool = True) -> None:
        """Keep latents in the cache from now on, as ``latent_layer`` says. Comes before weights are filled and layers
        get their places.
        """
        self.absorbed, self.layer = True, self.latent_layer(once=once)
        c, dtype = self.c, self.kv_b.linear.layer.dtype
        self.inward = HeadProduct(self.heads, c.plain_dim, c.rank, dtype)
        self.outward = HeadProduct(self.heads, c.rank, c.value_dim, dtype)

    def spec(self) -> OpSpec:
        linears = (self.q.linear, self.kv_a.linear, self.kv_b.linear, self.out.linear)
        shape = {"hidden": self.c.hidden_size, "heads": self.heads, "rank": self.c.rank}
        dtype = dtype_name(self.out.linear.layer.dtype)
        op = f"{self.op}.absorbed" if self.absorbed else self.op
        return OpSpec(op, dtype, joint_format(*(linear.format for linear in linears)), shape)

    def filled(self) -> None:
        """Any format of ``kv_b_proj`` gives its plain weight when asked for what becomes of each feature."""
        if self.absorbed:
            linear = self.kv_b.linear
            ones = torch.eye(self.c.rank, dtype=linear.layer.dtype, device=self.kv_norm.weight.device)
            weight = linear.unrounded(ones).reshape(self.c.rank, self.heads, -1)
            inward, outward = torch.split(weight, [self.c.plain_dim, self.c.value_dim], dim=-1)
            self.inward.fill(inward.transpose(0, 1).contiguous())
            self.outward.fill(outward.permute(1, 2, 0).contiguous())

    def reference(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        c = self.c
        q = self.q(x if self.q_a is None or self.q_norm is None else self.q_norm(self.q_a(x)))
        q, turned = q.unflatten(-1, (self.heads, -1)).split((c.plain_dim, c.rotated_dim), dim=-1)
        latent, shared = self.kv_a(x).split((c.rank, c.rotated_dim), dim=-1)
        latent = self.kv_norm(latent.contiguous())
        turned = self._rotate(torch.cat((turned, shared[:, None]), dim=1), step)
        turned, shared = turned[:, :-1], turned[:, -1:]
        attend = self._attend_latents if self.absorbed else self._attend_heads
        return self.project(attend(q, turned, latent, shared, step), x)

    def project(self, attended: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """What heads found [T, heads, value_dim], and the layer's own input -> [T, hidden]."""
        return self.out(attended.flatten(1))  # type: ignore[no-any-return]

    def _rotate(self, heads: torch.Tensor, step: Step) -> torch.Tensor:
        """Features of one pair are brought to their places in two halves: that of q and k alike changes no product."""
        if self.rope is None:
            return heads
        if self.c.paired:
            heads = heads.view(*heads.shape[:-1], -1, 2).mT.flatten(-2)
        return self.rope(heads, step.positions[0])  # type: ignore[no-any-return]

    def _attend_heads(
        self, q: torch.Tensor, turned: torch.Tensor, latent: torch.Tensor, shared: torch.Tensor, step: Step
    ) -> torch.Tensor:
        c, size = self.c, self.layer.head_dim
        k, v = self.kv_b(latent).unflatten(-1, (self.heads, -1)).split((c.plain_dim, c.value_dim), dim=-1)
        k = torch.cat((k, shared.expand(-1, self.heads, -1)), dim=-1)
        q = torch.cat((q, turned), dim=-1)
        return self._attend(_widen(q, size), _widen(k, size), _widen(v, size), step)[..., : c.value_dim]

    def _attend_latents(
        self, q: torch.Tensor, turned: torch.Tensor, latent: torch.Tensor, shared: torch.Tensor, step: Step
    ) -> torch.Tensor:
        q = self.inward(q)
        k = torch.cat((latent[:, None], shared), dim=-1)
        v = k if self.layer.value_dim is None else None
        found = self._attend(torch.cat((q, turned), dim=-1), k, v, step)[..., : self.c.rank]
        return self.outward(found)  # type: ignore[no-any-return]

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor | None, step: Step) -> torch.Tensor:
        layer, values = self.layer, None if v is None else v.contiguous()
        plan = step.attention[layer.group]
        return step.backend.attend(q.contiguous(), k.contiguous(), values, layer, step.cache, plan)


def _widen(heads: torch.Tensor, size: int) -> torch.Tensor:
    """[..., dim] -> [..., size] with zeros behind."""
    return heads if heads.shape[-1] == size else functional.pad(heads, (0, size - heads.shape[-1]))
