"""Tiny configurations of classes that wrap a text model: each half, tower and projector is made small for itself."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

import transformers
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel

from lsv_doctor.models.orders import Order
from lsv_doctor.models.shapes import FAMILIES, small
from lsv_doctor.models.tiny import shrink_text, tiny_config
from lsv_doctor.models.wrappers.towers import PARTS, WIDTH, small_tower

_TOWERS = {
    "audio_config", "audio_encoder", "audio_encoder_config", "codec_config", "protein_encoder_config", "text_config",
    "thinker_config", "vision_config", "vlm_config", "vq_config",
}  # fmt: skip
"""Parts of a configuration that stand for more than text, or for another model inside."""
_TEXT = ("text_config", "decoder")
"""Parts that are a text model."""
_FIRST_MARK = 259
_OWN_MARKS = re.compile(r"(bos|eos|pad|decoder_start|sep|unk|cls|mask|forced_.*)_token_id")
_MARK = re.compile(r".*(_token_id|_token_index|_patch_id)")
_ITEM = re.compile(r"(image|video|audio)(_token_id|_token_index)")
_CODES = re.compile(r"codebook|vocab")
_WIDE: Mapping[str, Any] = {
    "hidden_size": WIDTH, "d_model": WIDTH, "n_embd": WIDTH, "word_embed_proj_dim": WIDTH, "head_dim": 16,
}  # fmt: skip
"""Of a text model whose heads are 64 wide together: a transposed matrix has another shape."""


def wraps(family: str) -> bool:
    """Whether the checkpoints of a ``model_type`` hold more than a text model, or that as a part."""
    return bool(_TOWERS & set(CONFIG_MAPPING[family].sub_configs))


def config_of(order: Order) -> PreTrainedConfig:
    """The tiny configuration of the class to check, of the class of configurations that it takes."""
    whole = tiny_wrapper(order.family) if order.wraps else tiny_config(order.family)
    wanted: type[PreTrainedConfig] = getattr(transformers, order.architecture).config_class
    return next(one for one in (whole, *(part for _, part in _parts(whole))) if isinstance(one, wanted))


def tiny_wrapper(family: str) -> PreTrainedConfig:
    """The configuration of a ``model_type`` whose text model, towers and projectors are small."""
    usual = CONFIG_MAPPING[family]()
    return _shrink(usual, _width(usual), itertools.count(_FIRST_MARK))


def _shrink(usual: PreTrainedConfig, width: int, marks: Iterator[int]) -> PreTrainedConfig:
    """A small configuration like ``usual``; ``width`` is that of the text model by default.

    Marks of items get tokens that no prompt has.
    """
    parts, own = dict(_all_parts(usual)), PARTS.get(usual.model_type, {})
    keys: dict[str, Any] = {}
    for key, value in usual.to_dict().items():
        if key in parts:
            keys[key] = _shrink_part(key, parts[key], width, marks, own.get(key, {}))
        elif _marks(key, value):
            keys[key] = next(marks)
        elif (number := _small(key, value, width)) is not None:
            keys[key] = number
    for key in parts.keys() - keys.keys():
        keys[key] = _shrink_part(key, parts[key], width, marks, own.get(key, {}))
    return type(usual)(**{**keys, **{key: value for key, value in own.items() if key not in parts}})


def _marks(key: str, value: Any) -> bool:
    """Whether a key names the token that stands for an item, also one that families have no default for."""
    if type(value) is int:
        return bool(_MARK.fullmatch(key)) and not _OWN_MARKS.fullmatch(key)
    return value is None and bool(_ITEM.fullmatch(key))


def marks_of(config: PreTrainedConfig) -> Iterator[int]:
    """The tokens that stand for media in a configuration or its parts."""
    for key, value in config.to_dict().items():
        if type(value) is int and _marks(key, value):
            yield value
    for _, part in _parts(config):
        yield from marks_of(part)


def _small(key: str, value: Any, width: int) -> Any:
    if type(value) is not int:
        return None
    if key in _WIDE:
        return _WIDE[key]
    found = small(key, value)
    return WIDTH if found is None and value == width and not _CODES.search(key) else found


def _shrink_part(
    name: str, part: PreTrainedConfig, width: int, marks: Iterator[int], given: Mapping[str, Any]
) -> dict[str, Any]:
    own = {**PARTS.get(part.model_type, {}), **given}
    if dict(_parts(part)):
        made = _shrink(part, width, marks)
    elif name in _TEXT:
        made = shrink_text(type(part), {**FAMILIES.get(part.model_type, {}), **own}, _WIDE)
    else:
        made = type(part)(**{**small_tower(part.to_dict(), width), **own})
    return {**made.to_dict(), **given}


def _parts(config: PreTrainedConfig) -> Iterator[tuple[str, PreTrainedConfig]]:
    """The configurations inside one, by key."""
    for name in config.sub_configs:
        part = getattr(config, name, None)
        if isinstance(part, PreTrainedConfig):
            yield name, part


def _all_parts(config: PreTrainedConfig) -> Iterator[tuple[str, PreTrainedConfig]]:
    """The same, and by their own defaults those that are None by default: published checkpoints have them."""
    yield from _parts(config)
    for name, made in config.sub_configs.items():
        if getattr(config, name, None) is None and made is not AutoConfig:
            yield name, made()


def _width(config: PreTrainedConfig) -> int:
    """Of the text model."""
    text = config.get_text_config()
    return int(getattr(text, "hidden_size", 0) or getattr(text, "d_model", 0) or 0)


# Towers whose code is in a package that need not be installed


def offer_blind_towers() -> None:
    """Have a tower without eyes stand in for those of timm, if timm is not installed: text alone never asks them."""
    if find_spec("timm") is None:
        for config in (transformers.TimmWrapperConfig, transformers.Gemma3nVisionConfig):
            tower = type("BlindTower", (BlindTower,), {"config_class": config})
            AutoModel.register(config, tower, exist_ok=True)


class BlindTower(PreTrainedModel):  # type: ignore[no-untyped-call]
    """One small matrix in place of a tower."""

    config_class = PreTrainedConfig

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.patches = nn.Linear(3, 5, bias=False)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(self, pixels: Tensor, **given: Any) -> Tensor:
        raise NotImplementedError("this tower stands in for one of timm, which is not installed")
