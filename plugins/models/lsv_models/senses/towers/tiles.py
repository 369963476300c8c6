"""The vision tower of Llama 3.2: one transformer over all tiles of an image, then a gated one.

Source: Llama Team 2024 (The Llama 3 Herd of Models, section 7), as its weights were published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from lsv_base.errors import CheckpointError
from lsv_runtime import products
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.linear import Column
from lsv_runtime.nn.mlp import FeedForward
from lsv_runtime.nn.model import Encoder
from lsv_runtime.nn.norm import LayerNorm
from lsv_runtime.weights.place import Weights

_EPS = 1e-5
"""Of the norms before and behind the first transformer."""
_PROJECTIONS = ("q_proj", "k_proj", "v_proj")
_UNIT = 8
"""The tokens of a tile are padded to a multiple of this."""
_RATIOS = [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TilesConfig:
    """The numbers of the tower. ``ratios`` counts the ways to lay tiles out; ``kept`` are the layers of the first
    transformer, from 0 on, whose outputs stand beside those of the second.
    """

    hidden_size: int
    intermediate_size: int
    layers: int
    global_layers: int
    heads: int
    channels: int
    image_size: int
    patch_size: int
    norm_eps: float
    activation: str
    most: int
    ratios: int
    kept: tuple[int, ...]

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> TilesConfig:
        """``vision_config`` of a config.json; raises ``CheckpointError`` for one that can't be followed."""
        keys = Keys(config)
        size, layers = keys.count("hidden_size", 1280), keys.layers("num_hidden_layers", 32)
        kept = keys.take("intermediate_layers_indices", list, [3, 7, 15, 23, 30])
        if not kept or not all(type(layer) is int and 0 <= layer < layers for layer in kept):
            raise CheckpointError(
                f"config.json: intermediate_layers_indices must name some of the tower's {layers} layers, got {kept}"
            )
        found = cls(
            hidden_size=size,
            intermediate_size=keys.count("intermediate_size", 5120),
            layers=layers,
            global_layers=keys.layers("num_global_layers", 8),
            heads=keys.count("attention_heads", keys.take("num_attention_heads", int, 16)),
            channels=keys.count("num_channels", 3),
            image_size=keys.count("image_size", 448),
            patch_size=keys.count("patch_size", 14),
            norm_eps=keys.take("norm_eps", float, _EPS),
            activation=keys.take("hidden_act", str, "gelu"),
            most=keys.count("max_num_tiles", 4),
            ratios=len(keys.take("supported_aspect_ratios", list, _RATIOS)),
            kept=tuple(kept),
        )
        if (width := keys.count("vision_output_dim", 7680)) != found.width:
            raise CheckpointError(f"config.json: vision_output_dim must be {found.width}, got {width}")
        keys.finish("the tower of Llama 3.2")
        return found

    @property
    def width(self) -> int:
        """Numbers of a token behind the tower."""
        return self.hidden_size * (1 + len(self.kept))

    @property
    def patches(self) -> int:
        """Patches of a tile."""
        return int((self.image_size // self.patch_size) ** 2)

    @property
    def tokens(self) -> int:
        """Tokens of a tile: its patches behind one that stands for all of it."""
        return self.patches + 1


class TileAttention(nn.Module):
    """x [T, size] -> [T, size], whose first ``own`` tokens are the image's and the others padding.

    As the model was trained, only padding does not see padding.
    """

    def __init__(self, w: Weights, c: TilesConfig) -> None:
        super().__init__()
        self.heads = c.heads
        self.qkv = Column.even(w, _PROJECTIONS, c.hidden_size, c.hidden_size)
        self.out = Column.even(w, ("o_proj",), c.hidden_size, c.hidden_size)

    def forward(self, x: torch.Tensor, own: int) -> torch.Tensor:
        q, k, v = self.qkv(x).view(len(x), 3, self.heads, -1).permute(1, 2, 0, 3)[:, None].unbind()
        image = products.attend(q[:, :, :own], k, v)
        padding = products.attend(q[:, :, own:], k[:, :, :own], v[:, :, :own])
        attended = torch.cat((image, padding), dim=2)[0].transpose(0, 1)
        return self.out(attended.flatten(1))  # type: ignore[no-any-return]


class TileLayer(nn.Module):
    """A pre-norm block; ``gated``, what it adds is scaled by what was learned."""

    def __init__(self, w: Weights, c: TilesConfig, *, gated: bool) -> None:
        super().__init__()
        size = c.hidden_size
        self.before_attn = LayerNorm(w / "input_layernorm", size, c.norm_eps)
        self.attn = TileAttention(w / "self_attn", c)
        self.before_mlp = LayerNorm(w / "post_attention_layernorm", size, c.norm_eps)
        self.mlp = FeedForward(w / "mlp", ("fc1", "fc2"), (size, c.intermediate_size, size), c.activation)
        self.gates = nn.ParameterList(w.take(name, (1,)) for name in ("gate_attn", "gate_ffn") if gated)

    def forward(self, x: torch.Tensor, own: int) -> torch.Tensor:
        x = x + self._scaled(self.attn(self.before_attn(x), own), 0)
        return x + self._scaled(self.mlp(self.before_mlp(x)), 1)

    def _scaled(self, x: torch.Tensor, place: int) -> torch.Tensor:
        return self.gates[place].tanh() * x if len(self.gates) else x


class TileEmbedding(nn.Module):
    """A vector for each tile of a layout: layout int64 [1] -> [most, size]."""

    def __init__(self, w: Weights, c: TilesConfig) -> None:
        super().__init__()
        self.most = c.most
        self.weight = (w / "embedding").take("weight", (c.ratios + 1, c.most * c.hidden_size))
        self.gate = w.take("gate", (1,))

    def forward(self, layout: torch.Tensor) -> torch.Tensor:
        return self.weight[layout].view(self.most, -1) * self.gate.tanh()


class PatchEmbedding(nn.Module):
    """A vector for each token of a tile, and one for each of each tile of a layout, mixed as was learned.

    layout int64 [1] -> [most, tokens, size].
    """

    def __init__(self, w: Weights, c: TilesConfig) -> None:
        super().__init__()
        self.most = c.most
        self.weight = w.take("embedding", (c.tokens, c.hidden_size))
        self.tiles = (w / "tile_embedding").take("weight", (c.ratios + 1, c.most * c.tokens * c.hidden_size))
        self.gate = w.take("gate", (1,))

    def forward(self, layout: torch.Tensor) -> torch.Tensor:
        gate = self.gate.tanh()
        return (1 - gate) * self.weight + gate * self.tiles[layout].view(self.most, *self.weight.shape)


@dataclass(frozen=True, slots=True)
class TilesState:
    """An image being encoded: x [T, size], whose first ``own`` tokens are its own, the layout of its tiles, which tile
    each token is of [T], and the outputs that are kept, by layer.
    """

    x: torch.Tensor
    own: int
    layout: torch.Tensor
    tile: torch.Tensor
    kept: Mapping[int, torch.Tensor]


class TilesTower(Encoder):
    """Takes ``pixel_values`` [tiles, channels, size, size] and ``layout`` int64 [1], the number of the ratio in which
    these tiles are laid out, from 1 on: [tiles * tokens, width], one tile after the other.
    """

    def __init__(self, whole: Weights, c: TilesConfig, width: int) -> None:
        super().__init__()
        self.c, self.width, w = c, width, whole / "vision_model"
        self.parts = c.layers + c.global_layers
        size = c.hidden_size
        self.patches = (w / "patch_embedding").take("weight", (size, c.channels, c.patch_size, c.patch_size))
        self.start = w.take("class_embedding", (size,))
        self.places = PatchEmbedding(w / "gated_positional_embedding", c)
        self.before = TileEmbedding(w / "pre_tile_positional_embedding", c)
        self.between = TileEmbedding(w / "post_tile_positional_embedding", c)
        self.norm_before = LayerNorm(w / "layernorm_pre", size, _EPS)
        self.norm_between = LayerNorm(w / "layernorm_post", size, _EPS)
        place, behind = w / "transformer" / "layers", w / "global_transformer" / "layers"
        layers = [TileLayer(place / i, c, gated=False) for i in range(c.layers)]
        layers += [TileLayer(behind / i, c, gated=True) for i in range(c.global_layers)]
        self.layers = nn.ModuleList(layers)
        self.projector = Column.even(whole, ("multi_modal_projector",), c.width, width, bias=True)

    def begin(self, inputs: Mapping[str, torch.Tensor]) -> TilesState:
        pixels, layout = inputs["pixel_values"].to(self.patches.dtype), inputs["layout"]
        tiles, padding = len(pixels), -self.c.tokens % _UNIT
        cut = products.convolve(pixels, self.patches, stride=self.c.patch_size).flatten(2).transpose(1, 2)
        cut = functional.pad(cut, (0, 0, 0, 0, 0, self.c.most - tiles)) + self.before(layout)[:, None]
        x = torch.cat((self.start.expand(len(cut), 1, -1), cut), dim=1)
        x = self.norm_before(x + self.places(layout))
        numbers = torch.arange(self.c.most, device=x.device)[:, None].expand(-1, self.c.tokens + padding)
        tile = torch.cat((numbers[:, padding:].flatten(), numbers[:, :padding].flatten()))
        x = torch.cat((x.flatten(0, 1), x.new_zeros(self.c.most * padding, x.shape[2])))
        return TilesState(x, tiles * self.c.tokens, layout, tile, {})

    def largest(self, most: int) -> Mapping[str, torch.Tensor]:
        c = self.c
        tiles = min(c.most, max(1, most // c.tokens))
        pixels = torch.zeros(tiles, c.channels, c.image_size, c.image_size)
        return {"pixel_values": pixels, "layout": torch.ones(1, dtype=torch.int64)}

    def advance(self, state: TilesState, part: int) -> TilesState | torch.Tensor:
        x, own, c = self.layers[part](state.x, state.own), state.own, self.c
        kept = {**state.kept, part: x[:own]} if part in c.kept else state.kept
        if part + 1 == c.layers:
            x = self.norm_between(x) + self.between(state.layout)[state.tile]
        if part + 1 < self.parts:
            return replace(state, x=x, kept=kept)
        # the kept numbers of a feature stand together
        beside = torch.stack([kept[layer] for layer in c.kept], dim=-1).flatten(1)
        return self.projector(torch.cat((x[:own], beside), dim=-1))  # type: ignore[no-any-return]
