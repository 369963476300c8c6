"""Engines on the CPU that sleep and wake up: the tokens are the same, and the memory is given back."""

from __future__ import annotations

import os
import re
import shutil
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lsv import LLM, LoRARequest, SamplingParams
from lsv_base.errors import BadRequest, CheckpointError, Unavailable
from lsv_runtime.worker.load.resident import ResidentModel
from lsv_testing.adapters import linear_layers, write_adapter
from lsv_testing.tiny import tiny

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
PROMPTS = [[(7 * n + place) % 250 for place in range(20 + 9 * n)] for n in range(4)]
MIB = 1 << 20


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("llama", tmp_path_factory.mktemp("base"), tokenizer=True)


@pytest.fixture
def open_llm() -> Iterator[Callable[..., LLM]]:
    made: list[LLM] = []

    def make(model: Path, **options: Any) -> LLM:
        given = {"dtype": "float32", "max_num_seqs": 8, "max_model_len": 128, "enable_sleep_mode": True, **options}
        made.append(LLM(str(model), platform="cpu", **given))
        return made[-1]

    yield make
    for llm in made:
        llm.close()


def tokens(llm: LLM, lora: Any = None) -> list[tuple[int, ...]]:
    outputs = llm.generate(prompt_token_ids=PROMPTS, sampling_params=GREEDY, use_tqdm=False, lora_request=lora)
    return [tuple(output.checked().outputs[0].token_ids) for output in outputs]


def resident(llm: LLM) -> ResidentModel:
    found: ResidentModel = llm.llm_engine.client._engine._executor._worker._resident  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="native"),
        pytest.param({"reference_ops": True}, id="reference", marks=pytest.mark.slow),
        pytest.param({"quantization": "int8"}, id="int8", marks=pytest.mark.slow),
        pytest.param({"tensor_parallel_size": 2}, id="two ranks", marks=pytest.mark.slow),
    ],
)
def test_answers_are_the_same_and_prefixes_forgotten(
    base: Path, open_llm: Callable[..., LLM], options: dict[str, Any]
) -> None:
    llm = open_llm(base, **options)
    expected = tokens(llm)
    for level in (1, 2):
        tokens(llm)
        hits = llm.stats.prefix_hits_total
        assert hits
        llm.sleep(level)
        assert llm.is_sleeping
        with pytest.raises(Unavailable, match="sleeps"):
            tokens(llm)
        llm.wake_up()
        assert not llm.is_sleeping
        assert tokens(llm) == expected
        assert llm.stats.prefix_hits_total == hits


def test_nobody_holds_what_sleeps(base: Path, open_llm: Callable[..., LLM]) -> None:
    llm = open_llm(base)
    expected = tokens(llm)
    model = weakref.ref(resident(llm).loaded.declared.model)
    for level in (1, 2):
        cache = weakref.ref(resident(llm).cache.pages)
        assert cache() is not None
        llm.sleep(level)
        assert cache() is None
        assert (model() is None) == (level == 2)
        llm.wake_up(["weights"])
        llm.wake_up(["kv_cache"])
        assert tokens(llm) == expected


def rss() -> int:
    return int(re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) << 10  # type: ignore[index]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_the_system_has_the_memory_back(tmp_path: Path, open_llm: Callable[..., LLM]) -> None:
    small = tiny("llama", tmp_path, hidden_size=256, intermediate_size=64, vocab_size=1 << 16)
    llm = open_llm(small, load_format="dummy", kv_cache_memory_bytes=96 * MIB, skip_tokenizer_init=True)
    with torch.inference_mode():
        resident(llm).cache.pages.fill_(1)
    weights = llm.fit.weight_bytes
    full = rss()
    assert weights > 120 * MIB
    llm.sleep(1)
    assert full - rss() > 90 * MIB  # the weights are where they were: in the host's memory
    llm.sleep(2)
    assert full - rss() > 90 * MIB + 0.7 * weights  # a chunk of the arena stays


def test_slots_hold_the_same_adapters(base: Path, open_llm: Callable[..., LLM], tmp_path: Path) -> None:
    modules = list(linear_layers(base))
    loras = [LoRARequest(f"a{n}", n, str(write_adapter(tmp_path / str(n), base, modules, seed=n))) for n in (1, 2)]
    asked = [*loras, None, loras[0]]
    llm = open_llm(base, enable_lora=True, max_loras=2)
    expected = tokens(llm, asked)
    assert expected[0] != tokens(llm)[0]
    for level in (1, 2):
        llm.sleep(level)
        llm.wake_up()
        assert tokens(llm, asked) == expected


def test_requests_under_way_end_with_the_reason(base: Path, open_llm: Callable[..., LLM]) -> None:
    llm = open_llm(base)
    engine = llm.llm_engine
    engine.add_request("r", {"prompt_token_ids": PROMPTS[0]}, GREEDY)
    engine.step()
    with pytest.raises(BadRequest, match="step until they end"):
        llm.sleep(mode="wait")
    llm.sleep()
    (output,) = engine.step()
    assert output.error is not None
    assert "put to sleep" in str(output.error)
    assert not engine.has_unfinished_requests()
    llm.wake_up()
    assert tokens(llm)


def test_a_checkpoint_that_is_gone_does_not_wake_up(base: Path, open_llm: Callable[..., LLM], tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in base.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    llm = open_llm(copy)
    expected = tokens(llm)
    llm.sleep(2)
    weights = copy / "model.safetensors"
    kept = weights.rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError):
        llm.wake_up()
    assert llm.is_sleeping
    kept.rename(weights)
    llm.wake_up()
    assert tokens(llm) == expected


def test_kept_blocks_are_not_of_other_weights(base: Path, open_llm: Callable[..., LLM], tmp_path: Path) -> None:
    """What files hold of the KV cache was computed with the weights that were there at the start."""
    copy = Path(shutil.copytree(base, tmp_path / "copy"))
    llm = open_llm(copy, kv_offload_path=str(tmp_path / "kv"))
    expected = tokens(llm)
    llm.sleep(2)
    weights = copy / "model.safetensors"
    content, about = weights.read_bytes(), weights.stat()
    weights.write_bytes(content[:-4096] + bytes(4096))
    with pytest.raises(CheckpointError, match="has changed since the engine started"):
        llm.wake_up()
    weights.write_bytes(content)
    os.utime(weights, ns=(about.st_atime_ns, about.st_mtime_ns))
    llm.wake_up()
    assert tokens(llm) == expected
