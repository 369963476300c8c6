"""The model that serves a checkpoint, and what config.json says once its names are understood."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec

from lsv.config import Choices
from lsv.offers import DrafterOffer, ModelOffer
from lsv.plugins.catalog import Catalog
from lsv.request.media import Modality
from lsv.resolve.architecture.families import Families, read_families
from lsv.resolve.architecture.halves import architectures_of, has_half, read_half
from lsv.resolve.architecture.obstacles import find_obstacle
from lsv.resolve.code import note_model
from lsv.resolve.locate import language_of, read_config
from lsv.resolve.overrides import instead, strange_overrides
from lsv.resolve.pooling import HEADS
from lsv.settings import Settings
from lsv_base.errors import ConfigError


class Served(msgspec.Struct, frozen=True):
    """What serves a checkpoint."""

    architecture: str
    model: ModelOffer
    overrides: Mapping[str, Any] = {}
    """What is laid over config.json for it."""
    wrapper: str = ""
    """The checkpoint's own architecture, where its language model alone is served."""


def resolve_model(
    folder: Path, overrides: Mapping[str, Any], settings: Settings, catalog: Catalog, choices: Choices
) -> Served:
    """As ``choose_model``, by the settings. ``overrides`` are laid over config.json."""
    checkpoint, unwanted = read_config(folder, overrides), unwanted_media(settings)
    within = _drafts_within(settings, catalog)
    served = choose_model(checkpoint, folder, catalog, choices, settings["model_impl"], unwanted, within=within)
    if not served.wrapper:
        return served
    strange = strange_overrides(read_config(folder, {}), settings["hf_overrides"] or {})  # refused unless it knows them
    return msgspec.structs.replace(served, overrides={**served.overrides, **strange})


def choose_model(
    checkpoint: Mapping[str, Any],
    folder: Path,
    catalog: Catalog,
    choices: Choices,
    asked: str = "auto",
    unwanted: Collection[str] = (),
    *,
    within: bool = False,
) -> Served:
    """``asked`` is the option model_impl. Of a model all of whose media are ``unwanted``, the language model is served
    alone if it can be. ``within`` says that layers of the checkpoint's own draft for it. Raises ``ConfigError`` where
    nothing serves the checkpoint.
    """
    named = _read_name(checkpoint, folder, catalog)
    model = _find_native(catalog, named)
    towered = model.adapts and model.modalities != ("text",)
    alone = (towered and asked != "auto") or _is_alone(checkpoint, folder, model, choices, unwanted, within=within)
    if asked != "transformers" and (model.fallback or alone):
        families = read_families(catalog)
        served = _find_half(checkpoint, named, catalog, families) or _find_meant(checkpoint, named, catalog, families)
        if served is not None:
            choices.note("architecture", served.architecture, _explain(served, named, checkpoint, families))
            return served
    lone = alone and model.adapts and asked != "native"
    model = _find_fallback(catalog, named) if lone else find_offer(catalog, named, asked)
    note_model(checkpoint, named, model, choices, asked)
    if towered and not lone:
        model = _as_half(model, _find_half(checkpoint, named, catalog, read_families(catalog)))
    return Served(named, model)


def _as_half(model: ModelOffer, half: Served | None) -> ModelOffer:
    """The offer of another library's code for a model that takes media, with what holds for its language model."""
    if half is None:
        return model
    own = half.model
    return msgspec.structs.replace(
        model,
        unstable=own.unstable,
        block_size=own.block_size,
        positions=own.positions,
        length_key=own.length_key,
        unused_positions=own.unused_positions,
        stop_tokens=own.stop_tokens,
    )


def _drafts_within(settings: Settings, catalog: Catalog) -> bool:
    """Whether the settings ask for a drafter that is a part of the model's own checkpoint."""
    asked = settings["speculative_config"]
    method = asked.get("method") if isinstance(asked, Mapping) else None
    return any(offer.within and method in (offer.name, *offer.aliases) for offer in catalog.offers(DrafterOffer))


def _is_alone(
    checkpoint: Mapping[str, Any],
    folder: Path,
    model: ModelOffer,
    choices: Choices,
    unwanted: Collection[str],
    *,
    within: bool,
) -> bool:
    """Whether the language model of one that takes media is to be served alone."""
    media = set(model.modalities) - {"text"}
    if not media or not model.divisible:
        return False
    if media <= set(unwanted):
        return True
    why = find_obstacle(model.media_needs, folder, language_of(checkpoint)[1])
    if not why and within and model.adapts:
        why = "the layers that draft belong to the language model: images need another method"
    if why:
        choices.note("media", "none", why)
    return bool(why)


def _explain(served: Served, named: str, checkpoint: Mapping[str, Any], families: Families) -> str:
    if served.wrapper:
        return f"the language model of {named} alone: it takes no images, sound or video"
    if named in families.aliases:
        return f"{named} is another name for it"
    return f"{named} is unknown, and checkpoints of model_type {checkpoint.get('model_type')} are usually this"


def unwanted_media(settings: Settings) -> frozenset[str]:
    """The kinds of media that no prompt may hold."""
    if settings["language_model_only"]:
        return frozenset(get_args(Modality))
    limits: Mapping[str, int] = settings["limit_mm_per_prompt"] or {}
    return frozenset(kind for kind, most in limits.items() if most == 0)


def find_offer(catalog: Catalog, architecture: str, asked: str = "auto") -> ModelOffer:
    """The model that serves an architecture; one with another head is served by the language model's.

    ``asked`` is the option model_impl. Raises ``ConfigError`` where there is no such model.
    """
    found = _find_native(catalog, architecture)
    if asked == "transformers" and not found.adapts:
        return _find_fallback(catalog, architecture)
    if found.adapts and asked == "native":
        raise ConfigError(f"model_impl=native: no native model offers {architecture}", param="model_impl")
    return found


def _read_name(checkpoint: Mapping[str, Any], folder: Path, catalog: Catalog) -> str:
    """The first architecture that config.json names, or the one that is meant by it (``ModelOffer.told_by``)."""
    names = checkpoint.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ConfigError(f"{folder}/config.json names no architecture; add one with --hf-overrides", param="model")
    for offer in catalog.offers(ModelOffer):
        key = offer.told_by.get(names[0])
        if key is not None and _says(checkpoint, key):
            return offer.architectures[0]
    return names[0]


def _says(checkpoint: Mapping[str, Any], key: str) -> bool:
    """Whether config.json has something under a key, such as ``vision_config``, or what ``a.b=c`` asks for."""
    path, _, wanted = key.partition("=")
    value: Any = checkpoint
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value == wanted if wanted else bool(value)


def _find_half(checkpoint: Mapping[str, Any], named: str, catalog: Catalog, families: Families) -> Served | None:
    """The native model of a checkpoint's language model; None where there is none."""
    if not has_half(checkpoint) or checkpoint.get("is_encoder_decoder"):
        return None
    for architecture in architectures_of(checkpoint, families):
        model = catalog.architecture(architecture)
        if not model.fallback:
            laid = instead(checkpoint, read_half(checkpoint, architecture, families))
            return Served(architecture, model, laid, named)
    return None


def _find_meant(checkpoint: Mapping[str, Any], named: str, catalog: Catalog, families: Families) -> Served | None:
    """The model that a name means which neither a plugin nor a library has; None where it means none."""
    meant = families.aliases.get(named)
    if meant is None and not _is_known(named, families):
        kind = str(checkpoint.get("model_type"))
        wrapper = families.wrappers.get(kind)
        meant = families.architectures.get(kind) if wrapper is None else wrapper.architecture
    if meant is None or meant == named:
        return None
    return Served(meant, find_offer(catalog, meant), {"architectures": [meant]})


def _is_known(named: str, families: Families) -> bool:
    wrappers = (wrapper.architecture for wrapper in families.wrappers.values())
    return named in (*families.architectures.values(), *wrappers)


def _find_fallback(catalog: Catalog, architecture: str) -> ModelOffer:
    for offer in catalog.offers(ModelOffer):
        if offer.fallback:
            return offer
    raise ConfigError(
        f"model_impl=transformers: no plugin runs {architecture} by transformers' code", param="model_impl"
    )


def _find_native(catalog: Catalog, architecture: str) -> ModelOffer:
    """A native one, failing that the fallback for all architectures."""
    offer = catalog.architecture(architecture)
    if offer.fallback:
        stem = next((architecture.removesuffix(head) for head in HEADS if architecture.endswith(head)), "")
        for name in (f"{stem}ForCausalLM", f"{stem}Model") if stem else ():
            found = catalog.architecture(name)
            if not found.fallback:
                return found
    return offer
