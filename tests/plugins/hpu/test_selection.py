"""Several engines of a process, each with its device: closing one leaves the others theirs."""

from __future__ import annotations

import pytest

from lsv_base.errors import ConfigError
from lsv_hpu import selection
from lsv_hpu.emulation.ops import fake_ops
from lsv_hpu.selection import Selection, deselect, select


@pytest.mark.parametrize("closed", [0, 1])
def test_the_device_that_is_left_is_used(closed: int) -> None:
    devices = [Selection(fake_ops(), exact_integers=False), Selection(fake_ops(), exact_integers=False)]
    for device in devices:
        select(device)
    assert selection.ops() is devices[1].ops
    deselect(devices[closed])
    assert selection.ops() is devices[1 - closed].ops
    assert not selection.exact_integers()
    deselect(devices[1 - closed])
    with pytest.raises(ConfigError, match="no device is open"):
        selection.ops()
    assert selection.exact_integers()
