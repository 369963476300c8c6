"""Memory for weights."""

from __future__ import annotations

import mmap

import pytest

from lsv_cpu.arena import Arena


def test_a_system_without_huge_pages_has_memory_for_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain(mmap.mmap):
        def madvise(self, *_: object) -> None:
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(mmap, "mmap", Plain)
    taken = Arena().take(1000)
    taken.fill_(7)
    assert taken.tolist() == [7] * 1000
