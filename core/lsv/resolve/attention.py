"""Which attention backends an engine may run on: the one asked for, or the platform's in order. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from lsv.capabilities import Capabilities
from lsv.config import Choices
from lsv.offers import AttentionOffer
from lsv.platform import Platform
from lsv.plugins.catalog import Catalog
from lsv_base.errors import ConfigError


@dataclass(frozen=True, slots=True)
class AskedOfAttention:
    """What a configuration asks of a backend; what layers ask of it is known when the model is declared."""

    dtype: str = "auto"
    """Of the steps; ``"auto"`` is any."""
    kv_dtype: str = "auto"
    """Of the cache; ``"auto"`` is that of the steps."""
    block_size: int | None = None
    """Tokens of a block, where the user has said how many."""


def choose_attention(
    name: str | None,
    platform: Platform,
    capabilities: Capabilities,
    catalog: Catalog,
    choices: Choices,
    asked: AskedOfAttention = AskedOfAttention(),
) -> tuple[AttentionOffer, ...]:
    """The backend asked for alone, or all of the platform's that can run here, the first choice first.

    A name in capitals that none of the platform's goes by is another server's: here the same is computed in other ways.
    Raises ``ConfigError`` where none can.
    """
    foreign = name is not None and name == name.upper() and not _aliased(name, platform, catalog)
    if name is not None and not foreign:
        return (_named(name, platform, capabilities, catalog, choices, asked),)
    if not platform.attention:
        raise ConfigError(f"platform {platform.name} names no attention backend: choose one with --attention-backend")
    offers = [catalog.find(AttentionOffer, one) for one in platform.attention]
    problems = {offer.name: _why_not(offer, platform, capabilities, asked) for offer in offers}
    able = [offer for offer in offers if problems[offer.name] is None]
    if not able:
        passed = "; ".join(f"{one}, which {problem}" for one, problem in problems.items())
        raise ConfigError(f"platform {platform.name} has no attention backend that can run here: {passed}")
    fitting = [offer for offer in able if asked.block_size in (None, *offer.block_sizes)] or able[:1]
    ahead = offers[: offers.index(fitting[0])]
    passed = "; ".join(
        f"{offer.name}, which {problems[offer.name] or f'has no blocks of {asked.block_size} tokens'}"
        for offer in ahead
    )
    why = f"the first choice of platform {platform.name}" + (f" but for {passed}" if passed else "")
    why += f"; {name} is not lsv's" if foreign else ""
    choices.note("attention", fitting[0].name, why)
    return tuple(fitting)


def _named(
    name: str,
    platform: Platform,
    capabilities: Capabilities,
    catalog: Catalog,
    choices: Choices,
    asked: AskedOfAttention,
) -> AttentionOffer:
    """The backend of that name, or the platform's first that can run of those with that alias, in any case."""
    offers = _aliased(name, platform, catalog)
    known = {one: place for place, one in enumerate(platform.attention)}
    offers.sort(key=lambda offer: known.get(offer.name, len(known)))
    if not offers:
        offers = [catalog.find(AttentionOffer, name)]
    problems: list[str] = []
    for offer in offers:
        problem = _why_not(offer, platform, capabilities, asked)
        if problem is None:
            if offer.name != name:
                choices.note("attention", offer.name, f"{name} is another name for it")
            return offer
        problems.append(f"attention backend {offer.name} {problem}")
    raise ConfigError("; ".join(problems), param="attention_backend")


def _aliased(name: str, platform: Platform, catalog: Catalog) -> list[AttentionOffer]:
    """The platform's backends that go by a name of another server's, in any case."""
    offers = [offer for offer in catalog.offers(AttentionOffer) if name.upper() in offer.aliases]
    return [offer for offer in offers if not offer.platforms or platform.name in offer.platforms]


def _why_not(
    offer: AttentionOffer, platform: Platform, capabilities: Capabilities, asked: AskedOfAttention
) -> str | None:
    if offer.platforms and platform.name not in offer.platforms:
        return f"runs on {', '.join(offer.platforms)}, not on {platform.name}"
    if offer.layout != capabilities.layout:
        return f"takes {offer.layout} batches, and platform {platform.name} makes {capabilities.layout} ones"
    if offer.dtypes and asked.dtype not in ("auto", *offer.dtypes):
        return f"computes in {', '.join(offer.dtypes)}, not in {asked.dtype}"
    if offer.kv_dtypes and asked.kv_dtype not in offer.kv_dtypes:
        return f"has caches of {', '.join(offer.kv_dtypes)}, not of {asked.kv_dtype}"
    missing = offer.missing() if offer.missing else None
    return None if missing is None else f"lacks {missing}"
