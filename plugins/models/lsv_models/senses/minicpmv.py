"""MiniCPM-V 2.5, 2.6, 4 and 4.5: SigLIP over an image and its slices, each of which a resampler makes queries of, and a
language model.

Source: Yao et al. 2024 (MiniCPM-V), and the configurations that its checkpoints are published with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from lsv_base.errors import CheckpointError
from lsv_models.clip import TowerConfig
from lsv_models.llama import Llama
from lsv_models.qwen2 import Qwen2
from lsv_models.qwen3 import Qwen3
from lsv_models.senses.languages import under
from lsv_models.senses.towers.navit import StretchedTower
from lsv_models.senses.towers.resampler import Resampler
from lsv_runtime.nn.decoder import Decoder
from lsv_runtime.nn.encoder import scale_pixels
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.model import Encoder, Model
from lsv_runtime.nn.norm import LayerNorm
from lsv_runtime.weights.naming import Prefixes
from lsv_runtime.weights.place import Weights

_HEAD_DIM = 128
"""Of the resampler's attention."""
_TOWER: Mapping[str, Any] = {
    "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
    "image_size": 980, "patch_size": 14,
}  # fmt: skip
"""What a file without ``vision_config`` means."""
_KINDS = ("siglip", "siglip_vision_model", "idefics2", "idefics2_vision", None)
"""What the towers are called, which are all the same."""
_OWN = (
    "drop_vision_last_layer", "image_size", "patch_size", "query_num", "slice_config", "slice_mode", "version",
    "vision_config",
)  # fmt: skip
# what the processor reads, how the published code divides its work, and what nothing reads
_BESIDE = ("batch_3d_resampler", "batch_vision_input", "mm_use_im_start_end", "use_image_id", "vision_batch_size")


@dataclass(frozen=True, slots=True)
class Version:
    """What one version has unlike the others."""

    language: type[Decoder]
    strip: bool = False
    """Whether the tower takes an image's patches for one long row."""


_VERSIONS: Mapping[str, Version] = {
    "2.5": Version(Llama, strip=True),
    "2.6": Version(Qwen2),
    "4.0": Version(Llama),
    "4.5": Version(Qwen3),
}


@dataclass(frozen=True, slots=True)
class SliceState:
    """An image, or a slice of it, being encoded: x [h * w, hidden] of a grid (h, w)."""

    x: torch.Tensor
    grid: tuple[int, int]


class MiniCPMVEncoder(Encoder):
    """Takes ``pixel_values`` uint8 [h * w, channels, patch_size, patch_size], row by row, ``levels`` float32
    [2, channels], the factor and the offset of colours, and ``grid`` int64 [2], which is (h, w). The resampler is the
    last part. An image or a slice has about the pixels of a square of ``image_size``.
    """

    def __init__(
        self, w: Weights, c: TowerConfig, depth: int, queries: int, size: int, image_size: int, *, strip: bool
    ) -> None:
        super().__init__()
        self.c, self.depth, self.parts, self.strip = c, depth, depth + 1, strip
        self.side = max(1, image_size // c.patch_size)
        self.tower = StretchedTower(w / "vpm", c, depth)
        self.after = LayerNorm(w / "vpm" / "post_layernorm", c.hidden_size, c.norm_eps)
        self.resampler = Resampler(w / "resampler", queries, c.hidden_size, size, size // _HEAD_DIM)

    def begin(self, inputs: Mapping[str, torch.Tensor]) -> SliceState:
        height, width = inputs["grid"].tolist()
        places = (1, height * width) if self.strip else (height, width)
        return SliceState(self.tower.embed_patches(scale_pixels(inputs), places), (height, width))

    def largest(self, most: int) -> Mapping[str, torch.Tensor]:
        edge, grid = self.c.patch_size, (self.side, self.side + self.side // 4)  # sides are rounded to patches
        pixels = torch.zeros(math.prod(grid), self.c.channels, edge, edge, dtype=torch.uint8)
        return {"pixel_values": pixels, "levels": torch.ones(2, self.c.channels), "grid": torch.tensor(grid)}

    def advance(self, state: SliceState, part: int) -> SliceState | torch.Tensor:
        if part < self.depth:
            return SliceState(self.tower.layers[part](state.x, ((1, len(state.x)),)), state.grid)
        return self.resampler(self.after(state.x), state.grid)  # type: ignore[no-any-return]


class MiniCPMVFamily:
    """As OpenBMB publishes it: config.json has the language model's keys beside its own."""

    prefixes: ClassVar[Prefixes] = under("llm", (("model", "model"), ("lm_head", "lm_head")))

    def __call__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> Model:
        version = _choose_version(config)
        keys = Keys({key: value for key, value in config.items() if key in _OWN})
        keys.skip("version", "slice_config")
        image_size = keys.count("image_size", 448)
        keys.agree("slice_mode", True)
        tower = _read_tower(keys)
        keys.agree("patch_size", tower.patch_size)
        depth = tower.layers - keys.take("drop_vision_last_layer", bool, True)
        queries = keys.count("query_num", 64)
        keys.finish("MiniCPM-V")
        # a name of its architecture would say that it is no model of text
        text = {key: value for key, value in config.items() if key not in (*_OWN, *_BESIDE)}
        model = version.language(w, {**text, "architectures": []}, max_len)
        size = model.norm.weight.shape[0]
        if not depth or size % _HEAD_DIM:
            raise CheckpointError(
                f"config.json: the tower must have a layer that is read, and hidden_size must be a multiple of "
                f"{_HEAD_DIM}: they are {depth} and {size}"
            )
        model.encoder = MiniCPMVEncoder(
            w.replicated(), tower, depth, queries, size, image_size, strip=version.strip
        )  # fmt: skip
        model.prefixes = self.prefixes
        model.ignores += (rf"^vpm\.encoder\.layers\.{depth}\.",) if depth < tower.layers else ()
        return model


def _choose_version(config: Mapping[str, Any]) -> Version:
    """By ``version``, which the first files lack. Raises ``CheckpointError`` for one that is not served."""
    given: object = config.get("version")
    if given is None:
        given = "2.0" if config.get("hidden_size") == 2304 else "2.5"
    name = f"{given}.0" if isinstance(given, int) else str(given)
    if name not in _VERSIONS:
        raise CheckpointError(
            f"config.json: MiniCPM-V is served in the versions {', '.join(_VERSIONS)}, got {name:.50}"
            + (", whose tower and resampler are others" if name == "2.0" else "")
        )
    return _VERSIONS[name]


def _read_tower(keys: Keys) -> TowerConfig:
    vision = keys.take("vision_config", dict, dict(_TOWER))
    kind = vision.get("model_type")
    if kind not in _KINDS:
        raise CheckpointError(f"config.json: the tower of MiniCPM-V is SigLIP's, got model_type={kind!r:.50}")
    return TowerConfig.read({**vision, "model_type": "siglip_vision_model"})


minicpmv = MiniCPMVFamily()
