"""The weight formats of an evaluation: each is checked before the first is loaded."""

from __future__ import annotations

from collections.abc import Sequence

from lsv.offers import QuantizerOffer
from lsv.plugins import Plugins
from lsv.plugins.catalog import Catalog
from lsv.resolve import resolve
from lsv.settings import Settings
from lsv_base.errors import ConfigError, ErrorRecord, LsvError, from_record
from lsv_bench.eval.run import UNQUANTISED, format_name

ALL = "all"
"""The plain weights and every quantiser that makes its format of them."""


def choose_formats(settings: Settings, plugins: Plugins) -> list[Settings]:
    """One set of settings for each of ``--formats``, or the given settings alone.

    Raises ``ConfigError`` for a format that is unknown, named twice, or that the model can't take.
    """
    if not settings["formats"]:
        return [settings]
    if settings["quantization"] is not None:
        raise ConfigError(
            f"give either --formats or --quantization ({settings.source('quantization')}), not both", param="formats"
        )
    names = expand(settings["formats"], plugins.catalog)
    return [_with_format(settings, name, plugins) for name in names]


def expand(names: Sequence[str], catalog: Catalog) -> list[str]:
    """The formats by name, ``all`` spelled out. Raises ``ConfigError`` for one that is named twice."""
    found: list[str] = []
    for name in names:
        found += [UNQUANTISED, *online_formats(catalog)] if name == ALL else [name.lower()]
    twice = next((name for name in found if found.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"formats names {twice} twice", param="formats")
    return found


def online_formats(catalog: Catalog) -> list[str]:
    """Quantisers that take all of a plain checkpoint, in the order of their plugins."""
    return [offer.name for offer in catalog.offers(QuantizerOffer) if offer.online and not offer.experts]


def _with_format(settings: Settings, name: str, plugins: Plugins) -> Settings:
    wanted = None if name == UNQUANTISED else name
    changed = settings.replaced("quantization", wanted, "flag --formats")
    config = resolve(changed, plugins)
    if config.quantization != wanted:
        raise ConfigError(f"the checkpoint is quantised as {config.quantization}: it has no format {name}",
                          param="formats")  # fmt: skip
    from lsv_runtime.worker.load.survey import bound_ops

    try:
        bound_ops(config, plugins.catalog)
    except LsvError as error:
        raise from_record(ErrorRecord(error.code, f"{format_name(config)}: {error.message}", error.param)) from error
    return changed
