"""What media take of a device's memory: kept embeddings, and the encoder's activations where a device measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from lsv.config import Fit
from lsv.plugins import load
from lsv.plugins.catalog import Catalog
from lsv_base.errors import ConfigError
from lsv_cpu.platform import CpuDevice
from lsv_runtime.nn.model import Encoder
from lsv_runtime.worker.load.bound import bind
from lsv_runtime.worker.load.declared import declare
from lsv_runtime.worker.load.device import open_device
from lsv_runtime.worker.load.fit import measure_fit, plan_fit
from lsv_runtime.worker.load.loaded import fill, open_source
from lsv_runtime.worker.load.peaks import encode_largest
from lsv_testing.fakes.client import fake_config
from lsv_testing.tiny import tiny
from lsv_testing.tiny_hearing import tiny_hearing

GIB = 1 << 30
FAMILIES = ("llava", "llava_next", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "whisper")


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load(["core", "cpu", "models"]).catalog


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {family: tiny(family, tmp_path_factory.mktemp(family)) for family in FAMILIES if family != "whisper"}
    return {**found, "whisper": tiny_hearing(tmp_path_factory.mktemp("whisper"), seconds=2)}


def configure(folder: Path, offer: str, **changes: Any) -> Any:
    known = {"platform": "cpu", "attention": "cpu-paged", "block_size": 16, "max_model_len": 64}
    return fake_config(model=str(folder), model_offer=offer, **{**known, **changes})


@pytest.mark.row("F-383", "F-713", "F-719")
@pytest.mark.parametrize("family", FAMILIES)
def test_the_largest_item_runs_and_has_as_many_embeddings_as_allowed(
    family: str, folders: Mapping[str, Path], catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(folders[family], family, encoder_cache_tokens=4096)
    device = open_device(config, catalog, 0)
    declared = bind(declare(config, catalog), config, catalog).declared
    with closing(open_source(config, declared, catalog)) as source:
        fill(declared, source)
    encoder = declared.model.encoder
    counts: list[int] = []
    advance = encoder.advance

    def watch(state: Any, part: int) -> Any:
        state = advance(state, part)
        if part + 1 == encoder.parts:
            counts.append(len(state))
        return state

    monkeypatch.setattr(encoder, "advance", watch)
    with torch.inference_mode():
        encode_largest(encoder, encoder.largest(4096), config, device)
    # of tiles the most there are: the whole and two by two, of four by four patches, with an end to each line
    assert counts == [{"llava": 16, "llava_next": 16 + 8 * (8 + 1), "whisper": 100}.get(family, 4096)]


class Measuring(CpuDevice):
    """Has measured that a step takes a gigabyte and an item two."""

    def measure_peak(self, run: Callable[[], object]) -> int:
        self.measured = [*getattr(self, "measured", ()), run]
        return len(self.measured) * GIB


def plan(folder: Path, offer: str, catalog: Catalog, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Fit:
    config = configure(folder, offer, **changes)
    device = open_device(config, catalog, 0)
    monkeypatch.setattr(device, "__class__", Measuring)
    bound = bind(declare(config, catalog), config, catalog)
    return measure_fit(plan_fit(bound, config, device), bound, config, device)


def test_the_plan_names_what_media_take(
    folders: Mapping[str, Path], catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = plan(folders["llava"], "llava", catalog, monkeypatch, memory_share=0.9, encoder_cache_tokens=1 << 20)
    found = {reason.name: reason for reason in seen.reasons}
    assert found["activations"].value == str(GIB)
    assert found["encoder_activations"].value == str(2 * GIB)
    assert found["encoder_cache_bytes"].value == str((1 << 20) * 64 * 4)
    assert "encoder_cache_tokens=1048576 of 64 numbers" in found["encoder_cache_bytes"].why
    plain = plan(tiny("llama", tmp_path), "llama", catalog, monkeypatch, memory_share=0.9)
    assert [reason.name for reason in plain.reasons] == ["kv_bytes", "activations"]
    taken = 2 * GIB + (1 << 20) * 64 * 4
    assert plain.kv_bytes - seen.kv_bytes == pytest.approx(taken, abs=GIB // 4)


def test_an_item_that_no_memory_is_left_for_is_refused_by_its_size(
    folders: Mapping[str, Path], catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(folders["llava"], "llava", encoder_cache_tokens=4096)
    device = open_device(config, catalog, 0)
    encoder = bind(declare(config, catalog), config, catalog).declared.model.encoder

    def fail(inputs: Any) -> Any:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(encoder, "begin", fail)
    with pytest.raises(
        ConfigError, match=r"not enough memory .* to encode .* 4096 embeddings.*lower encoder_cache_tokens"
    ):
        encode_largest(encoder, encoder.largest(4096), config, device)


def test_an_encoder_that_does_not_tell_its_largest_item_is_not_measured(
    folders: Mapping[str, Path], catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lsv_models.llava.LlavaEncoder.largest", Encoder.largest)
    fit = plan(folders["llava"], "llava", catalog, monkeypatch, memory_share=0.9)
    reason = next(reason for reason in fit.reasons if reason.name == "encoder_activations")
    assert reason.value == "0"
    assert "does not tell its largest item" in reason.why
