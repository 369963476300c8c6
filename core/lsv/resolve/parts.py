"""Parts of a model that are checkpoints of their own, and where they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lsv.config import Choices, Part
from lsv.offers import ModelOffer, ModelPart
from lsv.plugins.catalog import Catalog
from lsv.resolve.files import hub_of
from lsv.resolve.locate import locate_model
from lsv.settings import Settings
from lsv_base.errors import CheckpointError, ConfigError


def parts_of(checkpoint: Mapping[str, Any], settings: Settings, catalog: Catalog) -> Sequence[ModelPart]:
    """Those that the native model of a checkpoint may have elsewhere; none where another library's code runs it."""
    named = checkpoint.get("architectures")
    architecture = named[0] if isinstance(named, list) and named else None
    if settings["model_impl"] == "transformers":
        return ()
    return next((one.parts for one in catalog.offers(ModelOffer) if architecture in one.architectures), ())


def find_parts(
    parts: Sequence[ModelPart], checkpoint: Mapping[str, Any], settings: Settings, catalog: Catalog, choices: Choices
) -> dict[ModelPart, Path]:
    """The folders of those that config.json, or what is laid over it, names; they may have to be fetched.

    Raises ``ConfigError`` for one that is not there, or that is neither named nor described in config.json itself.
    """
    found: dict[ModelPart, Path] = {}
    for part in parts:
        named = checkpoint.get(part.key)
        if named is None and not checkpoint.get(part.config):
            raise ConfigError(
                f"config.json has neither {part.config} nor, under {part.key}, what holds it: {how_to_give(part)}",
                param="hf_overrides",
            )
        if named is not None:
            found[part] = _locate(part, named, settings, catalog)
            why = f"has what the checkpoint lacks of {part.place}, and its config.json"
            choices.note(part.key, found[part], why if str(found[part]) == named else f"{named}: {why}")
    return found


def list_parts(parts: Sequence[ModelPart], found: Mapping[ModelPart, Path]) -> tuple[Part, ...]:
    """What an engine is told of them."""
    folders = {part: str(folder) for part, folder in found.items()}
    return tuple(Part(key=part.key, place=part.place, folder=folders.get(part)) for part in parts)


def how_to_give(part: ModelPart | Part) -> str:
    """What names a part, for the end of a message."""
    return f'name its checkpoint with --hf-overrides \'{{"{part.key}": "/path/of/it"}}\''


def _locate(part: ModelPart, named: object, settings: Settings, catalog: Catalog) -> Path:
    if not isinstance(named, str):
        raise ConfigError(f"{part.key} must be a folder or a name, got {named!r:.100}", param="hf_overrides")
    hub = dataclasses.replace(hub_of(settings, None), code=False)
    try:
        return locate_model(named, catalog, hub)
    except CheckpointError as cause:
        raise ConfigError(
            f"{part.key} is {named}, which holds {part.place} of this model, and that can't be had: {cause}; or "
            f"{how_to_give(part)}",
            param="hf_overrides",
        ) from cause
