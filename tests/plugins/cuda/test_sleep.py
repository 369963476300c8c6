"""Sleeping on an emulated GPU: weights leave the device's memory, and graphs are captured over them again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lsv import LLM, SamplingParams
from lsv.config import Profiling
from lsv_base.errors import BadRequest, ConfigError
from lsv_cuda.emulation import EmulatedCudaPlatform
from lsv_runtime.emulation.placement.device import placement
from lsv_runtime.worker.load.parked import ParkedWeights
from lsv_runtime.worker.profiling.profiler import Profiler
from lsv_testing.tiny import tiny
from suite.emulated_memory import EmulatedMemory

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
PROMPTS = [{"prompt_token_ids": list(range(40, 40 + length))} for length in (1, 17, 33)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("llama", tmp_path_factory.mktemp("cuda"), tokenizer=True)


def open_llm(checkpoint: Path, platform: str) -> LLM:
    return LLM(
        str(checkpoint), platform=platform, emulate=True, dtype="float32", max_model_len=64, max_num_seqs=3,
        num_gpu_blocks_override=64, reference_ops=True, enable_sleep_mode=True,
    )  # fmt: skip


def tokens(llm: LLM) -> list[tuple[int, ...]]:
    outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    return [tuple(output.checked().outputs[0].token_ids) for output in outputs]


@pytest.mark.skipif(placement() is None, reason="the emulated device can't be compiled here")
def test_the_device_has_its_memory_back(checkpoint: Path) -> None:
    memory = EmulatedMemory()
    with open_llm(checkpoint, "cuda") as llm:
        expected, held = tokens(llm), memory.held
        assert held > llm.fit.weight_bytes + llm.fit.kv_bytes
        for level in (1, 2):
            llm.sleep(level)
            assert memory.held < 0.1 * llm.fit.weight_bytes
            llm.wake_up(["weights"])
            assert llm.fit.weight_bytes <= memory.held < held - llm.fit.kv_bytes // 2
            llm.wake_up(["kv_cache"])
            assert memory.held == pytest.approx(held, rel=0.1)
            assert tokens(llm) == expected


@pytest.mark.skipif(placement() is None, reason="the emulated device can't be compiled here")
def test_what_shares_memory_shares_it_again() -> None:
    placed = placement()
    assert placed is not None
    model, device = torch.nn.Module(), placed.torch_device(0)
    whole = torch.arange(12, dtype=torch.float32).to(device)
    model.register_buffer("whole", whole)
    model.register_buffer("part", whole[4:8])
    model.register_buffer("other", torch.ones(3).to(device))
    model.register_buffer("host", torch.ones(3))
    view, before = whole.view(3, 4), placed.held(0)
    parked = ParkedWeights(model)
    assert parked.nbytes == 15 * 4
    assert before - placed.held(0) >= 15 * 4
    assert model.host.tolist() == [1.0] * 3
    parked.restore()
    assert parked.nbytes == 0
    assert model.part.cpu().tolist() == [4.0, 5.0, 6.0, 7.0]
    model.part.fill_(0)
    assert view.cpu()[1].tolist() == [0.0] * 4
    assert model.other.cpu().tolist() == [1.0] * 3


def test_gaudi_refuses(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match="sleep_mode: not on platform hpu"):
        open_llm(checkpoint, "hpu")


@pytest.mark.row("F-866", "F-867")
def test_the_vendors_profiler_is_told_what_to_record() -> None:
    device = EmulatedCudaPlatform().open(0, {})
    calls = device._runtime.calls  # type: ignore[attr-defined]
    profiler = Profiler(Profiling(kind="device", folder=""), device, 0)
    profiler.start(torch.nn.Module())
    with pytest.raises(BadRequest, match="already"):
        profiler.start(torch.nn.Module())
    assert (calls["profiler.start"], calls["profiler.stop"]) == (1, 0)
    profiler.stop()
    assert (calls["profiler.start"], calls["profiler.stop"]) == (1, 1)
    assert not profiler.running
    device.close()
