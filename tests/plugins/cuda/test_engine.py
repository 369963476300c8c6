"""A whole engine on the emulated GPU: what graphs replay and steps in flight give is what the plain path gives."""

from __future__ import annotations

import gc
import logging
import os
import weakref
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lsv import LLM, SamplingParams
from lsv.scheduler.plan import Kind, StepPlan
from lsv_cuda.emulation import FakeCuda
from lsv_runtime.attention.plan import PagedPlan
from lsv_runtime.emulation.fakes import FakeCapturing, FakeGraph
from lsv_runtime.emulation.placement.device import placement
from lsv_runtime.emulation.recording import without_waiting
from lsv_runtime.nn.embed import Head
from lsv_runtime.worker.runner import ModelRunner
from lsv_runtime.worker.worker import Worker
from lsv_testing.tiny import tiny
from lsv_triton.attention.torch_backend import TorchAttention
from suite.emulated_memory import EmulatedMemory

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


def emulated(checkpoint: Path, lengths: tuple[int, ...] = LENGTHS, *, on: str = "cuda", **options: Any) -> Tokens:
    return generate(checkpoint, lengths, platform=on, emulate=True, **options)


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> Tokens:
    """The tokens of the cpu platform."""
    return generate(checkpoint, platform="cpu", cpu_threads=1, cpu_native="off")


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> list[FakeCuda]:
    """Every fake that the test opens."""
    made: list[FakeCuda] = []
    plain = FakeCuda.__init__

    def remember(fake: FakeCuda, *properties: Any) -> None:
        plain(fake, *properties)
        made.append(fake)

    monkeypatch.setattr(FakeCuda, "__init__", remember)
    return made


@pytest.mark.row("F-014")
def test_the_plain_path(checkpoint: Path, expected: Tokens, fakes: list[FakeCuda]) -> None:
    assert emulated(checkpoint, enforce_eager=True, async_scheduling=False) == expected
    assert fakes[0].calls["graph"] == 0


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Kind]:
    """The kinds of the steps that are launched, of which decoding must not have the host wait for a value:
    the device would have nothing to do while the next step is planned.
    """
    launch, kinds, placed = Worker.launch, list[Kind](), placement()

    def watched(worker: Worker, plan: StepPlan, *masks: Any) -> None:
        kinds.append(plan.kind)
        waits = placed.waits if placed else 0
        with without_waiting() if plan.kind == Kind.DECODE else nullcontext():
            launch(worker, plan, *masks)
        if placed and plan.kind == Kind.DECODE:
            assert placed.waits == waits

    monkeypatch.setattr(Worker, "launch", watched)
    return kinds


@pytest.mark.row("F-377")
def test_graphs_and_steps_in_flight(
    checkpoint: Path, expected: Tokens, fakes: list[FakeCuda], launched: list[Kind]
) -> None:
    assert emulated(checkpoint) == expected
    (fake,) = fakes
    assert fake.calls["graph"] == len(SIZES)
    decoding = fake.calls["Graph.replay"] - 3 * len(SIZES)  # each was replayed to be verified, twice, and to warm up
    assert decoding == launched.count(Kind.DECODE) >= SAMPLING.max_tokens - 2
    assert fake.calls["Event.synchronize"] > 0


def attend_token_by_token(
    self: TorchAttention, q: Any, k: Any, v: Any, layer: Any, cache: Any, plan: PagedPlan
) -> torch.Tensor:
    """Each token a row of its own, as the device has the rows: what is launched follows from shapes alone."""
    if not plan.decoding and cache is not None:
        token = torch.arange(len(q), device=q.device)
        row = torch.searchsorted(plan.starts[1:].long(), token, right=True)
        context = plan.context[row] - plan.starts[1:][row] + token + 1
        tables, starts = plan.tables[row], torch.cat((token, token[-1:] + 1)).int()
        plan = replace(plan, starts=starts, context=context.int(), tables=tables)
    return attend(self, q, k, v, layer, cache, plan)


attend = TorchAttention.attend


@pytest.fixture
def captures_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention in plain torch that can be captured in steps with prompts."""
    monkeypatch.setattr(TorchAttention, "captures_prompts", True)
    monkeypatch.setattr(TorchAttention, "attend", attend_token_by_token)


@pytest.mark.usefixtures("captures_prompts")
@pytest.mark.parametrize("batched", [64, 20])
def test_steps_with_prompts_are_replayed(
    checkpoint: Path, expected: Tokens, fakes: list[FakeCuda], launched: list[Kind], batched: int
) -> None:
    """Of prompts alone, and with 20 tokens a step of prompts in the company of decoding rows."""
    assert emulated(checkpoint, LENGTHS[:4], max_num_batched_tokens=batched) == expected[:4]
    (fake,) = fakes
    sizes = len([size for size in (16, 32, 64) if size < batched]) + 1
    assert fake.calls["graph"] == sizes + len(SIZES)
    assert len(set(launched) - {Kind.IDLE}) == (2 if batched == 64 else 3)
    replays = fake.calls["Graph.replay"] - 3 * (sizes + len(SIZES))
    assert replays == len([kind for kind in launched if kind != Kind.IDLE])


@pytest.mark.usefixtures("captures_prompts")
def test_prompts_that_cannot_be_captured_leave_decoding_its_graphs(
    checkpoint: Path, expected: Tokens, fakes: list[FakeCuda], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """A length that is read from the device fails in the capture; one frozen on the host is found by value."""

    def reading(self: TorchAttention, q: Any, k: Any, v: Any, layer: Any, cache: Any, plan: PagedPlan) -> torch.Tensor:
        if not plan.decoding:
            plan.starts.tolist()
        return attend_token_by_token(self, q, k, v, layer, cache, plan)

    def frozen(self: TorchAttention, q: Any, k: Any, v: Any, layer: Any, cache: Any, plan: PagedPlan) -> torch.Tensor:
        if not plan.decoding:
            plan = replace(plan, tables=plan.tables[:, : -(-int(plan.host_context.max()) // self.block_size)])
        return attend_token_by_token(self, q, k, v, layer, cache, plan)

    for wrong, why in (
        (reading, "the step of 64 tokens can't be captured"),
        (frozen, "replaying the step of 64 tokens gives other values"),
    ):
        monkeypatch.setattr(TorchAttention, "attend", wrong)
        caplog.clear()
        assert emulated(checkpoint, LENGTHS[:4], block_size=16) == expected[:4]
        assert f"no graphs of steps with prompts on emulated GPU: {why}" in caplog.text
        assert fakes[-1].calls["graph"] == 1 + len(SIZES)


def test_the_head_is_in_the_graph(
    checkpoint: Path, expected: Tokens, launched: list[Kind], monkeypatch: pytest.MonkeyPatch
) -> None:
    heads: list[int] = []
    forward, start = Head.forward, Worker.start

    def started(worker: Worker, report: Any) -> Any:
        fit = start(worker, report)
        monkeypatch.setattr(Head, "forward", lambda head, *args: heads.append(1) or forward(head, *args))
        return fit

    monkeypatch.setattr(Worker, "start", started)
    assert emulated(checkpoint) == expected
    assert len(heads) == len([kind for kind in launched if kind not in (Kind.IDLE, Kind.DECODE)])


def test_an_engine_that_is_closed_holds_no_memory(checkpoint: Path) -> None:
    """Another one in the same process finds all of it, though models and compiled steps are full of cycles."""
    if placement() is None:
        pytest.skip("there is no C++ compiler")
    memory = EmulatedMemory()
    gc.disable()
    try:
        emulated(checkpoint)
        assert memory.held == 0
    finally:
        gc.enable()


def answers(checkpoint: Path, params: SamplingParams, **options: Any) -> list[Any]:
    """Tokens, and log probabilities of answer and prompt in so far as they were asked for."""
    common = {"dtype": "float32", "max_model_len": 64, "num_gpu_blocks_override": 64, "reference_ops": True}
    prompts = [{"prompt_token_ids": list(range(40, 40 + length))} for length in LENGTHS]
    with LLM(str(checkpoint), **common, **options) as llm:
        found = llm.generate(prompts, params)
    return [(tuple(one.outputs[0].token_ids), one.outputs[0].logprobs, one.prompt_logprobs) for one in found]


def test_log_probabilities_are_not_waited_for_while_steps_are_launched(
    checkpoint: Path, launched: list[Kind], monkeypatch: pytest.MonkeyPatch
) -> None:
    params, depth, launch = SAMPLING.replace(logprobs=2, prompt_logprobs=1), [], Worker.launch

    def watched(worker: Worker, plan: StepPlan, *masks: Any) -> None:
        launch(worker, plan, *masks)
        depth.append(worker.in_flight)

    monkeypatch.setattr(Worker, "launch", watched)
    expected = answers(checkpoint, params, platform="cpu", cpu_threads=1, cpu_native="off")
    launched.clear()
    depth.clear()
    found = answers(checkpoint, params, platform="cuda", emulate=True)
    assert [one[0] for one in found] == [one[0] for one in expected]
    for one, other in zip(found, expected, strict=True):
        for positions, others in zip(one[1:], other[1:], strict=True):
            assert _numbers(positions) == pytest.approx(_numbers(others), abs=1e-4)
    assert launched.count(Kind.DECODE) >= SAMPLING.max_tokens - 2
    assert max(depth) == 2


def _numbers(positions: Any) -> list[float]:
    """Ids, values and ranks in one list."""
    said = [entry for position in positions or () if position is not None for entry in position.items()]
    return [number for token, one in said for number in (token, one.logprob, one.rank)]


def test_a_decoding_step_takes_few_copies_and_no_new_pinned_memory(
    checkpoint: Path, expected: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed, launch = placement(), Worker.launch
    if placed is None:
        pytest.skip("there is no C++ compiler")
    steps: list[tuple[int, int]] = []

    def watched(worker: Worker, plan: StepPlan, *masks: Any) -> None:
        copies, pinned = placed.mark(), placed.pinned_allocations
        launch(worker, plan, *masks)
        if plan.kind == Kind.DECODE:
            steps.append((placed.mark() - copies, placed.pinned_allocations - pinned))

    monkeypatch.setattr(Worker, "launch", watched)
    assert emulated(checkpoint, block_size=16) == expected
    # inputs, attention plan, rows of block tables, what has changed in these, and tokens back
    assert max(copies for copies, _ in steps) <= 5
    assert sum(pinned for _, pinned in steps[2:]) == 0


@pytest.mark.row("F-377")
def test_a_step_larger_than_all_graphs_runs_without(checkpoint: Path, expected: Tokens, fakes: list[FakeCuda]) -> None:
    assert emulated(checkpoint, cuda_graph_rows=2) == expected
    assert fakes[0].calls["graph"] == 2


def test_rocm_is_the_same_under_another_name(checkpoint: Path, expected: Tokens, fakes: list[FakeCuda]) -> None:
    assert emulated(checkpoint, on="rocm", cuda_graph_rows=2) == expected
    assert fakes[0].calls["graph"] == 2
    assert emulated(checkpoint, on="rocm", cuda_graph_rows=0, tensor_parallel_size=2) == expected


def test_a_length_frozen_on_the_host_is_found(
    checkpoint: Path, expected: Tokens, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A kernel that is told the longest context by the host, as one captured over contexts of one token would be."""
    attend = TorchAttention.attend

    def frozen(self: TorchAttention, q: Any, k: Any, v: Any, layer: Any, cache: Any, plan: PagedPlan) -> torch.Tensor:
        if plan.decoding:
            plan = replace(plan, tables=plan.tables[:, : -(-int(plan.host_context.max()) // self.block_size)])
        return attend(self, q, k, v, layer, cache, plan)

    monkeypatch.setattr(TorchAttention, "attend", frozen)
    assert emulated(checkpoint, block_size=16) == expected
    assert "no graphs on emulated GPU: replaying the step of 5 rows gives other values" in caplog.text


MIB = 1 << 20


class Heavy(FakeGraph):
    """Takes memory when it is captured, more for a pool of its own, and gives it back when it goes."""

    def finish(self, recording: Any, pool: int | None) -> None:
        super().finish(recording, pool)
        taken = 64 * MIB if pool is None else 3 * MIB
        self.take(self._runtime, taken)
        weakref.finalize(self, self.take, self._runtime, -taken)

    @staticmethod
    def take(runtime: FakeCapturing, taken: int) -> None:
        runtime._taken += taken


def test_what_graphs_take_is_kept_out_of_the_plan(
    checkpoint: Path, fakes: list[FakeCuda], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lsv_runtime.worker.load.graphs")
    monkeypatch.setattr(FakeCuda, "max_memory_allocated", lambda fake, index: MIB)  # a device that measures
    common = {"max_model_len": 64, "max_num_seqs": 5, "dtype": "float32", "platform": "cuda", "emulate": True}
    fits = {}
    for eager in (True, False):
        monkeypatch.setattr(FakeCuda, "CUDAGraph", lambda fake: Heavy(fake))
        with LLM(str(checkpoint), **common, enforce_eager=eager, gpu_memory_utilization=0.1) as llm:
            fits[eager], taken = llm.fit, fakes[-1]._taken
    reasons = {reason.name: reason for reason in fits[False].reasons}
    planned = (64 + 3 * (len(SIZES) - 1)) * MIB
    assert int(reasons["graphs"].value) == pytest.approx(planned, abs=2 * MIB), "and the buffers of their steps"
    assert reasons["graphs"].why == f"measured with the largest 2 of {len(SIZES)} graphs"
    assert fits[True].kv_bytes - fits[False].kv_bytes == pytest.approx(planned, abs=2 * MIB)
    assert "graphs took 0.07 GiB, 0.07 GiB were kept" in caplog.text
    assert taken == planned, "the graphs that were tried are gone"


@pytest.mark.skipif(os.environ["TRITON_INTERPRET"] != "1", reason="kernels are compiled for a GPU in this process")
def test_kernels_in_graphs(
    checkpoint: Path,
    expected: Tokens,
    fakes: list[FakeCuda],
    launched: list[Kind],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The platform as it runs on a GPU, kernels in Triton's interpreter. The first step with prompts fills its shape
    but for a row, which has no tokens.
    """
    monkeypatch.setattr(ModelRunner, "_run_all_sizes", lambda runner, sample: None)  # see test_launches.py
    kernels = {"attention_backend": "triton-paged", "reference_ops": False, "triton_interpret": True}
    sizes = {"max_num_seqs": 2, "max_model_len": 32, "max_num_batched_tokens": 32}
    assert emulated(checkpoint, LENGTHS[2:4], **kernels, **sizes) == expected[2:4]
    assert fakes[0].calls["graph"] == 4, "of 32 and 16 tokens, of 2 rows and 1"
    assert fakes[0].calls["Graph.replay"] == 3 * 4 + len([kind for kind in launched if kind != Kind.IDLE])


@pytest.mark.skipif(os.environ["TRITON_INTERPRET"] != "1", reason="kernels are compiled for a GPU in this process")
def test_a_model_with_a_shared_expert_runs_in_graphs(
    tmp_path: Path, fakes: list[FakeCuda], monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeepSeek's, GLM's and Qwen's experts: without graphs each of their layers costs dozens of launches a step."""
    monkeypatch.setattr(ModelRunner, "_run_all_sizes", lambda runner, sample: None)
    experts = {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48,
        "num_hidden_layers": 1, "decoder_sparse_step": 1, "mlp_only_layers": [],
    }  # fmt: skip
    path = tiny("qwen2_moe", tmp_path, tokenizer=True, **experts)
    sizes = {"max_num_seqs": 2, "max_model_len": 32, "max_num_batched_tokens": 32}
    expected = generate(path, LENGTHS[2:4], platform="cpu", cpu_threads=1, cpu_native="off", **sizes)
    kernels = {"attention_backend": "triton-paged", "reference_ops": False, "triton_interpret": True}
    assert emulated(path, LENGTHS[2:4], **kernels, **sizes) == expected
    assert fakes[0].calls["graph"] == 4, "of 32 and 16 tokens, of 2 rows and 1"


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
