"""What is laid over a checkpoint's config.json: options of the user's, and what stands in a file of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lsv.config import Choices, Part
from lsv.errors import ConfigError
from lsv.offers import ModelPart, QuantizerOffer
from lsv.plugins.catalog import Catalog
from lsv.resolve.code import made_by_code
from lsv.resolve.locate import language_of, merge, read_config
from lsv.resolve.parts import find_parts, list_parts, parts_of
from lsv.settings import Settings

_KEYS = ("rope_parameters", "rope_scaling", "rope_theta")


def read_overrides(
    folder: Path, settings: Settings, catalog: Catalog, choices: Choices
) -> tuple[dict[str, Any], tuple[Part, ...]]:
    """All changes together, and the model's parts (``EngineConfig.parts``).

    ``--rope-scaling`` and ``--rope-theta`` win over ``--hf-overrides``, and that over what parts, or the checkpoint's
    own code, make of config.json. The code of one that has parts is not run: it would look for them.
    """
    given = _read_mapping(settings, "hf_overrides")
    parts = parts_of(read_config(folder, given), settings, catalog)
    made = {} if parts else made_by_code(folder, settings, choices)
    overrides = merge(merge(older_quantization(folder, catalog), made), given)
    found = find_parts(parts, read_config(folder, overrides), settings, catalog, choices)
    overrides = merge(describe_parts(found, read_config(folder, {}), catalog), overrides)
    rope = rope_overrides(
        read_config(folder, overrides), _read_mapping(settings, "rope_scaling"), settings["rope_theta"]
    )
    return merge(overrides, rope), list_parts(parts, found)


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
    checkpoint's, whose parameters become null.
    """
    if not scaling and theta is None:
        return {}
    key, text = language_of(config)
    if any(text.get(name) is not None for name in _KEYS):
        return {key: rope_overrides(text, scaling, theta)}
    new = isinstance(config.get("rope_parameters"), Mapping)
    old = config.get("rope_parameters" if new else "rope_scaling")
    rule: dict[str, Any] = {}
    if scaling:
        known = old if isinstance(old, Mapping) else ()
        rule = {name: None for name in known if name != "rope_theta"} | dict(scaling)
    own_theta = {} if theta is None else {"rope_theta": theta}
    if new:
        return {"rope_parameters": rule | own_theta}
    return ({"rope_scaling": rule} if rule else {}) | own_theta
