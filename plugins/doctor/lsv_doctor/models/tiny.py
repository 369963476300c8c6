"""A tiny checkpoint with random weights of any class that generates text, in the family's own Hugging Face form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import CONFIG_MAPPING

from lsv_doctor.models.shapes import ENCODED, FAMILIES, small
from lsv_testing.tiny import draw_weights

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_SPREAD = 0.2
EMPTY: Mapping[str, Any] = MappingProxyType({})
_MOST_LAYERS = 8
_KINDS = ("layer_types", "mlp_layer_types", "layers_block_type", "attention_layers", "indexer_types")
_LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")


def tiny_config(family: str) -> PreTrainedConfig:
    """The configuration of a ``model_type`` with small numbers, and a layer of each kind that it has by default."""
    return shrink_text(CONFIG_MAPPING[family], FAMILIES.get(family, {}))


def shrink_text(make: Any, given: Mapping[str, Any], wide: Mapping[str, Any] = EMPTY) -> PreTrainedConfig:
    """A small configuration of the class ``make``. ``given`` and, where the class has such keys, ``wide`` are laid over
    the small numbers.
    """
    usual = _usual(make, given)
    keys = _small_keys(usual)
    keys |= {key: value for key, value in wide.items() if key in usual and key not in given}
    if "is_decoder" in usual and not usual.get("is_encoder_decoder"):
        keys["is_decoder"] = True
    if usual.get("is_encoder_decoder"):
        keys |= {"max_position_embeddings": ENCODED} if "max_position_embeddings" in keys else {}
        keys |= {"decoder_start_token_id": 0} if usual.get("decoder_start_token_id") is None else {}
    _fit_latent_heads(keys, usual)
    keys |= given
    layers = next((key for key in _LAYERS if key in keys), None)
    if layers is None or layers in given:
        whole: PreTrainedConfig = make(**keys)
        return whole
    wanted = _kinds(usual)
    best: PreTrainedConfig | None = None
    for count in range(keys[layers], _MOST_LAYERS + 1):
        made = make(**{**keys, layers: count})
        if best is None or len(_kinds(made.to_dict())) > len(_kinds(best.to_dict())):
            best = made
        if _kinds(best.to_dict()) >= wanted:
            break
    assert best is not None
    return best


def _small_keys(usual: Mapping[str, Any]) -> dict[str, Any]:
    """Small numbers for a configuration's keys, and for those of the configurations inside it."""
    keys: dict[str, Any] = {key: number for key, value in usual.items() if (number := small(key, value)) is not None}
    for key, value in usual.items():
        if isinstance(value, dict) and "model_type" in value:
            keys[key] = {**_small_keys(value), "model_type": value["model_type"]}
    return keys


def _usual(make: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the family's default configuration; those that are given must be, where there is no default."""
    try:
        usual: dict[str, Any] = make().to_dict()
    except Exception:  # strict configurations raise whatever their checks do
        usual = make(**given).to_dict()
    return usual


def _fit_latent_heads(keys: dict[str, Any], usual: Mapping[str, Any]) -> None:
    """With latent attention every head has keys of its own, and ``head_dim`` stands for one of the parts of a head,
    whichever it equals by default.
    """
    if "qk_rope_head_dim" in usual and "num_key_value_heads" in keys:
        keys["num_key_value_heads"] = keys["num_attention_heads"]
    for part in ("qk_rope_head_dim", "qk_head_dim"):
        if "head_dim" in keys and part in usual and usual[part] == usual["head_dim"]:
            keys["head_dim"] = keys.get(part, usual[part])


def _kinds(config: Mapping[str, Any]) -> set[tuple[str, str]]:
    """The kinds of layers that a configuration names."""
    return {(key, kind) for key in _KINDS for kind in _strings(config.get(key))}


def _strings(found: Any) -> Iterable[str]:
    return (kind for kind in found if isinstance(kind, str)) if isinstance(found, (list, tuple)) else ()


def make_model(architecture: Any, config: PreTrainedConfig, seed: int = 0) -> PreTrainedModel:
    """The model of a class of transformers in float32. Its random weights are large enough for wrong positions,
    windows and routes to show.
    """
    torch.manual_seed(seed)
    model: Any = architecture._from_config(config, dtype=torch.float32, attn_implementation="eager")
    draw_weights(model, _SPREAD)
    draw_buffers(model)
    made: PreTrainedModel = model.eval()
    return made


def draw_buffers(model: nn.Module) -> None:
    """Biases that are kept as buffers, such as a router's, are zero at first and would not show."""
    kept = set(model.state_dict())
    for name, buffer in model.named_buffers():
        if name in kept and name.endswith("bias") and buffer.dtype == torch.float32 and not buffer.any():
            buffer.normal_(0.0, _SPREAD)


def save(model: PreTrainedModel, path: Path) -> Path:
    """Write config.json and safetensors to the folder ``path``."""
    model.save_pretrained(path)
    return path
