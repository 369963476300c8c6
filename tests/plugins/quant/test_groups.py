"""How many weights share a scale in ``sym_int4``: fewer in small models, and on each rank as on one."""

from __future__ import annotations

from typing import Any

import pytest

from lsv_quant.online import int4
from lsv_runtime.nn.linear import Column, Row
from lsv_testing.tensors import place


def column(inputs: int, outputs: int, rank: int = 0, size: int = 1, make: Any = int4.make_by_size) -> int:
    w = place(rank=rank, size=size, quantizer=make({}))
    layer: Any = Column.even(w, ("q", "k"), inputs, outputs).linear
    return int(layer.group)


def row(inputs: int, outputs: int, rank: int = 0, size: int = 1) -> int:
    w = place(rank=rank, size=size, quantizer=int4.make_by_size({}))
    layer: Any = Row(w, "o", inputs, outputs, reads=w.shard.split(inputs, "inputs")).linear
    return int(layer.group)


@pytest.mark.parametrize(("states", "group"), [(64, 32), (1024, 32), (1056, 64), (2048, 64)])
def test_small_models_have_small_groups(states: int, group: int) -> None:
    """Whatever a layer has besides: narrow heads and experts of a large model do not make it small."""
    assert column(states, 4096) == column(states, 128) == group
    assert row(4096, states) == row(128, states) == group


@pytest.mark.parametrize(("states", "group"), [(512, 32), (1024, 32), (2048, 64)])
def test_ranks_choose_as_one_does(states: int, group: int) -> None:
    """A rank's share of the inputs does not make a layer small."""
    assert {row(1024, states, rank, 4) for rank in range(4)} == {group}
    assert {column(states, 64, rank, 4) for rank in range(4)} == {group}


@pytest.mark.parametrize(("make", "group"), [(int4.make_32, 32), (int4.make_64, 64), (int4.make_128, 128)])
def test_other_names_say_the_group(make: Any, group: int) -> None:
    assert column(64, 64, make=make) == column(4096, 64, make=make) == group
