"""Opening devices: a platform may be of any plugin, so what it opens is checked."""

from __future__ import annotations

from collections.abc import Mapping

from lsv.config import OptionValue
from lsv.platform import Platform
from lsv_base.errors import ConfigError
from lsv_runtime.devices.device import Device


def open_index(platform: Platform, index: int, options: Mapping[str, OptionValue]) -> Device:
    """See ``Platform.open``. Raises ``ConfigError`` if what it returns is not a ``Device``."""
    return _check(platform, platform.open(index, options))


def open_rank(platform: Platform, rank: int, ranks: int, options: Mapping[str, OptionValue], first: int = 0) -> Device:
    """See ``Platform.open_rank``. Raises ``ConfigError`` if what it returns is not a ``Device``."""
    return _check(platform, platform.open_rank(rank, ranks, options, first))


def _check(platform: Platform, opened: object) -> Device:
    if isinstance(opened, Device):
        return opened
    base = f"{Device.__module__}.{Device.__name__}"
    raise ConfigError(f"platform {platform.name} opened a {type(opened).__name__}, which does not derive from {base}")
