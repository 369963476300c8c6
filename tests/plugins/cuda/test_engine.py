"""A whole engine on the emulated GPU: what graphs replay and steps in flight give is what the plain path gives."""

from __future__ import annotations

import gc
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from lsv import LLM, SamplingParams
from lsv.scheduler.plan import Kind, StepPlan
from lsv.testing.placement.device import placement
from lsv.testing.recording import without_waiting
from lsv.testing.tiny import tiny
from lsv.worker.worker import Worker
from lsv_cuda.emulation import FakeCuda

LENGTHS = (1, 15, 16, 17, 33)
SAMPLING = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
SIZES = [5, 4, 2, 1]

Tokens = list[tuple[int, ...]]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("llama", tmp_path_factory.mktemp("cuda"), tokenizer=True)


def generate(checkpoint: Path, lengths: tuple[int, ...] = LENGTHS, **options: Any) -> Tokens:
    common = {
        "dtype": "float32", "max_model_len": 64, "max_num_seqs": 5, "num_gpu_blocks_override": 64,
        "reference_ops": True,
    }  # fmt: skip
    prompts = [{"prompt_token_ids": list(range(40, 40 + length))} for length in lengths]
    with LLM(str(checkpoint), **{**common, **options}) as llm:
        return [tuple(answer.outputs[0].token_ids) for answer in llm.generate(prompts, SAMPLING)]


def emulated(checkpoint: Path, lengths: tuple[int, ...] = LENGTHS, **options: Any) -> Tokens:
    return generate(checkpoint, lengths, platform="cuda", emulate=True, **options)


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> Tokens:
    """The tokens of the cpu platform."""
    return generate(checkpoint, platform="cpu", cpu_threads=1, cpu_native="off")


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> list[FakeCuda]:
    """Every fake that the test opens."""
    made: list[FakeCuda] = []
    plain = FakeCuda.__init__

    def remember(fake: FakeCuda) -> None:
        plain(fake)
        made.append(fake)

    monkeypatch.setattr(FakeCuda, "__init__", remember)
    return made


def test_the_plain_path(checkpoint: Path, expected: Tokens, fakes: list[FakeCuda]) -> None:
    assert emulated(checkpoint, enforce_eager=True, async_scheduling=False) == expected
    assert fakes[0].calls["graph"] == 0


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Kind]:
    """The kinds of the steps that are launched, of which decoding must not have the host wait for a value:
    the device would have nothing to do while the next step is planned.
    """
    launch, kinds, placed = Worker.launch, list[Kind](), placement()

    def watched(worker: Worker, plan: StepPlan) -> None:
        kinds.append(plan.kind)
        waits = placed.waits if placed else 0
        with without_waiting() if plan.kind == Kind.DECODE else nullcontext():
            launch(worker, plan)
        if placed and plan.kind == Kind.DECODE:
            assert placed.waits == waits

    monkeypatch.setattr(Worker, "launch", watched)
    return kinds


def test_graphs_and_steps_in_flight(
    checkpoint: Path, expected: Tokens, fakes: list[FakeCuda], launched: list[Kind]
) -> None:
    assert emulated(checkpoint) == expected
    (fake,) = fakes
    assert fake.calls["graph"] == len(SIZES)
    decoding = fake.calls["Graph.replay"] - len(SIZES)  # each was replayed once to warm up
    assert decoding == launched.count(Kind.DECODE) >= SAMPLING.max_tokens - 2
    assert fake.calls["Event.synchronize"] > 0


def test_an_engine_that_is_closed_holds_no_memory(checkpoint: Path) -> None:
    """Another one in the same process finds all of it, though models and compiled steps are full of cycles."""
    placed = placement()
    if placed is None:
        pytest.skip("there is no C++ compiler")
    gc.collect()
    before = placed.held(0)
    gc.disable()
    try:
        emulated(checkpoint)
        assert placed.held(0) == before
    finally:
        gc.enable()


def test_a_step_larger_than_all_graphs_runs_without(checkpoint: Path, expected: Tokens, fakes: list[FakeCuda]) -> None:
    assert emulated(checkpoint, cuda_graph_rows=2) == expected
    assert fakes[0].calls["graph"] == 2


@pytest.mark.skipif(os.environ["TRITON_INTERPRET"] != "1", reason="kernels are compiled for a GPU in this process")
def test_kernels_in_graphs(checkpoint: Path, expected: Tokens, fakes: list[FakeCuda]) -> None:
    """The platform as it runs on a GPU, its kernels in Triton's interpreter."""
    kernels = {"attention_backend": "triton-paged", "reference_ops": False, "triton_interpret": True}
    assert emulated(checkpoint, LENGTHS[3:4], **kernels, max_num_seqs=1, max_model_len=32) == expected[3:4]
    assert fakes[0].calls["Graph.replay"] >= SAMPLING.max_tokens - 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("reference_ops", [True, False])
def test_on_a_gpu(checkpoint: Path, expected: Tokens, eager: bool, reference_ops: bool) -> None:
    found = generate(checkpoint, platform="cuda", enforce_eager=eager, reference_ops=reference_ops)
    assert found == expected


@pytest.mark.slow
def test_two_ranks_give_the_tokens_of_one(checkpoint: Path, expected: Tokens) -> None:
    assert emulated(checkpoint, tensor_parallel_size=2) == expected
