"""The weight format: the one that was asked for, or the checkpoint's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsv.config import Choices
from lsv.offers import QuantizerOffer
from lsv.plugins.catalog import Catalog
from lsv.resolve.adapters import untargeted_layers
from lsv.resolve.lengths import mapping_of
from lsv.settings import Settings
from lsv_base.errors import ConfigError


def choose_quantizer(
    asked: str | None, checkpoint: Mapping[str, Any], catalog: Catalog, choices: Choices
) -> str | None:
    """The asked quantiser, or the one that recognises the checkpoint; an unknown format is never run as another."""
    declared = None if checkpoint.get("quantization_config") is None else mapping_of(checkpoint, "quantization_config")
    if declared is None and asked is not None:
        offer = catalog.find(QuantizerOffer, asked.lower())
        if not offer.online:
            raise ConfigError(
                f"{offer.name} is a format of quantised checkpoints, and this one has no quantization_config: give one "
                f"that has, or a format that quantises at start: {_online(catalog)}",
                param="quantization",
            )
        if offer.note or offer.costs:
            choices.note("quantization", offer.name, "; ".join(filter(None, ("asked for", offer.note, _cost(offer)))))
        return offer.name
    if declared is None:
        return None
    knowing = [o for o in catalog.offers(QuantizerOffer) if o.recognises is not None and o.recognises(declared)]
    if len(knowing) > 1:
        names = ", ".join(f"{o.name} ({catalog.provider(o)})" for o in knowing)
        raise ConfigError(f"more than one quantiser recognises this checkpoint: {names}", param="quantization")
    if not knowing:
        method = declared.get("quant_method", "unknown")
        raise ConfigError(
            f"the checkpoint is quantised as {method!r:.100}, which no installed quantiser reads: take one in "
            f"{_read(catalog)}, or the plain model, quantised at start by --quantization {_online(catalog)}",
            param="quantization",
        )
    if asked is not None and asked.lower() not in (knowing[0].name, *knowing[0].aliases):
        raise ConfigError(
            f"the checkpoint is quantised as {knowing[0].name}; --quantization {asked} contradicts it",
            param="quantization",
        )
    alias = f"{asked} is another name for it" if asked and asked.lower() in knowing[0].aliases else ""
    why = "; ".join(filter(None, ("recognised from quantization_config", alias, knowing[0].note)))
    choices.note("quantization", knowing[0].name, why)
    return knowing[0].name


def _cost(offer: QuantizerOffer) -> str:
    if not offer.costs:
        return ""
    lower = ", and --quantization-calibration lowers it" if offer.calibrate else ""
    return (
        f"it raises the perplexity of a small model by some {offer.costs} %, that of larger ones by less: lsv eval "
        f"measures yours{lower}"
    )


def _read(catalog: Catalog) -> str:
    return ", ".join(offer.name for offer in catalog.offers(QuantizerOffer) if offer.recognises is not None)


def _online(catalog: Catalog) -> str:
    return ", ".join(offer.name for offer in catalog.offers(QuantizerOffer) if offer.online)


def choose_ignored(settings: Settings, checkpoint: Mapping[str, Any], choices: Choices) -> tuple[str, ...]:
    """The layers to leave unquantised. A quantised checkpoint has them as it has them."""
    return (*_ignored(settings, checkpoint), *_untargeted(settings, checkpoint, choices))


def _untargeted(settings: Settings, checkpoint: Mapping[str, Any], choices: Choices) -> tuple[str, ...]:
    """What an adapter leaves unquantised because it was trained with these layers plain."""
    name = "qlora_adapter_name_or_path"
    if settings[name] is None:
        return ()
    if checkpoint.get("quantization_config") is not None:
        choices.note(name, settings[name], "changes nothing: the checkpoint is quantised already")
        return ()
    if settings["quantization"] is None:
        raise ConfigError(f"{name} names the layers to quantise: add --quantization", param=name)
    choices.note(name, settings[name], "only the layers that this adapter targets are quantised")
    return untargeted_layers(settings)


def _ignored(settings: Settings, checkpoint: Mapping[str, Any]) -> tuple[str, ...]:
    names = tuple(settings["quantization_ignore"] or ())
    if names and (checkpoint.get("quantization_config") is not None or settings["quantization"] is None):
        raise ConfigError(
            "quantization_ignore needs --quantization and a checkpoint that is not quantised yet",
            param="quantization_ignore",
        )
    return names
