"""What a worker does about adapters that it can't have, or can't have any more."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from lsv.plugins.catalog import Catalog
from lsv_base.errors import CheckpointError
from lsv_runtime.adapters.slots import AdapterSlots
from lsv_runtime.adapters.store import AdapterStore
from lsv_runtime.adapters.vocabulary import HeadSlots, VocabularyShare
from lsv_runtime.worker.load.declared import Declared
from lsv_testing.adapters import linear_layers, write_adapter
from lsv_testing.adapters.filling import load_adapter, with_slots
from lsv_testing.model import engine_config


@pytest.fixture
def base(checkpoint: Callable[..., Path]) -> Path:
    return checkpoint("llama")


@pytest.fixture
def filled(base: Path, catalog: Catalog) -> tuple[Declared, AdapterStore]:
    return with_slots(engine_config(base, "llama"), catalog, 1)


def holds(declared: Declared) -> bool:
    """Whether any layer holds an adapter."""
    return any(any(slots.ranks) for slots in declared.model.modules() if isinstance(slots, AdapterSlots))


def test_files_that_change_are_not_read_again(
    base: Path, filled: tuple[Declared, AdapterStore], tmp_path: Path
) -> None:
    modules, (_, store) = list(linear_layers(base))[:1], filled
    folders = [write_adapter(tmp_path / str(n), base, modules, seed=n) for n in range(2)]
    for number, folder in enumerate(folders):
        load_adapter(store, number, folder)
    write_adapter(folders[0], base, modules, seed=5)
    store.enter(0, 0)  # the host keeps the other one
    assert "have changed" in store.faults[0]
    with pytest.raises(CheckpointError, match="have changed"):
        load_adapter(store, 3, folders[0], "00" * 32)
    store.enter(0, 1)
    assert not store.faults


def test_what_another_rank_cannot_read_is_served_by_none(
    base: Path, filled: tuple[Declared, AdapterStore], tmp_path: Path
) -> None:
    class Pair:
        """Of two ranks; the other one says whether it has the adapter, and then whether all its layers take it."""

        group = SimpleNamespace(size=2)
        other: ClassVar = [1.0, 1.0, 0.0, 1.0, 1.0]

        def all_reduce(self, own: torch.Tensor) -> torch.Tensor:
            return own + self.other.pop(0)

    declared, store = filled
    store._every = Pair()
    folder = write_adapter(tmp_path / "a", base, list(linear_layers(base))[:1])
    load_adapter(store, 1, folder)
    store.load(1, str(folder), "")  # the other rank takes longer, and nothing is read twice
    for fine in (True, False, True):
        store.enter(0, 1)
        assert holds(declared) == fine
        assert fine == (not store.faults)
        assert fine or "another rank can't serve the adapter" in store.faults[0]


def test_what_was_dropped_is_not_served_again(
    base: Path, catalog: Catalog, filled: tuple[Declared, AdapterStore], tmp_path: Path
) -> None:
    _, store = filled
    load_adapter(store, 1, write_adapter(tmp_path / "a", base, list(linear_layers(base))[:1]))
    store.enter(0, 1)
    store.drop(1)
    declared, other = with_slots(engine_config(base, "llama"), catalog, 1)
    other.serve(store.served)
    assert not holds(declared)


def test_an_adapter_for_which_there_is_no_memory_fails_alone(
    base: Path, filled: tuple[Declared, AdapterStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = HeadSlots.fill

    def refuse(self: HeadSlots, slot: int, share: VocabularyShare | None, device: torch.device) -> None:
        if share is not None:
            raise torch.OutOfMemoryError("tried to allocate 1 GiB")
        fill(self, slot, share, device)

    declared, store = filled
    load_adapter(store, 1, write_adapter(tmp_path / "a", base, [], copies=["lm_head"]))
    monkeypatch.setattr(HeadSlots, "fill", refuse)
    store.enter(0, 1)
    assert "out of device memory" in store.faults[0]
    assert not any(slots.held[0] for slots in declared.model.modules() if isinstance(slots, HeadSlots))
