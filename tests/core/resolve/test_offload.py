"""How much host memory may stand behind the KV cache."""

from __future__ import annotations

from typing import Any

import pytest

from lsv import plugins
from lsv.config import Offload
from lsv.resolve.offload import choose_offload
from lsv_base.errors import ConfigError
from lsv_offline.llm import read_options


def choose(**given: Any) -> Offload | None:
    loaded = plugins.load(())
    return choose_offload(read_options(given, loaded), loaded.catalog, cached=True)


def test_all_replicas_together_must_fit_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 1 << 12, "SC_PHYS_PAGES": 1 << 20}.__getitem__)
    assert choose(kv_offload_gib=3) == Offload(host_bytes=3 << 30, transport=None)
    with pytest.raises(ConfigError, match=r"kv-offload-gib=3 for each of 2 replicas: this machine has 4\.0 GiB"):
        choose(kv_offload_gib=3, data_parallel_size=2)


def test_what_is_no_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="kv_offload_gib must be at most"):
        choose(kv_offload_gib=float("inf"))
