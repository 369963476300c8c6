"""InternVL 1.5 to 3.5: InternViT over an image's tiles, blocks of patches that become one embedding, a language model.

Sources: Chen et al. 2024 (InternVL 1.5), and the configurations that its checkpoints are published with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from lsv_base.errors import CheckpointError
from lsv_models.llama import Llama
from lsv_models.qwen2 import Qwen2
from lsv_models.qwen3 import Qwen3
from lsv_models.qwen3_moe import Qwen3Moe
from lsv_models.rms.internlm import InternLM2
from lsv_models.rms.phi3 import Phi3
from lsv_models.senses.languages import make_language, under
from lsv_models.senses.towers.intern_vit import Tower, TowerConfig
from lsv_runtime.nn.decoder import Decoder
from lsv_runtime.nn.encoder import check_placeholder, merge_patches, read_layer, scale_pixels, unread_layers
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.mlp import FeedForward
from lsv_runtime.nn.model import Encoder, Model
from lsv_runtime.nn.norm import LayerNorm
from lsv_runtime.weights.naming import Prefixes
from lsv_runtime.weights.place import Weights

_LANGUAGES: Mapping[str, type[Decoder]] = {
    "internlm2": InternLM2, "llama": Llama, "phi3": Phi3, "qwen2": Qwen2, "qwen3": Qwen3, "qwen3_moe": Qwen3Moe,
}  # fmt: skip
_PROJECTOR_EPS = 1e-5
_ALIKE: Prefixes = (("language_model.model", "model"), ("language_model.lm_head", "lm_head"))
_LAYERS = "vision_tower.encoder.layer.*"
_OWN = "vision_model.encoder.layers.*"
# what the processor reads, what training used, and what nothing reads
_PUBLISHED = (
    "dynamic_image_size", "hidden_size", "max_dynamic_patch", "min_dynamic_patch", "system_message", "template",
    "use_thumbnail", "use_backbone_lora", "use_llm_lora",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """What stands between the tower and the language model."""

    depth: int
    """Layers of the tower that are needed."""
    merge: int
    """So many by so many patches become one embedding."""
    crossed: bool
    """Whether embeddings come column by column (the first version), not row by row."""
    activation: str

    @classmethod
    def read(cls, keys: Keys, tower: TowerConfig, layer: str, version: str) -> Between:
        """``layer`` is the key of the layer that is read, ``version`` the order of embeddings where none is given.

        Raises ``CheckpointError``.
        """
        depth = read_layer(layer, keys.take(layer, int, -1), tower.layers)
        ratio = keys.take("downsample_ratio", float, 0.5)
        merge = round(1 / ratio) if 0 < ratio <= 1 else 0
        if not merge or merge * ratio != 1 or tower.side % merge:
            raise CheckpointError(
                f"config.json: downsample_ratio must be 1, 1/2, 1/3 … and divide {tower.side} patches, got {ratio}"
            )
        version = keys.take("ps_version", str, version)
        if version not in ("v1", "v2"):
            raise CheckpointError(f"config.json: ps_version must be v1 or v2, got {version!r:.50}")
        activation = keys.take("projector_hidden_act", str, "gelu")
        return cls(depth=depth, merge=merge, crossed=version == "v1", activation=activation)


@dataclass(frozen=True, slots=True)
class TilesState:
    """An image being encoded: x [tiles * tokens, hidden]."""

    x: torch.Tensor
    tiles: int


class InternVLEncoder(Encoder):
    """Takes ``pixel_values`` uint8 [tiles, channels, size, size], and ``levels`` float32 [2, channels], the factor and
    the offset of colours.
    """

    def __init__(self, w: Weights, tower: TowerConfig, between: Between, size: int) -> None:
        super().__init__()
        self.c, self.between, self.parts = tower, between, between.depth
        self.tower = Tower(w / "vision_model", tower, between.depth)
        wide, place = tower.hidden_size * between.merge**2, w / "mlp1"
        self.before_projector = LayerNorm(place / "0", wide, _PROJECTOR_EPS)
        self.projector = FeedForward(place, ("1", "3"), (wide, size, size), between.activation)

    def begin(self, inputs: Mapping[str, torch.Tensor]) -> TilesState:
        pixels = scale_pixels(inputs)
        return TilesState(self.tower.embed(pixels), len(pixels))

    def largest(self, most: int) -> Mapping[str, torch.Tensor]:
        tiles = max(1, most // (self.c.side // self.between.merge) ** 2)
        shape = (tiles, self.c.channels, self.c.image_size, self.c.image_size)
        return {"pixel_values": torch.zeros(shape, dtype=torch.uint8), "levels": torch.ones(2, self.c.channels)}

    def advance(self, state: TilesState, part: int) -> TilesState | torch.Tensor:
        x = self.tower.layers[part](state.x, ((state.tiles, self.c.tokens),))
        if part + 1 < self.parts:
            return TilesState(x, state.tiles)
        blocks = self.gather(x.view(state.tiles, self.c.tokens, -1)[:, 1:])
        return self.projector(self.before_projector(blocks))  # type: ignore[no-any-return]

    def gather(self, patches: torch.Tensor) -> torch.Tensor:
        """patches [tiles, side², hidden] -> the features of each block side by side [blocks of all tiles, wide]."""
        blocks = merge_patches(patches, self.between.merge)
        return (blocks.transpose(1, 2) if self.between.crossed else blocks).flatten(0, 2)


@dataclass(frozen=True, slots=True)
class Form:
    """How checkpoints of the family are written."""

    prefixes: Prefixes
    language: str
    """The key of the language model in config.json."""
    layer: str
    """The key of the layer of the tower that is read."""
    version: str
    """In which order embeddings come where config.json does not say it."""
    read_tower: Callable[[Mapping[str, Any]], TowerConfig]
    read_more: Callable[[Keys, TowerConfig, int], None]
    """Takes the keys of config.json that only this form has; given the size of the vocabulary."""

    def __call__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> Model:
        keys = Keys(config)
        tower = self.read_tower(keys.take("vision_config", dict))
        between = Between.read(keys, tower, self.layer, self.version)
        model = make_language(w, keys, self.language, _LANGUAGES, max_len)
        self.read_more(keys, tower, model.vocab_size)
        keys.finish("InternVL")
        model.encoder = InternVLEncoder(w.replicated(), tower, between, model.norm.weight.shape[0])
        model.prefixes = self.prefixes
        model.ignores += unread_layers("vision_model.encoder.layers", between.depth, tower.layers)
        return model


def _read_published(keys: Keys, tower: TowerConfig, vocab_size: int) -> None:
    keys.agree("force_image_size", tower.image_size)
    keys.agree("pad2square", False)
    keys.agree("image_fold", None)
    keys.skip(*_PUBLISHED)


def _read_own(keys: Keys, tower: TowerConfig, vocab_size: int) -> None:
    check_placeholder("image_token_id", keys.take("image_token_id", int, 151667), vocab_size)
    keys.agree("vision_feature_select_strategy", "default")
    keys.skip("image_seq_length")


internvl_chat = Form(
    prefixes=(*under("language_model", InternLM2.prefixes), *_ALIKE),
    language="llm_config", layer="select_layer", version="v1", read_tower=TowerConfig.read_published,
    read_more=_read_published,
)  # fmt: skip
"""As OpenGVLab publishes them, with code of their own."""

_RENAMED: Prefixes = (
    (f"{_LAYERS}.attention.projection_layer", f"{_OWN}.attn.proj"),
    (f"{_LAYERS}.attention", f"{_OWN}.attn"),
    (f"{_LAYERS}.layernorm_before", f"{_OWN}.norm1"),
    (f"{_LAYERS}.layernorm_after", f"{_OWN}.norm2"),
    (f"{_LAYERS}.lambda_1", f"{_OWN}.ls1"),
    (f"{_LAYERS}.lambda_2", f"{_OWN}.ls2"),
    (_LAYERS, _OWN),
    ("vision_tower.embeddings.cls_token", "vision_model.embeddings.class_embedding"),
    ("vision_tower.embeddings.position_embeddings", "vision_model.embeddings.position_embedding"),
    ("vision_tower.embeddings.patch_embeddings.projection", "vision_model.embeddings.patch_embedding"),
    ("multi_modal_projector.layer_norm", "mlp1.0"),
    ("multi_modal_projector.linear_1", "mlp1.1"),
    ("multi_modal_projector.linear_2", "mlp1.3"),
)
internvl = Form(
    prefixes=(
        *_RENAMED, *((f"model.{theirs}", own) for theirs, own in _RENAMED), *_ALIKE,
        ("model.language_model", "model"), ("language_model", "model"),
    ),
    language="text_config", layer="vision_feature_layer", version="v2", read_tower=TowerConfig.read,
    read_more=_read_own,
)  # fmt: skip
"""As transformers writes them: since version 4.52 below "model", and before that, and since version 5, as published."""
