"""Which objects are exempt from collecting garbage, and when."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import pytest

from lsv.engine.engine import Engine
from suite import heap
from suite.heap import IMPORTS, Heap, collect_frozen


@pytest.fixture
def found() -> list[object]:
    """The objects that the collector finds."""
    return ["a thing"]


@pytest.fixture
def calls(found: list[object], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records calls of the collector."""
    calls: list[str] = []
    collector = {name: lambda name=name: calls.append(name) for name in ("collect", "freeze")}
    monkeypatch.setattr(heap, "gc", SimpleNamespace(**collector, get_objects=lambda: found))
    return calls


def test_garbage_is_collected_before_objects_are_frozen(calls: list[str]) -> None:
    Heap().freeze()
    assert calls == ["collect", "freeze"]


def test_objects_are_frozen_again_once_much_was_imported(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    objects, modules = Heap(), dict.fromkeys(range(7))
    monkeypatch.setattr(heap, "sys", SimpleNamespace(modules=modules))
    objects.freeze()
    modules |= dict.fromkeys(range(100, 100 + IMPORTS - 1))
    objects.freeze_imports()
    assert calls == ["collect", "freeze"]
    modules["one more"] = None
    for _ in range(2):
        objects.freeze_imports()
    assert calls == ["collect", "freeze"] * 2


def test_nothing_is_frozen_while_an_engine_is_open(calls: list[str], found: list[object]) -> None:
    objects = Heap()
    found.append(object.__new__(Engine))
    objects.freeze()
    assert calls == ["collect"]
    found.pop()
    objects.freeze()
    assert calls == ["collect", "collect", "freeze"]


def test_an_open_engine_is_not_looked_for_after_each_test(
    calls: list[str], found: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, modules = Heap(), dict.fromkeys(range(IMPORTS))
    monkeypatch.setattr(heap, "sys", SimpleNamespace(modules=modules))
    found.append(object.__new__(Engine))
    for _ in range(3):
        objects.freeze_imports()
    assert calls == ["collect"]


def test_an_object_that_was_frozen_while_it_was_used_is_found_later() -> None:
    class Model:
        def __init__(self) -> None:
            self.itself = self

    model = Model()
    seen = weakref.ref(model)
    gc.freeze()
    del model
    gc.collect()
    assert seen() is not None
    collect_frozen()
    assert seen() is None
