"""The transformers model that a config.json describes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from lsv.nn.keys import MOST_LAYERS
from lsv.ops import dtype_name
from lsv_models.generic.interface import NAME
from lsv_models.generic.refusal import Refused
from lsv_models.generic.ropes import check_rope_keys

_LAYER_TYPES = {"full_attention", "sliding_attention", "attention", "global", "local"}
_MEDIA = ("vision", "visual", "image", "audio")
"""How the names of modules begin that take more than text."""


def parse(config: Mapping[str, Any]) -> PreTrainedConfig:
    """A config.json as transformers reads it. Raises ``Refused``."""
    kind = config.get("model_type")
    if kind not in CONFIG_MAPPING:
        raise Refused(
            f"transformers knows no model_type {kind!r}, and a model's own code is never run; where it is built like "
            'one that lsv models lists, name that with --hf-overrides \'{"architectures": ["LlamaForCausalLM"]}\''
        )
    if config.get("is_encoder_decoder"):
        raise Refused("it has an encoder")
    if any(config.get(key) for key in ("vision_config", "audio_config")):
        raise Refused("it takes more than text")
    parsed = CONFIG_MAPPING[kind].from_dict(decode(config))
    layers = getattr(parsed.get_text_config(), "num_hidden_layers", None)
    if not isinstance(layers, int) or not 1 <= layers <= MOST_LAYERS:
        raise Refused(f"num_hidden_layers is {layers!r:.100}, which is no number of layers")
    strange = set(getattr(parsed, "layer_types", None) or ()) - _LAYER_TYPES
    if strange:
        raise Refused(f"it has layers of type {', '.join(sorted(strange))}")
    return parsed


def decode(value: Any) -> Any:
    """transformers writes numbers that JSON lacks as ``{"__float__": "Infinity"}``."""
    if isinstance(value, Mapping):
        if set(value) == {"__float__"}:
            return float(value["__float__"])
        return {key: decode(inner) for key, inner in value.items()}
    return [decode(inner) for inner in value] if isinstance(value, list) else value


def build(config: Mapping[str, Any], dtype: torch.dtype, architecture: str) -> tuple[PreTrainedModel, bool]:
    """The model of a config.json on the default device, and whether it attends through transformers' interface.

    Raises ``Refused``.
    """
    parsed = parse({**config, "dtype": dtype_name(dtype)})
    try:
        model, called = _make(parsed, dtype, NAME), True
    except KeyError as cause:
        if cause.args != (NAME,):
            raise
        model, called = _make(parsed, dtype, "eager"), False
        model.config._attn_implementation_internal = NAME  # masks are made for what will attend, that is not at all
    if type(model).__name__ != architecture:
        raise Refused(f"for text generation transformers has {type(model).__name__} instead")
    if any(name.rpartition(".")[2].startswith(_MEDIA) for name, _ in model.named_modules()):
        raise Refused("it takes more than text")
    if getattr(model, "_is_stateful", False):
        raise Refused("it keeps a state that is not a KV cache")
    check_rope_keys(model.config)
    return model, called


def _make(parsed: PreTrainedConfig, dtype: torch.dtype, attention: str) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        parsed, dtype=dtype, attn_implementation=attention, experts_implementation="eager"
    )
    return model
