"""LLaVA-1.5 and LLaVA-NeXT: a vision tower, a projector, and an existing language model.

Sources: Liu et al. 2023 (LLaVA-1.5), Liu et al. 2024 (LLaVA-NeXT: tiles at the resolution of the image).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from lsv_base.errors import CheckpointError
from lsv_models.clip import Tower, TowerConfig
from lsv_models.llama import LlamaLayer
from lsv_models.qwen2 import Qwen2Layer
from lsv_models.senses.languages import LEFT_OUT
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.decoder import Decoder, DecoderLayer
from lsv_runtime.nn.encoder import check_placeholder, read_layer, unread_layers
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.mlp import FeedForward
from lsv_runtime.nn.model import Encoder
from lsv_runtime.nn.rope import Rope
from lsv_runtime.weights.place import Weights

_LANGUAGES: Mapping[str, Callable[[Weights, DecoderConfig, int, Rope], DecoderLayer]] = {
    "llama": LlamaLayer,
    "mistral": LlamaLayer,
    "qwen2": Qwen2Layer,
}
_WINDOWS: Mapping[str, Mapping[str, Any]] = {"mistral": {"windows": True}, "qwen2": {"first_window": 28}}
"""How the languages that may have windows read their keys."""
# keys that only the processor reads, or that have no effect
_PROCESSORS = ("image_seq_length", "ignore_index", "use_image_newline_parameter", "vocab_size")
_PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LlavaConfig:
    """The part between the two models: which of the tower's layers are read, and how they are projected."""

    tower: TowerConfig
    layers: tuple[int, ...]
    drops_first: bool
    activation: str
    bias: bool
    tiles: bool
    most: tuple[int, int]
    """Rows and columns of tiles in the largest image."""

    @classmethod
    def read(cls, keys: Keys, tower: TowerConfig, *, tiles: bool) -> LlavaConfig:
        layers = keys.json.get("vision_feature_layer", -2)
        keys.take("vision_feature_layer", list if isinstance(layers, list) else int, layers)
        if layers == []:
            raise CheckpointError("config.json: vision_feature_layer must name a layer of the tower, got an empty list")
        strategy = keys.take("vision_feature_select_strategy", str, "default")
        if strategy not in ("default", "full"):
            raise CheckpointError(
                f"config.json: vision_feature_select_strategy must be default or full, got {strategy}"
            )
        drops_first = strategy == "default"
        if tiles and drops_first != tower.clip:
            raise CheckpointError("config.json: tiles need patches alone: strategy default for CLIP, full for SigLIP")
        height, width = max(keys.take("image_grid_pinpoints", list, _PINPOINTS), key=math.prod)
        return cls(
            tower=tower,
            layers=tuple(
                read_layer("vision_feature_layer", layer, tower.layers)
                for layer in (layers if isinstance(layers, list) else [layers])
            ),
            drops_first=drops_first,
            activation=keys.take("projector_hidden_act", str, "gelu"),
            bias=keys.take("multimodal_projector_bias", bool, True),
            tiles=tiles,
            most=(height // tower.image_size, width // tower.image_size),
        )


@dataclass(frozen=True, slots=True)
class VisionState:
    """An image being encoded: x [tiles * tokens, hidden], the outputs that are kept, and the layout of the tiles."""

    x: torch.Tensor
    kept: Mapping[int, torch.Tensor]
    layout: tuple[int, ...]


class LlavaEncoder(Encoder):
    """Takes ``pixel_values`` [tiles, channels, size, size].

    With tiles also ``layout``: rows and columns of the tiles after the first, which shows the full image, and the
    patches (top, bottom, left, right) that are kept.
    """

    def __init__(self, w: Weights, c: LlavaConfig, size: int) -> None:
        super().__init__()
        self.c = c
        self.parts = max(c.layers)
        self.tower = Tower(w / "vision_tower", c.tower, self.parts)
        sizes = (c.tower.hidden_size * len(c.layers), size, size)
        place = w / "multi_modal_projector"
        self.projector = FeedForward(place, ("linear_1", "linear_2"), sizes, c.activation, bias=c.bias)
        self.newline = w.take("image_newline", (size,)) if c.tiles else None

    def begin(self, inputs: Mapping[str, torch.Tensor]) -> VisionState:
        layout = tuple(inputs["layout"].tolist()) if self.c.tiles else ()
        return VisionState(self.tower.embed(inputs["pixel_values"]), {}, layout)

    def largest(self, most: int) -> Mapping[str, torch.Tensor]:
        rows, columns = self.c.most if self.c.tiles else (0, 0)
        tower = self.c.tower
        pixels = torch.zeros(1 + rows * columns, tower.channels, tower.image_size, tower.image_size)
        layout = (rows, columns, 0, rows * tower.side, 0, columns * tower.side)
        return {"pixel_values": pixels, "layout": torch.tensor(layout)}

    def advance(self, state: VisionState, part: int) -> VisionState | torch.Tensor:
        tokens = self.c.tower.tokens
        x = self.tower.layers[part](state.x, ((len(state.x) // tokens, tokens),))
        kept = {**state.kept, part + 1: x} if part + 1 in self.c.layers else state.kept
        if part + 1 < self.parts:
            return VisionState(x, kept, state.layout)
        seen = torch.cat([kept[layer] for layer in self.c.layers], dim=-1)
        seen = seen.view(-1, tokens, seen.shape[-1])
        seen = self.projector(seen[:, 1:] if self.c.drops_first else seen)
        return seen.flatten(0, 1) if self.newline is None else lay_out(seen, state.layout, self.newline)


def lay_out(seen: torch.Tensor, layout: tuple[int, ...], newline: torch.Tensor) -> torch.Tensor:
    """seen [1 + tiles, side², size] -> the full image, then its tiles by rows of patches, with ``newline`` [size] after
    each row: [count, size].
    """
    rows, columns, top, bottom, left, right = layout
    side = math.isqrt(seen.shape[1])
    tiles = seen[1:].view(rows, columns, side, side, -1)
    patches = tiles.transpose(1, 2).flatten(2, 3).flatten(0, 1)[top:bottom, left:right]
    lines = torch.cat((patches, newline.expand(len(patches), 1, -1)), dim=1)
    return torch.cat((seen[0], lines.flatten(0, 1)))


class Llava(Decoder):
    """An image has as many embeddings as its tiles have patches."""

    tiles = False
    # since version 4.52 of transformers, and before it; towers before version 5
    prefixes = (
        ("model.language_model", "model"),
        ("model.vision_tower.vision_model", "vision_tower"),
        ("model.vision_tower", "vision_tower"),
        ("model.multi_modal_projector", "multi_modal_projector"),
        ("model.image_newline", "image_newline"),
        ("language_model.model", "model"),
        ("language_model.lm_head", "lm_head"),
        ("language_model", "model"),
        ("vision_tower.vision_model", "vision_tower"),
    )

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        keys = Keys(config)
        c, layer = _read_language(keys)
        tower = TowerConfig.read(keys.take("vision_config", dict))
        between = LlavaConfig.read(keys, tower, tiles=self.tiles)
        token = keys.take("image_token_index", int, keys.take("image_token_id", int, 32000))
        check_placeholder("image_token_index", token, c.vocab_size)
        for name in _PROCESSORS:
            keys.maybe(name, object)
        keys.finish(type(self).__name__)
        rope = Rope(w, c.rope, max_len)
        super().__init__(w, c, (layer(w / "model" / "layers" / i, c, i, rope) for i in range(c.layers)))
        self.encoder = LlavaEncoder(w.replicated(), between, c.hidden_size)
        self.ignores = (*self.ignores, r"^vision_tower\.(post_layernorm|head|embeddings\.position_ids)\b")
        self.ignores += unread_layers("vision_tower.encoder.layers", self.encoder.parts, tower.layers)


class LlavaNext(Llava):
    """An image is seen in full, and again in tiles at a resolution near its own."""

    tiles = True


def _read_language(keys: Keys) -> tuple[DecoderConfig, Callable[[Weights, DecoderConfig, int, Rope], DecoderLayer]]:
    """The language model's config and the class of its layers."""
    text = keys.take("text_config", dict)
    kind = text.get("model_type", "llama")
    if not isinstance(kind, str) or kind not in _LANGUAGES:
        raise CheckpointError(f"config.json: language models are {', '.join(_LANGUAGES)}, got {kind!r:.100}")
    tied = keys.take("tie_word_embeddings", bool, False) or text.get("tie_word_embeddings")
    own = Keys({**LEFT_OUT.get(kind, {}), **text, "tie_word_embeddings": tied})
    c = DecoderConfig.read(own, **_WINDOWS.get(kind, {}))
    own.finish(f"the text_config of {kind}")
    return c, _LANGUAGES[kind]
