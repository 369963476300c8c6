"""What is laid over a checkpoint's config.json: options of the user's, and what stands in a file of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lsv.config import Choices, Part
from lsv.offers import ModelPart, QuantizerOffer
from lsv.plugins.catalog import Catalog
from lsv.resolve.code import made_by_code
from lsv.resolve.locate import language_of, merge, read_config
from lsv.resolve.parts import find_parts, list_parts, parts_of
from lsv.settings import Settings
from lsv_base.errors import ConfigError

_KEYS = ("rope_parameters", "rope_scaling", "rope_theta")
_WHOLE_CONTEXT = "full_attention"
"""The kind of layers without a window, by which ``rope_parameters`` may hold a rule for each kind."""
OF_THE_WHOLE = frozenset((
    "architectures", "bos_token_id", "dtype", "eos_token_id", "model_type", "pad_token_id", "quantization_config",
    "tie_word_embeddings", "torch_dtype", "transformers_version",
))  # fmt: skip
"""Keys that count for the language model, too, where they stand outside of its object."""


def read_overrides(
    folder: Path, settings: Settings, catalog: Catalog, choices: Choices
) -> tuple[dict[str, Any], tuple[Part, ...]]:
    """All changes together, and the model's parts (``EngineConfig.parts``).

    ``--rope-scaling`` and ``--rope-theta`` win over ``--hf-overrides``, and that over what parts, or the checkpoint's
    own code, make of config.json. The code of one that has parts is not run: it would look for them.
    """
    given = place_overrides(read_config(folder, {}), _read_mapping(settings, "hf_overrides"))
    parts = parts_of(read_config(folder, given), settings, catalog)
    made = {} if parts else made_by_code(folder, settings, catalog, choices)
    overrides = merge(merge(older_quantization(folder, catalog), made), given)
    found = find_parts(parts, read_config(folder, overrides), settings, catalog, choices)
    overrides = merge(describe_parts(found, read_config(folder, {}), catalog), overrides)
    theta = _given_theta(given) if settings["rope_theta"] is None else settings["rope_theta"]
    rope = rope_overrides(read_config(folder, overrides), _read_mapping(settings, "rope_scaling"), theta)
    return merge(overrides, rope), list_parts(parts, found)


def place_overrides(checkpoint: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a user lays over config.json. A key that only the language model's object has may stand outside of it, and
    so may a rope rule that only the language model can have.
    """
    key, text = language_of(checkpoint)
    within = given.get(key, {})
    if not text or not isinstance(within, Mapping):
        return given
    known = {*text, *(_KEYS if _turns_language(checkpoint, text) else ())}
    moved = {name: given[name] for name in given if name in known - checkpoint.keys() - OF_THE_WHOLE}
    others = {name: value for name, value in given.items() if name not in moved}
    return {**others, key: merge(moved, within)} if moved else given


def strange_overrides(checkpoint: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What a user lays over config.json under keys that neither it nor its language model's object has."""
    placed, (key, _) = place_overrides(checkpoint, given), language_of(checkpoint)
    return {name: placed[name] for name in placed if name not in {key, *checkpoint, *OF_THE_WHOLE}}


def _turns_language(checkpoint: Mapping[str, Any], text: Mapping[str, Any]) -> bool:
    """Whether a rope rule belongs in the language model's object, ``text``, and not beside it."""
    own, outside = (any(each.get(name) is not None for name in _KEYS) for each in (text, checkpoint))
    return bool(text) and (own or not outside)


def _given_theta(given: Mapping[str, Any]) -> float | None:
    """The ``rope_theta`` that a user lays over config.json by itself, which a checkpoint may hold in its rope rule."""
    _, text = language_of(given)
    found = (text or given).get("rope_theta")
    return found if isinstance(found, int | float) and "rope_parameters" not in (text or given) else None


def _read_mapping(settings: Settings, name: str) -> Mapping[str, Any]:
    """A setting with a JSON object; empty unless given. Raises ``ConfigError`` for other JSON."""
    given = settings[name] or {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"{settings.source(name)}: {name} must be a JSON object, got {given!r:.100}", param=name)
    return given


def describe_parts(found: Mapping[ModelPart, Path], checkpoint: Mapping[str, Any], catalog: Catalog) -> dict[str, Any]:
    """What, laid over config.json, says of each part what its own config.json says, and nothing else.

    Raises ``ConfigError`` for a part that is quantised.
    """
    laid: dict[str, Any] = {}
    for part, folder in found.items():
        own, old = read_config(folder, {}), checkpoint.get(part.config)
        if own.get("quantization_config") is not None or older_quantization(folder, catalog):
            raise ConfigError(
                f"{part.key}: {folder} is quantised, which a part of a model can't be: give the plain checkpoint, "
                "quantised at start by --quantization",
                param="hf_overrides",
            )
        laid[part.config] = instead(old, own) if isinstance(old, Mapping) else own
    return laid


def instead(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """What, laid over ``old``, leaves ``new``: other keys become null."""
    made: dict[str, Any] = dict.fromkeys(old.keys() - new.keys())
    for key, value in new.items():
        before = old.get(key)
        made[key] = instead(before, value) if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return made


def older_quantization(folder: Path, catalog: Catalog) -> dict[str, Any]:
    """The weight format of a checkpoint that says it in a file of its own, as config.json would say it."""
    if read_config(folder, {}).get("quantization_config") is not None:
        return {}
    for offer in catalog.offers(QuantizerOffer):
        if offer.file and (folder / offer.file).is_file():
            return {"quantization_config": {"quant_method": offer.name, **read_config(folder, {}, offer.file)}}
    return {}


def rope_overrides(config: Mapping[str, Any], scaling: Mapping[str, Any] | None, theta: float | None) -> dict[str, Any]:
    """What is to be laid over ``config``, which says these in one of two layouts. A rule takes the place of the
    checkpoint's, whose parameters become null; of rules by kind of layer that of layers without a window.
    """
    if not scaling and theta is None:
        return {}
    key, text = language_of(config)
    if _turns_language(config, text):
        return {key: rope_overrides(text, scaling, theta)}
    new = isinstance(config.get("rope_parameters"), Mapping)
    old = config.get("rope_parameters" if new else "rope_scaling")
    windowless = old.get(_WHOLE_CONTEXT) if new and isinstance(old, Mapping) else None
    old = old if windowless is None else windowless
    rule: dict[str, Any] = {}
    if scaling:
        known = old if isinstance(old, Mapping) else ()
        rule = {name: None for name in known if name != "rope_theta"} | dict(scaling)
    own_theta = {} if theta is None else {"rope_theta": theta}
    if new:
        rule |= own_theta
        return {"rope_parameters": rule if windowless is None else {_WHOLE_CONTEXT: rule}}
    return ({"rope_scaling": rule} if rule else {}) | own_theta
