"""Whatever a platform opens must be a device."""

from __future__ import annotations

import pytest

from lsv.platform import Platform
from lsv_base.errors import ConfigError
from lsv_cpu.platform import CpuPlatform
from lsv_runtime.devices.opening import open_index, open_rank


class Careless(CpuPlatform):
    name = "careless"

    def open(self, index: int, options: object) -> object:  # type: ignore[override]
        return {"index": index}

    open_rank = Platform.open_rank


def test_a_platform_that_opens_something_else_is_named() -> None:
    message = r"^platform careless opened a dict, which does not derive from lsv_runtime\.devices\.device\.Device$"
    with pytest.raises(ConfigError, match=message):
        open_index(Careless(), 0, {})
    with pytest.raises(ConfigError, match=message):
        open_rank(Careless(), 0, 1, {})
