"""The tower as it is trained: plain torch, with the tensor names of the checkpoint."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lsv_demo.senses.inputs import FRAMES, MERGED, PATCHES
from lsv_demo.senses.tower import LISTENS, LOOKS, SIZE, levels, listen, look, merge

HEADS = 6
INNER = 768
LAYERS = 4
NORM_EPS = 1e-5


class Layer(nn.Module):
    """A pre-norm transformer layer without a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attn = nn.LayerNorm(SIZE, NORM_EPS)
        self.qkv = nn.Linear(SIZE, 3 * SIZE)
        self.out = nn.Linear(SIZE, SIZE)
        self.before_mlp = nn.LayerNorm(SIZE, NORM_EPS)
        self.up = nn.Linear(SIZE, INNER)
        self.down = nn.Linear(INNER, SIZE)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = self.qkv(self.before_attn(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        # On CPUs plain products are learnt through faster than a fused kernel where items are this short.
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        scores = scores if mask is None else scores.masked_fill(~mask, float("-inf"))
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.before_mlp(x)), approximate="tanh"))


class Looks(nn.Module):
    """Pictures [items, SIDE, SIDE, 3] -> patches [items, 36, SIZE]."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleList(nn.Linear(inputs, outputs) for inputs, outputs in LOOKS)

    def forward(self, pictures: Tensor) -> Tensor:
        return look(pictures, self.steps)


class Listens(nn.Module):
    """Spectra [items, columns, BANDS] -> patches [items, columns / 8, SIZE]."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleList(nn.Linear(inputs, outputs) for inputs, outputs in LISTENS)

    def forward(self, spectra: Tensor) -> Tensor:
        return listen(spectra, self.steps)


class Tower(nn.Module):
    """What is shown of one kind -> embeddings of ``hidden`` numbers."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.looks, self.listens = Looks(), Listens()
        self.watch = nn.Linear(FRAMES * SIZE, SIZE)
        self.places = nn.ParameterDict({kind: torch.empty(count, SIZE) for kind, count in PATCHES.items()})
        self.before = nn.LayerNorm(SIZE, NORM_EPS)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(SIZE, NORM_EPS)
        self.merge = nn.ModuleDict({kind: nn.Linear(count * SIZE, hidden) for kind, count in MERGED.items()})

    def forward(self, kind: str, shown: Tensor, mask: Tensor | None = None) -> Tensor:
        """shown [items, ...] -> [items, patches / MERGED, hidden]; ``mask`` bool [items, 1, 1, patches] says which
        patches are there, and all are without one.
        """
        x = self._patches(kind, levels(shown, self.norm.weight.dtype))
        x = self.before(x) + self.places[kind][: x.shape[1]]
        for layer in self.layers:
            x = layer(x, mask)
        return self.merge[kind](merge(self.norm(x), kind))

    def _patches(self, kind: str, shown: Tensor) -> Tensor:
        if kind == "audio":
            return self.listens(shown)
        if kind == "image":
            return self.looks(shown)
        frames = self.looks(shown.flatten(0, 1)).unflatten(0, (-1, FRAMES))
        return self.watch(frames.transpose(1, 2).flatten(2))


def first_weights(tower: Tower) -> None:
    """Small random matrices; those that write to the residual stream begin at nothing."""
    for name, parameter in tower.named_parameters():
        if name.startswith("places"):
            nn.init.normal_(parameter, std=0.3)
        elif name.endswith(("out.weight", "down.weight", "bias")):
            nn.init.zeros_(parameter)
        elif parameter.ndim >= 2:
            nn.init.normal_(parameter, std=(2 if "steps" in name else 1) ** 0.5 * parameter[0].numel() ** -0.5)
