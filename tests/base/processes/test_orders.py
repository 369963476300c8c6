"""Orders as typed records: how they travel, and what a process refuses."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lsv.adapters.orders import DropAdapter, ReadAdapter
from lsv.engine.executor import (
    BalanceExperts,
    CountExperts,
    ReleaseMemory,
    Reset,
    RestoreMemory,
    StartProfiler,
    StopProfiler,
)
from lsv.engine.orders.adapters import LoadAdapter, UnloadAdapter
from lsv.engine.orders.order import Drain, ResetPrefixCache
from lsv.engine.orders.sleep import Sleep, WakeUp
from lsv.engine.parts.profiles import StartProfile, StopProfile
from lsv_base.errors import BadRequest
from lsv_base.processes.orders import OrderRecord, OrderTable, encode_order

ORDERS: tuple[OrderRecord, ...] = (
    Drain(),
    ResetPrefixCache(),
    Sleep(),
    Sleep(2, "wait"),
    WakeUp(),
    WakeUp(("weights", "kv_cache")),
    LoadAdapter("a", "/a", replace=True),
    UnloadAdapter("a"),
    StartProfile(),
    StopProfile(),
    Reset(),
    ReadAdapter(3, "/a", "00ff"),
    DropAdapter(3),
    ReleaseMemory(2),
    RestoreMemory(("weights",)),
    StartProfiler(),
    StopProfiler(),
    CountExperts(),
    BalanceExperts(),
)


@pytest.fixture
def table() -> OrderTable[OrderRecord, str]:
    return OrderTable("this test knows", BadRequest, {kind: kind.__name__ for kind in map(type, ORDERS)})


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_an_order_arrives_as_it_was_sent(table: OrderTable[OrderRecord, str], order: OrderRecord) -> None:
    arrived = table.read(*encode_order(order))
    assert arrived == order
    assert table.find(arrived) == type(order).__name__


def test_an_unknown_order_is_refused_by_the_names_that_are_known(table: OrderTable[OrderRecord, str]) -> None:
    with pytest.raises(BadRequest, match="unknown order 'dance': this test knows drain, reset_prefix_cache, sleep"):
        table.read("dance", b"")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"level": "two"}, r"Expected `int`, got `str` - at `\$\.level`"),
        ({"level": 1, "depth": 2}, "unknown field `depth`"),
        ({"type": "wake_up"}, "Invalid value 'wake_up'"),
        ([], "Expected `object`, got `array`"),
        (None, "Expected `object`, got `None`"),
    ],
)
def test_a_body_that_does_not_fit_is_refused(table: OrderTable[OrderRecord, str], body: Any, why: str) -> None:
    with pytest.raises(BadRequest, match=f"the order sleep is malformed: .*{why}.*; this test knows drain"):
        table.read("sleep", msgspec.msgpack.encode(body))


@pytest.mark.parametrize("body", [b"", b"\x81", b"\xc1", b"\x80\x80", b"\x81\xa4mode\xa1\xff"])
def test_a_body_that_is_no_message_is_refused(table: OrderTable[OrderRecord, str], body: bytes) -> None:
    with pytest.raises(BadRequest, match="the order sleep is malformed"):
        table.read("sleep", body)


def test_a_required_field_must_be_there(table: OrderTable[OrderRecord, str]) -> None:
    with pytest.raises(BadRequest, match="missing required field `name`"):
        table.read("unload_adapter", msgspec.msgpack.encode({}))
