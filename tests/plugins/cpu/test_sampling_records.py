"""Records that Python writes and native code reads: that both have the same fields is checked on loading."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lsv_cpu import sampling
from lsv_runtime.devices.device import Device
from lsv_runtime.nn.sampling import CHOICE, EDIT, Sampling

SAMPLING = Sampling()


def test_both_sides_have_the_same_records(device: Device) -> None:
    sampling.NativeChoose(SAMPLING.choose, SAMPLING.choose.spec())
    assert sampling.layout_of(EDIT) == "token:i4@0 kind:i4@4 first:f4@8 second:f4@12 16"


def changed(change: dict[str, Any]) -> np.dtype[Any]:
    """``CHOICE`` with other types of some fields; ``None`` leaves one out."""
    assert CHOICE.names is not None
    fields = {name: CHOICE[name] for name in CHOICE.names} | change
    return np.dtype([(name, dtype) for name, dtype in fields.items() if dtype is not None])


@pytest.mark.parametrize(
    "change",
    [{"top_k": np.int32}, {"rate": np.int32}, {"seed": np.int64}, {"min_p": None}, {"more": np.int64}],
    ids=str,
)
def test_a_record_of_another_form_is_caught(
    change: dict[str, Any], device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "CHOICE", changed(change))
    with pytest.raises(
        AssertionError, match=r"struct Choice of native/sampling/sample.cpp is not CHOICE of lsv_runtime/nn/sampling.py"
    ):
        sampling.NativeChoose(SAMPLING.choose, SAMPLING.choose.spec())


def test_fields_that_changed_places_are_caught(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    swapped = [
        (name, CHOICE[name]) for name in ("rate", "only", "edits", "top_k", "min_p", "top_p", "seed", "position")
    ]
    monkeypatch.setattr(sampling, "CHOICE", np.dtype(swapped))
    with pytest.raises(AssertionError, match="top_p:i8@24"):
        sampling.NativeDescribe(SAMPLING.describe, SAMPLING.describe.spec())
