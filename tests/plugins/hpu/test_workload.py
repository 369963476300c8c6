"""Whole engines on an emulated Gaudi: 200 random requests need no shape that was not warmed up."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from lsv import LLM, SamplingParams
from lsv_base.errors import ConfigError
from lsv_hpu.emulation.platform import FakeHabana
from lsv_runtime.emulation.fakes import StrictFake
from lsv_testing.tiny import tiny

REQUESTS, BLOCK, LENGTH = 200, 16, 128
SMALL = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "block_size": BLOCK, "num_gpu_blocks_override": 16}
"""Prompts come in chunks, and the cache is so small that requests are preempted."""

Answers = list[tuple[int, ...]]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny("llama", tmp_path_factory.mktemp("hpu") / "llama"))


@pytest.fixture
def vendors(monkeypatch: pytest.MonkeyPatch) -> list[FakeHabana]:
    """The fakes that devices are opened with."""
    found: list[FakeHabana] = []
    make = FakeHabana.__init__

    def remember(self: FakeHabana, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        found.append(self)

    monkeypatch.setattr(FakeHabana, "__init__", remember)
    return found


def requests(count: int) -> tuple[list[dict[str, list[int]]], list[SamplingParams]]:
    """Ragged prompts of up to a cache's row, of which a third share a beginning, and short answers."""
    rng = random.Random(7)
    shared = [rng.randrange(5, 250) for _ in range(3 * BLOCK)]
    prompts, params = [], []
    for _ in range(count):
        size = rng.choice((1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 33, rng.randint(1, 75)))
        start = shared if rng.random() < 1 / 3 else []
        prompts.append({"prompt_token_ids": start + [rng.randrange(5, 250) for _ in range(size)]})
        length = rng.choice((1, 2, 2, 40))
        params.append(SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, detokenize=False))
    return prompts, params


def ask(checkpoint: str, count: int, started: Callable[[], None] = lambda: None, **options: Any) -> tuple[Answers, LLM]:
    prompts, params = requests(count)
    fixed = {"dtype": "float32", "max_model_len": LENGTH, "skip_tokenizer_init": True}
    with LLM(checkpoint, **fixed, **options) as llm:
        started()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return [output.outputs[0].token_ids for output in outputs], llm.stats


@pytest.fixture(scope="module")
def plain(checkpoint: str) -> Answers:
    """The answers of this machine's own platform, which pads nothing."""
    return ask(checkpoint, REQUESTS, platform="cpu", **SMALL)[0]


PADDED = {"hpu.bucketing_strategy": "pad", "hpu.full_warmup": True, "hpu.prompt_bs_buckets": "1"}
EAGER = {"enforce_eager": True}
LINEAR = {"hpu.bucketing_strategy": "lin", "async_scheduling": False}


@pytest.mark.row("F-477")
@pytest.mark.parametrize(
    ("options", "count"),
    [
        pytest.param({}, REQUESTS, id="compiled"),
        pytest.param(PADDED, 40, id="padding-aware"),
        pytest.param(EAGER, REQUESTS, id="eager", marks=pytest.mark.slow),
        pytest.param(LINEAR, REQUESTS, id="linear", marks=pytest.mark.slow),
    ],
)
def test_random_requests_stay_inside_the_buckets(
    checkpoint: str,
    plain: Answers,
    vendors: list[FakeHabana],
    options: dict[str, Any],
    count: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    warmed: list[int] = []
    found, stats = ask(
        checkpoint,
        count,
        lambda: warmed.append(vendors[0].compilations),
        platform="hpu",
        emulate=True,
        **SMALL,
        **options,
    )
    assert stats.unwarmed_total == 0
    assert "not warmed-up" not in caplog.text
    assert stats.preemptions_total > 0 or count < REQUESTS
    (vendor,) = vendors
    assert warmed == [vendor.compilations]
    assert bool(vendor.compilations) == ("enforce_eager" not in options)
    differing = sum(one != other for one, other in zip(found, plain[:count], strict=True))
    assert differing <= 0.02 * count, f"{differing} answers differ, more than ties can explain"


@pytest.mark.row("F-1003")
def test_an_engine_in_lazy_mode_is_refused(checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"hpu_lazy_mode must be false.* --enforce-eager"):
        ask(checkpoint, 1, platform="hpu", emulate=True, **SMALL, **{"hpu.lazy_mode": True})
    monkeypatch.setenv("PT_HPU_LAZY_MODE", "1")
    with pytest.raises(ConfigError, match=r"PT_HPU_LAZY_MODE: hpu-lazy-mode must be false"):
        ask(checkpoint, 1, platform="hpu", emulate=True, **SMALL)
    ask(checkpoint, 1, platform="cpu", **SMALL)


@pytest.fixture
def dynamo(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Steps are compiled by torch itself, into the graphs listed; nothing else is recorded, which would be traced."""
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def compile_(self: FakeHabana, function: Any, *, fullgraph: bool, dynamic: bool | None) -> Any:
        return torch.compile(function, backend=backend, fullgraph=fullgraph, dynamic=dynamic)

    monkeypatch.setattr(StrictFake, "record", lambda self, name, *arguments: None)
    monkeypatch.setattr(FakeHabana, "compile", compile_)
    monkeypatch.setattr(FakeHabana, "forbid_compiling", lambda self: torch.compiler.set_stance("fail_on_recompile"))
    with torch._dynamo.config.patch(recompile_limit=64, accumulated_recompile_limit=64):
        yield graphs
    torch.compiler.set_stance("default")
    torch._dynamo.reset()


@pytest.mark.row("F-1003", "F-474")
@pytest.mark.slow
def test_torch_compiles_each_shape_once_and_whole(checkpoint: str, plain: Answers, dynamo: list[Any]) -> None:
    """Without breaks in graphs, one for all layers; once warm-up is over, compiling anything again is an error."""
    few = {
        "hpu.prompt_bs_buckets": "1",
        "hpu.prompt_seq_buckets": "32,64",
        "hpu.prompt_ctx_buckets": "0,7",
        "hpu.decode_bs_buckets": "8",
        "hpu.decode_block_buckets": "64",
    }
    options = {**SMALL, **few, "hpu.full_warmup": True, "hpu.compile_fullgraph": True}
    found, stats = ask(checkpoint, 40, platform="hpu", emulate=True, **options)
    assert stats.unwarmed_total == 0
    of_layers = [graph for graph in dynamo if any("attn" in node.name for node in graph.graph.nodes)]
    assert len(of_layers) == 5, "as many for each shape as there are kinds of layers"
    assert len(dynamo) == 5 + 3 + 2 + 1, "the embedding by tokens, the norm by rows, and the head of decoding steps"
    assert sum(one != other for one, other in zip(found, plain[:40], strict=True)) <= 1


@pytest.mark.row("F-963", "F-487", "F-488")
def test_a_step_outside_the_buckets_is_counted_and_told(checkpoint: str, caplog: pytest.LogCaptureFixture) -> None:
    """Without chunks a prompt beyond the largest size runs as it is."""
    outside = {"hpu.prompt_seq_buckets": "16,32", "enable_chunked_prefill": False, "enable_prefix_caching": False}
    found, stats = ask(
        checkpoint, 12, platform="hpu", emulate=True, **SMALL | {"max_num_batched_tokens": LENGTH}, **outside
    )
    prompts, params = requests(12)
    sizes = {len(prompt["prompt_token_ids"]) for prompt in prompts if len(prompt["prompt_token_ids"]) > 32}
    assert stats.unwarmed_total >= len(sizes) > 0
    for size in sizes:
        assert f"Configuration: (prompt, 1, {size}) was not warmed-up!" in caplog.text
    assert [len(answer) for answer in found] == [one.max_tokens for one in params]
