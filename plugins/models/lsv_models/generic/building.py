"""The transformers model that a config.json describes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from lsv_models.generic.interface import NAME
from lsv_models.generic.refusal import Refused
from lsv_models.generic.ropes import check_rope_keys
from lsv_models.generic.wrappers import MEDIA, find_wrapper, is_wrapper, without_missing
from lsv_runtime.nn.keys import MOST_LAYERS

_LAYER_TYPES = {"full_attention", "sliding_attention", "attention", "global", "local"}
_REACHES = {"chunked_attention": "attention_chunk_size"}
"""Kinds of layers that attend to everything in inputs of up to so many tokens, by a key of config.json."""
_INDEXED = "indexed_attention"
"""The kind of layers whose queries choose ``index_topk`` tokens."""
_UNLIKE = {
    "blt": "it reads bytes in patches, whose borders a model of its own chooses",
    "cpmant": "it puts prompts of its own before every input, which tokens see on both sides",
    "diffusion_gemma": "it fills a block of tokens at once, in any order (block diffusion)",
    "kyutai_speech_to_text": "it writes a token for every frame of a sound, whose codes it reads beside the text",
    "pi0": "it predicts the movements of a robot, not tokens",
    "prophetnet": "it predicts several tokens at each place, by streams of queries that see one another",
    "reformer": "its tokens choose by hashing which others they see, among all tokens of the input (LSH attention)",
    "xlm": "it predicts a token where a mask token stands behind the text, not from the token before",
    "xlnet": "it predicts a token by a stream of queries beside that of the text (two-stream attention)",
}
"""Families that do not go from token to token as others do, by model_type."""


def parse(config: Mapping[str, Any], max_len: int) -> PreTrainedConfig:
    """A config.json as transformers reads it, for inputs of up to ``max_len`` tokens. Raises ``Refused``."""
    kind = config.get("model_type")
    if kind not in CONFIG_MAPPING:
        raise Refused(
            f"transformers knows no model_type {kind!r}, and a model's own code is never run; where it is built like "
            'one that lsv models lists, name that with --hf-overrides \'{"architectures": ["LlamaForCausalLM"]}\''
        )
    if config.get("is_encoder_decoder"):
        raise Refused("it has an encoder")
    if kind in _UNLIKE:
        raise Refused(_UNLIKE[kind])
    wrapped = find_wrapper(kind, str((config.get("architectures") or ["?"])[0])) is not None
    if not wrapped and any(config.get(key) for key in ("vision_config", "audio_config")):
        raise Refused("it takes more than text")
    parsed = CONFIG_MAPPING[kind].from_dict(decode(config))
    if hasattr(parsed, "thinker_config"):
        raise Refused("its language model is a part of a thinker (thinker_config), beside which a talker speaks")
    if wrapped and (parsed.is_encoder_decoder or parsed.get_text_config().is_encoder_decoder):
        raise Refused("it has an encoder")
    layers = getattr(parsed.get_text_config(), "num_hidden_layers", None)
    if not isinstance(layers, int) or not 1 <= layers <= MOST_LAYERS:
        raise Refused(f"num_hidden_layers is {layers!r:.100}, expected a number of layers")
    _check_layers(parsed.get_text_config(), max_len)
    return parsed


def _check_layers(config: Any, max_len: int) -> None:
    kinds = set(getattr(config, "layer_types", None) or ())
    strange = kinds - _LAYER_TYPES - _REACHES.keys() - {_INDEXED}
    if strange:
        raise Refused(f"it has layers of type {', '.join(sorted(strange))}")
    for kind in kinds & _REACHES.keys():
        reach = getattr(config, _REACHES[kind], None)
        if not isinstance(reach, int) or max_len > reach:
            raise Refused(
                f"it has layers of type {kind}, which run up to {reach} tokens only: choose a --max-model-len "
                f"of {reach} or less"
            )


def reaches_all(config: PreTrainedConfig, max_len: int) -> bool:
    """Whether the masks that layers bring show them everything before, for inputs of up to ``max_len`` tokens."""
    kinds = getattr(config.get_text_config(), "layer_types", None) or ()
    return not selects(config, max_len) and any(kind in kinds for kind in (*_REACHES, _INDEXED))


def selects(config: PreTrainedConfig, max_len: int) -> bool:
    """Whether queries in inputs of up to ``max_len`` tokens choose the tokens that they see."""
    text: Any = config.get_text_config()
    return _INDEXED in (getattr(text, "layer_types", None) or ()) and max_len > int(text.index_topk)


def decode(value: Any) -> Any:
    """transformers writes numbers that JSON lacks as ``{"__float__": "Infinity"}``."""
    if isinstance(value, Mapping):
        if set(value) == {"__float__"}:
            return float(value["__float__"])
        return {key: decode(inner) for key, inner in value.items()}
    return [decode(inner) for inner in value] if isinstance(value, list) else value


def name_architecture(parsed: PreTrainedConfig) -> str:
    """The class that a config.json names."""
    return str((parsed.architectures or ["?"])[0])


def build(parsed: PreTrainedConfig, dtype: torch.dtype) -> tuple[PreTrainedModel, bool]:
    """The model of a config.json on the default device, and whether it attends through transformers' interface.

    Raises ``Refused``.
    """
    architecture = name_architecture(parsed)
    try:
        model, called = make_model(parsed, dtype, NAME), True
    except KeyError as cause:
        if cause.args != (NAME,):
            raise
        model, called = make_model(parsed, dtype, "eager"), False
        for each in (model.config, model.config.get_text_config()):
            each._attn_implementation_internal = NAME  # masks are made for what will attend, that is not at all
    if architecture not in (type(model).__name__, type(model.base_model).__name__):  # that of a model without a head
        raise Refused(f"for text generation transformers has {type(model).__name__} instead")
    media = (name for name, _ in model.named_modules() if name.rpartition(".")[2].startswith(MEDIA))
    if not is_wrapper(model) and any(media):
        raise Refused("it takes more than text")
    if getattr(model, "_is_stateful", False):
        raise Refused("it keeps a state that is not a KV cache")
    check_rope_keys(model.config.get_text_config())
    return model, called


def make_model(parsed: PreTrainedConfig, dtype: torch.dtype, attention: str | None) -> PreTrainedModel:
    """transformers' model that generates text, on the default device and with weights that no checkpoint gave; by
    ``attention`` None it attends as transformers chooses.
    """
    given: dict[str, Any] = {"dtype": dtype, "attn_implementation": attention, "experts_implementation": "eager"}
    wrapper: Any = find_wrapper(parsed.model_type, name_architecture(parsed))
    if wrapper is None:
        half = _find_half_class(parsed)
        make = AutoModelForCausalLM.from_config if half is None else half._from_config
        return make(parsed, **given)  # type: ignore[no-any-return]
    with without_missing(parsed):
        return wrapper._from_config(parsed, **given)  # type: ignore[no-any-return]


def _find_half_class(parsed: PreTrainedConfig) -> Any:
    """The class of a text half whose configuration transformers maps to no class, such as that of Emu3ForCausalLM."""
    name = name_architecture(parsed)
    found: Any = getattr(transformers, name, None) if name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() else None
    mapped = parsed.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return found if found is not None and not mapped and found.config_class is type(parsed) else None
