"""``--quantization-calibration``: weights that are fitted to a text before they are served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from lsv.config import EngineConfig, Reason
from lsv.offers import QuantizerOffer, load_object
from lsv.plugins.catalog import Catalog
from lsv.settings import Settings
from lsv_base.errors import ConfigError

_SETTING = "quantization_calibration"
_SOURCE = "the weights that were fitted"

Resolve = Callable[[Settings, Path | None], EngineConfig]
"""Resolves settings. The path takes the place of their model; None for that model."""


def resolve_calibrated(settings: Settings, catalog: Catalog, resolve: Resolve) -> EngineConfig:
    """The configuration that serves the settings' model in its weight format, fitted to the text.

    Raises ``ConfigError`` for a format that can't be fitted.
    """
    file = settings[_SETTING]
    if settings["quantization"] is None:
        raise ConfigError(f"{_SETTING} needs --quantization: the format that is fitted to {file}", param=_SETTING)
    offer = catalog.find(QuantizerOffer, settings["quantization"].lower())
    if not offer.calibrate:
        able = ", ".join(other.name for other in catalog.offers(QuantizerOffer) if other.calibrate)
        raise ConfigError(f"{offer.name} can't be fitted to a text; these can: {able}", param=_SETTING)
    plain = settings.replaced(_SETTING, None, _SOURCE)
    folder = load_object(offer.calibrate)(resolve(plain, None), file)
    as_stored = plain.replaced("quantization", None, _SOURCE).replaced("quantization_ignore", None, _SOURCE)
    config = resolve(as_stored, Path(folder))
    reason = Reason(_SETTING, offer.name, f"fitted to {file}, kept in {folder}")
    return msgspec.structs.replace(config, reasons=(*config.reasons, reason))
