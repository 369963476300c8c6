"""Phi-3-vision and Phi-3.5-vision: CLIP over an image in crops and once more as a whole, in front of Phi-3.

Sources: Abdin et al. 2024 (Phi-3), Dong et al. 2024 (InternLM-XComposer2-4KHD: crops of high resolution), and the
configurations that its checkpoints are published with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from lsv_base.errors import CheckpointError
from lsv_models.clip import Tower, TowerConfig
from lsv_models.rms.phi3 import Phi3
from lsv_runtime.nn.encoder import merge_patches, read_layer, scale_pixels, unread_layers
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.mlp import FeedForward
from lsv_runtime.nn.model import Encoder
from lsv_runtime.weights.place import Weights

_MERGE = 2
"""So many by so many patches become one embedding."""
# the tower, which config.json calls by its name
_CLIP = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "image_size": 336, "patch_size": 14,
}  # fmt: skip
_EMBEDDING = {
    "embedding_cls": "image", "projection_cls": "mlp", "hd_transform_order": "sub_glb", "use_hd_transform": True,
    "with_learnable_separator": True,
}  # fmt: skip
_SEEING = ("img_processor", "embd_layer", "vision_config")
_PLACE = "model.vision_embed_tokens.img_processor.vision_model"


def _read_tower(config: Mapping[str, Any]) -> tuple[TowerConfig, int]:
    """The tower, and how many of its layers are read. Raises ``CheckpointError`` where images are seen otherwise."""
    keys = Keys({key: config[key] for key in _SEEING if key in config})
    vision = keys.take("vision_config", dict, {})
    Keys(vision).agree("model_type", "clip_vision_model")
    tower = TowerConfig.read({**_CLIP, **vision})
    if tower.side % _MERGE:
        raise CheckpointError(f"config.json: a row of the tower has {tower.side} patches, which make no pairs")
    embedding = keys.take("embd_layer", dict)
    for key, own in _EMBEDDING.items():
        if embedding.get(key) != own:
            raise CheckpointError(f"config.json: embd_layer.{key} must be {own!r}, got {embedding.get(key)!r:.100}")
    seen = Keys(keys.take("img_processor", dict))
    seen.agree("name", "clip_vision_model")
    seen.agree("model_name", "openai/clip-vit-large-patch14-336")
    seen.agree("image_dim_out", tower.hidden_size)
    seen.agree("num_img_tokens", (tower.side // _MERGE) ** 2)
    seen.agree("type_feature", "patch")
    depth = read_layer("img_processor.layer_idx", seen.take("layer_idx", int, -2), tower.layers)
    seen.finish("the img_processor of Phi-3-vision")
    return tower, depth


@dataclass(frozen=True, slots=True)
class CropsState:
    """An image being encoded: x [(1 + rows * columns) * tokens, hidden], all of it and then its crops row by row."""

    x: torch.Tensor
    rows: int
    columns: int


class Phi3VEncoder(Encoder):
    """Takes ``pixel_values`` uint8 [crops, channels, size, size], ``levels`` float32 [2, channels], the factor and the
    offset of colours, and ``layout`` int64 [2], rows and columns of the crops.
    """

    def __init__(self, w: Weights, c: TowerConfig, depth: int, size: int) -> None:
        super().__init__()
        self.c, self.parts = c, depth
        self.tower = Tower(w / "img_processor" / "vision_model", c, depth)
        wide = c.hidden_size * _MERGE**2
        self.line = w.take("sub_GN", (1, 1, 1, wide))
        self.between = w.take("glb_GN", (1, 1, wide))
        self.projector = FeedForward(w / "img_projection", ("0", "2"), (wide, size, size), "gelu")

    def begin(self, inputs: Mapping[str, torch.Tensor]) -> CropsState:
        rows, columns = inputs["layout"].tolist()
        crops = scale_pixels(inputs)
        pixels = torch.cat((shrink(crops, rows, columns), crops))
        return CropsState(self.tower.embed(pixels), rows, columns)

    def largest(self, most: int) -> Mapping[str, torch.Tensor]:
        side = self.c.side // _MERGE
        crops = max(1, (most - 1 - side * (side + 1) - side) // side**2)
        return {
            "pixel_values": torch.zeros(crops, self.c.channels, *[self.c.image_size] * 2, dtype=torch.uint8),
            "levels": torch.ones(2, self.c.channels),
            "layout": torch.tensor((1, crops)),
        }

    def advance(self, state: CropsState, part: int) -> CropsState | torch.Tensor:
        squares, tokens = 1 + state.rows * state.columns, self.c.tokens
        x = self.tower.layers[part](state.x, ((squares, tokens),))
        if part + 1 < self.parts:
            return CropsState(x, state.rows, state.columns)
        patches = x.view(squares, tokens, -1)[:, 1:]
        lines = (self.lay_out(patches[1:], state.rows, state.columns), self.between[0], self.lay_out(patches[:1], 1, 1))
        return self.projector(torch.cat(lines))  # type: ignore[no-any-return]

    def lay_out(self, patches: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        """patches [rows * columns, side², hidden] -> blocks by lines, with ``line`` behind each one: [count, wide]."""
        blocks = merge_patches(patches, _MERGE).unflatten(0, (rows, columns)).transpose(1, 2)
        lines = blocks.flatten(2, 3).flatten(0, 1)
        return torch.cat((lines, self.line[0].expand(len(lines), -1, -1)), dim=1).flatten(0, 1)


def shrink(crops: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """crops [rows * columns, channels, size, size] -> the image they were cut from as one [1, channels, size, size]."""
    whole = crops.unflatten(0, (rows, columns)).permute(2, 0, 3, 1, 4).flatten(3).flatten(1, 2)
    return functional.interpolate(whole[None], size=crops.shape[2:], mode="bicubic")


class Phi3V(Phi3):
    """Phi-3 over the embeddings of text, and of images where the prompt has them."""

    prefixes = (*Phi3.prefixes, ("model.vision_embed_tokens.wte", "model.embed_tokens"))

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        tower, depth = _read_tower(config)
        super().__init__(w, {key: value for key, value in config.items() if key not in _SEEING}, max_len)
        place = w.replicated() / "model" / "vision_embed_tokens"
        self.encoder = Phi3VEncoder(place, tower, depth, self.norm.weight.shape[0])
        self.ignores = (
            *self.ignores,
            rf"^{_PLACE}\.(post_layernorm|embeddings\.position_ids)\b",
            *unread_layers(f"{_PLACE}.encoder.layers", depth, tower.layers),
        )
