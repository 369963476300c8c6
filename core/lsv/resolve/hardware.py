"""What an engine runs on: the platform, its device, and what they refuse. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping

from lsv.capabilities import Capabilities, DeviceInfo
from lsv.config import Choices, EngineConfig, OptionValue
from lsv.offers import PlatformOffer, load_object
from lsv.platform import Platform, find_misfits
from lsv.plugins.catalog import Catalog
from lsv_base.errors import ConfigError, PluginError


def load_platform(name: str, catalog: Catalog, *, emulate: bool = False) -> Platform:
    """The platform an offer names, or its emulation.

    Raises ``ConfigError`` where there is no emulation, ``PluginError`` when a class does not keep to the seam.
    """
    offer = catalog.find(PlatformOffer, name)
    if emulate and offer.emulation is None:
        raise ConfigError(f"platform {name} has no emulation: leave --emulate out", param="emulate")
    make = load_object(str(offer.emulation)) if emulate else catalog.load(offer)
    problems = find_misfits(make, Platform) if isinstance(make, type) else []
    if problems:
        raise PluginError(f"platform {name} of plugin {catalog.provider(offer)}: {'; '.join(problems)}")
    platform: Platform = make()
    return platform


def choose_platform(
    name: str, emulate: bool, options: Mapping[str, OptionValue], catalog: Catalog, choices: Choices
) -> tuple[Platform, DeviceInfo]:
    """The platform asked for, or with ``auto`` the highest-ranked one that finds a device; and its first device.

    ``options`` are the plugins' options. They may choose the emulated device.

    Raises ``ConfigError`` for a name no plugin offers, where there is no device, and for an emulation that is not
    named or not there; ``PluginError`` as ``load_platform``.
    """
    if name != "auto":
        offer = catalog.find(PlatformOffer, name)
        if emulate:
            return _emulated(name, options, catalog, choices)
        found = offer.probe()
        if not found:
            raise ConfigError(f"platform {name} finds no device: {explain_absence(offer)}", param="platform")
        return load_platform(offer.name, catalog), found[0]
    if emulate:
        raise ConfigError("--emulate needs the name of a platform: give --platform too", param="emulate")
    for offer in sorted(catalog.offers(PlatformOffer), key=lambda offer: -offer.rank):
        found = offer.probe()
        if found:
            choices.note("platform", offer.name, f"the highest-ranked platform with a device ({found[0].name})")
            return load_platform(offer.name, catalog), found[0]
    raise ConfigError("no platform plugin finds a device on this machine; lsv plugins lists what is installed")


def _emulated(
    name: str, options: Mapping[str, OptionValue], catalog: Catalog, choices: Choices
) -> tuple[Platform, DeviceInfo]:
    platform = load_platform(name, catalog, emulate=True)
    device = platform.emulated_devices(options)[0]
    why = "EMULATED: there is no device; its code runs on this machine's CPU, and speeds mean nothing"
    choices.note("platform", name, why)
    return platform, device


def explain_absence(offer: PlatformOffer) -> str:
    """Why a platform has no device here, and what to do about it."""
    return offer.explain() if offer.explain else "its plugin's README says what it needs"


def choose_depth(asked: bool | None, capabilities: Capabilities, stages: int = 1) -> int:
    """Steps in flight: one a stage of several; else as many as the platform gains by, or one where planning ahead is
    turned off.

    Raises ``ConfigError`` where planning ahead is asked for and the platform takes one step at a time.
    """
    if stages > 1:
        return stages
    if asked and capabilities.in_flight == 1:
        raise ConfigError(
            "async_scheduling has no use here: the platform computes a step before it takes the next",
            param="async_scheduling",
        )
    return 1 if asked is False else capabilities.in_flight


def refuse_pairs(config: EngineConfig, capabilities: Capabilities) -> None:
    """Raises ``ConfigError`` for two features in use that the platform refuses together, or one that it refuses alone.

    A refusal that names one feature twice means that feature alone.
    """
    active = active_features(config)
    for refusal in capabilities.refuses:
        if refusal.one in active and refusal.other in active:
            pair = refusal.one if refusal.one == refusal.other else f"{refusal.one} and {refusal.other} together"
            raise ConfigError(f"{pair}: not on platform {config.platform}: {refusal.reason}")


def active_features(config: EngineConfig) -> frozenset[str]:
    """The features of a configuration by the names that refusals give them."""
    features = {
        "prefix_caching": config.prefix_caching,
        "chunked_prefill": config.chunked_prefill,
        "tensor_parallel": config.topology.tensor > 1,
        "pipeline_parallel": config.topology.pipeline > 1,
        "async_scheduling": config.in_flight > 1,
        "graphs": not config.enforce_eager,
        "sleep_mode": config.sleep_mode,
        "quantization": config.quantization is not None,
        f"quantization={config.quantization}": config.quantization is not None,
        f"dtype={config.dtype}": True,
        f"kv_cache_dtype={config.kv_dtype}": True,
    }
    return frozenset(name for name, on in features.items() if on)
