"""Adapters of a model whose layers are on several ranks: each keeps what is for its own, and none answers alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from lsv import LLM, LoRARequest, SamplingParams, plugins
from lsv.adapters.peft import digest
from lsv.config import AdapterOptions
from lsv_base.errors import BadRequest, CheckpointError, NotYet
from lsv_runtime.adapters.checkpoint import Pair
from lsv_runtime.adapters.slots import attach
from lsv_runtime.adapters.store import AdapterStore, Source
from lsv_runtime.pipeline.stage import Stage
from lsv_runtime.worker.load.cut import cut
from lsv_runtime.worker.load.declared import declare
from lsv_testing.adapters import linear_layers, write_adapter
from lsv_testing.model import engine_config
from lsv_testing.tiny import tiny

PROMPT = {"prompt_token_ids": list(range(20, 33))}
GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, detokenize=False)


CATALOG = plugins.load(("models",)).catalog


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("llama", tmp_path_factory.mktemp("adapters") / "model")


@pytest.fixture
def adapters(model: Path, tmp_path: Path) -> list[Path]:
    folders = [tmp_path / "one", tmp_path / "two"]
    for number, folder in enumerate(folders):
        write_adapter(folder, model, list(linear_layers(model)), seed=number, rank=2, spread=0.3)
    return folders


def open_store(model: Path, stage: Stage) -> AdapterStore:
    config = engine_config(model, "llama")
    declared = declare(config, CATALOG)
    places = attach(declared.model, 1, 8, torch.float32)
    cut(declared, stage, config)
    return AdapterStore(declared.model, declared.rename, places, AdapterOptions(slots=1, max_rank=8, host=4))


def has_last_layer(store: AdapterStore) -> bool:
    return [*store._places.values()][-1] in store._layers


def read(store: AdapterStore, id: int, folder: Path) -> None:
    while True:
        with suppress(NotYet):
            return store.load(id, str(folder), digest(folder).hex())


def test_a_stage_keeps_what_is_for_its_own_layers(model: Path, adapters: list[Path]) -> None:
    held = []
    for number in range(2):
        store = open_store(model, Stage(number, 2))
        read(store, 1, adapters[0])
        names = {name for name, layer in store._places.items() if layer in store._held[1]}
        held.append(names)
    assert all(names for names in held)
    assert all(f".layers.{number}." in name for number, names in enumerate(held) for name in names)
    assert held[0] | held[1] == set(linear_layers(model))


def test_what_a_rank_has_read_it_does_not_read_again(
    model: Path, adapters: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks are asked together until the last one is done: those that were done first must stay so."""
    store = open_store(model, Stage(0, 2))
    read(store, 1, adapters[0])
    whole = AdapterStore._read

    def read_slowly(store: AdapterStore, source: Source) -> Any:
        time.sleep(0.1)
        return whole(store, source)

    monkeypatch.setattr(AdapterStore, "_read", read_slowly)
    store.load(1, str(adapters[0]), "")


@pytest.fixture
def staged(model: Path, ranks_are_threads: None) -> Callable[..., LLM]:
    def open_llm(**more: Any) -> LLM:
        return LLM(
            str(model), dtype="float32", max_model_len=64, num_gpu_blocks_override=16, enable_lora=True,
            max_loras=1, max_cpu_loras=1, skip_tokenizer_init=True, pipeline_parallel_size=2, **more,
        )  # fmt: skip

    return open_llm


def test_no_stage_computes_with_an_adapter_that_another_can_not_read(
    staged: Callable[..., LLM], adapters: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    lora = [LoRARequest(f"a{number}", number + 1, str(folder)) for number, folder in enumerate(adapters)]
    whole = AdapterStore._read

    def read_or_fail(store: AdapterStore, source: Source) -> Any:
        if source.folder == adapters[0] and not has_last_layer(store):
            raise CheckpointError("the disk is gone")
        return whole(store, source)

    with staged() as llm:
        params: list[SamplingParams] = [GREEDY] * 2
        said = [one.checked().outputs[0].token_ids for one in llm.generate([PROMPT] * 2, params, lora_request=lora)]
        monkeypatch.setattr(AdapterStore, "_read", read_or_fail)
        first, second = llm.generate([PROMPT] * 2, params, lora_request=lora)
        assert first.error is not None
        assert "another rank can't serve the adapter" in str(first.error)
        assert second.checked().outputs[0].token_ids == said[1]
        monkeypatch.undo()
        (again,) = llm.generate([PROMPT], [GREEDY], lora_request=lora[:1])
        assert again.checked().outputs[0].token_ids == said[0]


def test_an_adapter_that_one_stage_refuses_is_kept_by_none(
    staged: Callable[..., LLM], adapters: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, stores = AdapterStore._cut, set[AdapterStore]()

    def cut_last(store: AdapterStore, path: Path, pairs: dict[str, Pair]) -> Any:
        stores.add(store)
        if has_last_layer(store):
            raise CheckpointError(f"{path}: it is for another model")
        return whole(store, path, pairs)

    monkeypatch.setattr(AdapterStore, "_cut", cut_last)
    with staged() as llm, pytest.raises(BadRequest, match="it is for another model"):
        llm.generate([PROMPT], [GREEDY], lora_request=[LoRARequest("a", 1, str(adapters[0]))])
    assert len(stores) == 2
    assert not any(store._sources or store._held for store in stores)
