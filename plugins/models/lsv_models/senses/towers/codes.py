"""The image tokenizer of Chameleon: convolutions make vectors, each of which becomes the nearest of a codebook.

Source: Gafni et al. 2022 (Make-A-Scene), after Esser et al. 2021 (VQGAN).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from lsv_base.errors import CheckpointError
from lsv_runtime import products
from lsv_runtime.nn.embed import Embed
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.model import Encoder
from lsv_runtime.weights.place import Weights

_GROUPS, _EPS = 32, 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class CodesConfig:
    """The numbers of the tokenizer. ``multipliers`` are of the channels, by level; all but the last halve the sides."""

    channels: int
    base: int
    multipliers: tuple[int, ...]
    blocks: int
    attended: frozenset[int]
    """The sides at which blocks attend."""
    attends: bool
    latent: int
    size: int
    codes: int
    resolution: int

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> CodesConfig:
        """``vq_config`` of a config.json; raises ``CheckpointError`` for one that can't be followed."""
        keys = Keys(config)
        multipliers = keys.take("channel_multiplier", list, [1, 1, 2, 2, 4])
        base = keys.count("base_channels", 128)
        if not multipliers or not all(type(one) is int and one > 0 for one in multipliers) or base % _GROUPS:
            raise CheckpointError(
                f"config.json: channel_multiplier must list positive numbers and base_channels be a multiple of "
                f"{_GROUPS}, got {multipliers} and {base}"
            )
        double = keys.take("double_latent", bool, False)
        if double:
            raise CheckpointError("config.json: double_latent is true, and images have one vector a code here")
        found = cls(
            channels=keys.count("in_channels", 3),
            base=base,
            multipliers=tuple(multipliers),
            blocks=keys.layers("num_res_blocks", 2),
            attended=frozenset(keys.maybe("attn_resolutions", list) or ()),
            attends=keys.maybe("attn_type", str, "vanilla") == "vanilla",
            latent=keys.count("latent_channels", 256),
            size=keys.count("embed_dim", 256),
            codes=keys.count("num_embeddings", 8192),
            resolution=keys.count("resolution", 512),
        )
        keys.finish("Chameleon's image tokenizer")
        return found


class Conv(nn.Module):
    """x [1, inputs, height, width] -> [1, outputs, …]."""

    def __init__(self, w: Weights, inputs: int, outputs: int, side: int, *, stride: int = 1) -> None:
        super().__init__()
        self.weight, self.bias = w.take("weight", (outputs, inputs, side, side)), w.take("bias", (outputs,))
        self.stride, self.padding = stride, side // 2 if stride == 1 else 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return products.convolve(x, self.weight, self.bias, stride=self.stride, padding=self.padding)


class GroupNorm(nn.Module):
    def __init__(self, w: Weights, size: int) -> None:
        super().__init__()
        self.weight, self.bias = w.take("weight", (size,)), w.take("bias", (size,))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.group_norm(x, _GROUPS, self.weight, self.bias, _EPS)


class Residual(nn.Module):
    """Two convolutions, added to their input."""

    def __init__(self, w: Weights, inputs: int, outputs: int) -> None:
        super().__init__()
        self.before_first, self.first = GroupNorm(w / "norm1", inputs), Conv(w / "conv1", inputs, outputs, 3)
        self.before_second, self.second = GroupNorm(w / "norm2", outputs), Conv(w / "conv2", outputs, outputs, 3)
        self.shortcut = None if inputs == outputs else Conv(w / "nin_shortcut", inputs, outputs, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(functional.silu(self.before_first(x)))
        y = self.second(functional.silu(self.before_second(y)))
        return (x if self.shortcut is None else self.shortcut(x)) + y  # type: ignore[no-any-return]


class PlaceAttention(nn.Module):
    """Every place attends to all, by one head; added to the input."""

    def __init__(self, w: Weights, size: int) -> None:
        super().__init__()
        self.norm = GroupNorm(w / "norm", size)
        self.q, self.k, self.v, self.out = (Conv(w / name, size, size, 1) for name in ("q", "k", "v", "proj_out"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x)
        q, k, v = (one(normed).flatten(2).mT for one in (self.q, self.k, self.v))
        attended = products.attend(q, k, v)
        return x + self.out(attended.mT.reshape(x.shape))  # type: ignore[no-any-return]


class Level(nn.Module):
    """The blocks of one resolution, and what halves the sides behind them."""

    def __init__(self, w: Weights, c: CodesConfig, inputs: int, outputs: int, side: int, *, last: bool) -> None:
        super().__init__()
        attends = c.attends and side in c.attended
        blocks: list[nn.Module] = []
        for i in range(c.blocks):
            blocks.append(Residual(w / "block" / i, outputs if i else inputs, outputs))
            blocks += [PlaceAttention(w / "attn" / i, outputs)] if attends else []
        self.blocks = nn.Sequential(*blocks)
        self.halve = None if last else Conv(w / "downsample" / "conv", outputs, outputs, 3, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(x)
        return x if self.halve is None else self.halve(functional.pad(x, (0, 1, 0, 1)))


class CodesEncoder(Encoder):
    """Takes ``pixel_values`` [1, channels, side, side] and ``tokens`` int64 [codes], the token of each code: the
    embeddings of the image's tokens [places, hidden].
    """

    def __init__(self, w: Weights, c: CodesConfig, width: int, tokens: Embed) -> None:
        super().__init__()
        self.c, self.width, self.parts = c, width, len(c.multipliers) + 1
        place, sizes = w / "encoder", [c.base, *(c.base * one for one in c.multipliers)]
        self.first = Conv(place / "conv_in", c.channels, c.base, 3)
        levels = [
            Level(place / "down" / i, c, *sizes[i : i + 2], c.resolution >> i, last=i + 1 == len(c.multipliers))
            for i in range(len(c.multipliers))
        ]
        middle, size = place / "mid", sizes[-1]
        attention = [PlaceAttention(middle / "attn_1", size)] if c.attends else []
        last = [Residual(middle / "block_1", size, size), *attention, Residual(middle / "block_2", size, size)]
        self.layers = nn.ModuleList([*levels, nn.Sequential(*last)])
        self.norm, self.last = GroupNorm(place / "norm_out", size), Conv(place / "conv_out", size, c.latent, 3)
        self.narrow = Conv(w / "quant_conv", c.latent, c.size, 1)
        self.book = (w / "quantize" / "embedding").take("weight", (c.codes, c.size))
        # not as a module: it is the model's
        self.__dict__["read"] = tokens

    def begin(self, inputs: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        return self.first(inputs["pixel_values"].to(self.book.dtype)), inputs["tokens"]

    def largest(self, most: int) -> Mapping[str, torch.Tensor]:
        pixels = torch.zeros(1, self.c.channels, self.c.resolution, self.c.resolution)
        return {"pixel_values": pixels, "tokens": torch.zeros(self.c.codes, dtype=torch.int64)}

    def advance(self, state: tuple[torch.Tensor, torch.Tensor], part: int) -> Any:
        x, tokens = self.layers[part](state[0]), state[1]
        if part + 1 < self.parts:
            return x, tokens
        read: Callable[[torch.Tensor, None], torch.Tensor] = self.__dict__["read"]
        vectors = self.narrow(self.last(functional.silu(self.norm(x))))[0].flatten(1).T
        alike = products.matmul(vectors, self.book.T)
        distances = (vectors**2).sum(1, keepdim=True) + (self.book**2).sum(1) - 2 * alike
        return read(tokens[distances.argmin(1)], None)
