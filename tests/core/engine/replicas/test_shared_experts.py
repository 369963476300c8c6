"""Replicas that share the experts of a mixture: engine processes that step together, live and die together."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lsv import LLM, LoRARequest, SamplingParams
from lsv.config import EngineConfig
from lsv.engine.replicas.renewal import Renewal
from lsv.engine.replicas.replica_set import ReplicaSet
from lsv.engine.replicas.supervisors import Supervisors
from lsv.engine.socket_client import SocketClient
from lsv.engine.supervision.supervisor import RestartPolicy
from lsv.resolve import resolve
from lsv_base.errors import EngineDied
from lsv_offline.llm import read_arguments
from lsv_testing.adapters import linear_layers, write_adapter
from lsv_testing.fakes.requests import make_spec
from lsv_testing.fakes.text import letters
from lsv_testing.tiny import tiny
from suite.processes import children_of

pytestmark = pytest.mark.xdist_group("processes")

OPTIONS: dict[str, Any] = {
    "dtype": "float32", "max_model_len": 128, "skip_tokenizer_init": True, "max_num_batched_tokens": 24,
    "enable_chunked_prefill": True, "max_num_seqs": 8, "kv_cache_memory_bytes": 1 << 20,
}  # fmt: skip
SHARED = {"data_parallel_size": 2, "enable_expert_parallel": True}
PROMPTS = [list(range(5, 5 + length)) for length in (3, 17, 40, 61)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, detokenize=False)
SEEDED = GREEDY.replace(temperature=0.9, seed=7)
LONG = GREEDY.replace(max_tokens=60)
SHAPES: dict[str, dict[str, Any]] = {
    "deepseek_v3": {
        "kv_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 16, "num_key_value_heads": 4,
        "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "moe_intermediate_size": 32,
        "first_k_dense_replace": 1, "q_lora_rank": 20,
    },
    "llama4_text": {
        "num_local_experts": 4, "head_dim": 16, "num_hidden_layers": 4, "intermediate_size_mlp": 48,
        "interleave_moe_layer_step": 2, "num_experts_per_tok": 1,
    },
    "zaya": {
        "head_dim": 16, "num_experts": 3, "moe_intermediate_size": 48, "router_hidden_size": 24, "num_hidden_layers": 3,
        "cca_time0": 3, "spread": 0.08,
    },
}  # fmt: skip
"""Routers that choose by groups, weights on what experts are given, routers that hand something on to the next."""

UNEVEN = "[1, 0, 0, 1, 0, 1, 0, 1]"
"""The prompts' favourites of the second layer are on one rank."""

Ids = list[int]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("qwen3_moe", tmp_path_factory.mktemp("model"), num_experts=8, mlp_only_layers=[])


def alone(path: Path, prompts: Sequence[Ids], params: Sequence[SamplingParams], **options: Any) -> list[Ids]:
    """What one engine answers that has all experts."""
    with LLM(str(path), **OPTIONS, **options) as llm:
        answers = llm.generate([{"prompt_token_ids": ids} for ids in prompts], list(params), use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in answers]


def configure(path: Path, **options: Any) -> EngineConfig:
    return resolve(*read_arguments({"model": str(path), **OPTIONS, **SHARED, **options}))


@asynccontextmanager
async def serving(config: EngineConfig) -> AsyncIterator[tuple[ReplicaSet, Supervisors]]:
    supervisors = Supervisors(config.replicas(), restarts=lambda: RestartPolicy(2, 600.0))
    supervisors.start()
    each = zip(config.replicas(), supervisors.addresses, strict=True)
    found = ReplicaSet([SocketClient(one, address, letters(64)) for one, address in each])
    await found.start()
    await found.ready()
    try:
        yield found, supervisors
    finally:
        await found.close()
        await asyncio.to_thread(supervisors.stop)


async def ask(client: SocketClient, ids: Ids, params: SamplingParams, **given: Any) -> Ids:
    return [token async for chunk in client.generate(make_spec(ids, params, **given)) for token in chunk.ids]


async def until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends, "it never came true"
        await asyncio.sleep(0.01)


@pytest.mark.row("F-282", "F-570", "F-571")
async def test_replicas_answer_as_one_engine_with_all_experts(checkpoint: Path) -> None:
    params = [GREEDY, SEEDED, GREEDY, SEEDED]
    wanted = alone(checkpoint, PROMPTS, params)
    async with serving(configure(checkpoint)) as (found, _):
        first, second = found.replicas
        asked = list(zip(PROMPTS, params, strict=True))
        assert [await ask(first, *one) for one in asked] == wanted, "the other one has nothing to do"
        assert second.stats.tokens_total == 0
        assert second.stats.steps_total > 0
        both = await asyncio.gather(*(ask(client, *one) for one in asked for client in (second, first)))
        assert both == [answer for answer in wanted for _ in range(2)], "all at once, on both"
        assert first.stats.prefix_hits_total > 0


@pytest.mark.row("F-282", "F-570", "F-971")
@pytest.mark.parametrize("stages", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_experts_move_between_replicas_in_the_middle_of_answers(stages: int, checkpoint: Path) -> None:
    """Some of which nobody wants any more."""
    params = [GREEDY, SEEDED, GREEDY, SEEDED]
    wanted = alone(checkpoint, PROMPTS, params)
    moving = {"enable_eplb": True, "eplb_config": {"window_size": 3, "step_interval": 4}, "expert_map": UNEVEN}
    async with serving(configure(checkpoint, pipeline_parallel_size=stages, **moving)) as (found, _):
        first, second = found.replicas
        asked = list(zip(PROMPTS, params, strict=True))
        unwanted = [asyncio.create_task(ask(client, ids[1:], LONG)) for ids in PROMPTS for client in (first, second)]
        await until(lambda: first.stats.generation_tokens_total > 0 and second.stats.generation_tokens_total > 0)
        answers = asyncio.gather(*(ask(client, *one) for one in asked for client in (second, first)))
        await until(lambda: first.stats.experts is not None and first.stats.experts.balanced_total > 0)
        for task in unwanted:
            task.cancel()
        assert await answers == [answer for answer in wanted for _ in range(2)]
        assert [await ask(first, *one) for one in asked] == wanted, "the other one has nothing to do"
        await until(lambda: first.stats.steps_total == second.stats.steps_total)
        assert first.stats.experts is not None
        assert first.stats.experts.balanced_total >= 3
        assert first.stats.experts.moved_total > 0
        assert first.stats.experts == second.stats.experts == found.stats.experts


@pytest.mark.row("F-282", "F-570", "F-571")
@pytest.mark.parametrize(
    ("platform", "options"),
    [
        pytest.param("cuda", {}, id="cuda"),
        pytest.param("cuda", {"enforce_eager": True}, id="cuda-eager", marks=pytest.mark.slow),
        pytest.param("cuda", {"tensor_parallel_size": 2}, id="cuda-4-ranks", marks=pytest.mark.slow),
        pytest.param("cuda", {"quantization": "fp8"}, id="cuda-fp8", marks=pytest.mark.slow),
        pytest.param("xpu", {}, id="xpu", marks=pytest.mark.slow),
        pytest.param("rocm", {"pipeline_parallel_size": 2}, id="rocm-stages", marks=pytest.mark.slow),
        pytest.param("hpu", {}, id="hpu"),
        pytest.param("hpu", {"enforce_eager": True}, id="hpu-eager", marks=pytest.mark.slow),
    ],
)
async def test_replicas_on_accelerators_answer_as_one_engine(
    platform: str, options: dict[str, Any], checkpoint: Path
) -> None:
    """Emulated ones, where captured steps of the same size are replayed on all, and experts move under them."""
    params = [GREEDY, SEEDED, GREEDY, SEEDED]
    plain = {name: value for name, value in options.items() if name == "quantization"}
    wanted = alone(checkpoint, PROMPTS, params, reference_ops=True, **plain)
    moving = {"enable_eplb": True, "eplb_config": {"window_size": 3, "step_interval": 4}, "expert_map": UNEVEN}
    given = {"platform": platform, "emulate": True, "num_gpu_blocks_override": 40, **moving, **options}
    if "tensor_parallel_size" in options:
        given["expert_map"] = "[3,0,2,0,1,1,2,3]"
    async with serving(configure(checkpoint, **given)) as (found, _):
        first, second = found.replicas
        asked = list(zip(PROMPTS, params, strict=True))
        assert [await ask(first, *one) for one in asked] == wanted, "the other one has nothing to do"
        both = await asyncio.gather(*(ask(client, *one) for one in asked for client in (second, first)))
        assert both == [answer for answer in wanted for _ in range(2)], "all at once, on both"
        before = second.stats.generation_tokens_total
        beside = asyncio.create_task(ask(second, PROMPTS[1], LONG))
        await until(lambda: second.stats.generation_tokens_total > before)
        assert await asyncio.gather(*(ask(first, *one) for one in asked)) == wanted, "more on the one than the other"
        assert len(await beside) == 60
        assert first.stats.experts is not None
        assert first.stats.experts.moved_total > 0


@pytest.mark.row("F-282")
async def test_all_fail_with_the_one_that_is_killed_and_all_come_back(checkpoint: Path) -> None:
    (wanted,) = alone(checkpoint, PROMPTS[:1], [GREEDY])
    async with serving(configure(checkpoint)) as (found, supervisors):
        first, second = found.replicas
        pids = [one.process.pid for one in supervisors.replicas]
        asked = [asyncio.create_task(ask(client, PROMPTS[0], LONG)) for client in (first, second, second)]
        await until(lambda: first.stats.generation_tokens_total > 0 and second.stats.generation_tokens_total > 0)
        supervisors.replicas[1].process.kill()
        ends = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(end) for end in ends} == {EngineDied}
        killed = "the engine process was killed by signal 9"
        because = f"replica 1 is gone, with which this one shares experts: {killed}"
        assert [str(end) for end in ends] == [because, killed, killed]
        await until(lambda: [client.status.state for client in found.replicas] == ["ready", "ready"])
        assert not {one.process.pid for one in supervisors.replicas} & set(pids)
        assert [await ask(client, PROMPTS[0], GREEDY) for client in found.replicas] == [wanted] * 2


@pytest.mark.row("F-282")
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"tensor_parallel_size": 2},
        {"pipeline_parallel_size": 2},
        {"pipeline_parallel_size": 2, "tensor_parallel_size": 2, "expert_map": "[3,0,2,0,1,1,2,3]"},
        {"quantization": "int8"},
        {"quantization": "sym_int4"},
        {"reference_ops": True},
        {"enable_prefix_caching": False},
        {"expert_map": "[0,1,1,0,1,1,1,0]"},
        {"distributed_executor_backend": "mp"},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "adaptive": False}},
    ],
    ids=str,
)
async def test_what_else_an_engine_does_changes_no_answer(options: dict[str, Any], checkpoint: Path) -> None:
    params = [GREEDY, SEEDED, GREEDY, SEEDED]
    plain = {name: value for name, value in options.items() if name in ("quantization", "reference_ops")}
    wanted = alone(checkpoint, PROMPTS, params, **plain)
    async with serving(configure(checkpoint, **options)) as (found, _):
        first, second = found.replicas
        asked = list(zip(PROMPTS, params, strict=True))
        assert await asyncio.gather(*(ask(first, *one) for one in asked)) == wanted
        both = await asyncio.gather(*(ask(client, *one) for one in asked for client in (second, first)))
        assert both == [answer for answer in wanted for _ in range(2)]


@pytest.mark.row("F-282")
@pytest.mark.slow
async def test_who_is_preempted_goes_on_as_before(checkpoint: Path) -> None:
    prompts = [list(range(first, first + 25)) for first in (5, 6, 7)]
    params = [LONG, LONG.replace(temperature=0.9, seed=3), LONG]
    wanted = alone(checkpoint, prompts, params)
    async with serving(configure(checkpoint, num_gpu_blocks_override=5)) as (found, _):
        asked = list(zip(prompts, params, strict=True))
        both = await asyncio.gather(*(ask(client, *one) for one in asked for client in found.replicas))
        assert both == [answer for answer in wanted for _ in range(2)]
        assert all(client.stats.preemptions_total > 0 for client in found.replicas)


@pytest.mark.row("F-570")
@pytest.mark.slow
@pytest.mark.parametrize("family", SHAPES)
async def test_families_route_before_tokens_are_sent(family: str, tmp_path: Path) -> None:
    path = tiny(family, tmp_path, **SHAPES[family])
    wanted = alone(path, PROMPTS, [GREEDY] * 4)
    async with serving(configure(path)) as (found, _):
        first, second = found.replicas
        assert [await ask(second, ids, GREEDY) for ids in PROMPTS] == wanted
        both = await asyncio.gather(*(ask(client, ids, GREEDY) for ids in PROMPTS for client in (first, second)))
        assert both == [answer for answer in wanted for _ in range(2)]


@pytest.mark.row("F-282")
@pytest.mark.slow
async def test_what_others_compute_changes_no_bit(checkpoint: Path) -> None:
    """In bfloat16, where another order of sums would show."""
    async with serving(configure(checkpoint, dtype="bfloat16")) as (found, _):
        first, second = found.replicas
        quiet = [await ask(first, ids, params) for ids in PROMPTS for params in (GREEDY, SEEDED)]
        busy = [asyncio.create_task(ask(second, ids[1:], LONG)) for ids in PROMPTS for _ in range(2)]
        await until(lambda: second.stats.generation_tokens_total > 0)
        assert [await ask(first, ids, params) for ids in PROMPTS for params in (GREEDY, SEEDED)] == quiet
        await asyncio.gather(*busy)


@pytest.mark.row("F-282")
@pytest.mark.slow
async def test_one_rank_that_is_killed_is_named_to_all(checkpoint: Path) -> None:
    async with serving(configure(checkpoint, tensor_parallel_size=2)) as (found, supervisors):
        first, second = found.replicas
        asked = [asyncio.create_task(ask(client, PROMPTS[0], LONG)) for client in (first, second)]
        await until(lambda: first.stats.generation_tokens_total > 0 and second.stats.generation_tokens_total > 0)
        engine = supervisors.replicas[0].process.pid
        workers = children_of(engine)
        os.kill(workers[1], signal.SIGKILL)
        ends = [str(end) for end in await asyncio.gather(*asked, return_exceptions=True)]
        gone = "the worker of rank 1 is gone (exit code -9)"
        assert ends == [gone, f"replica 0 is gone, with which this one shares experts: {gone}"]
        await until(lambda: [client.status.state for client in found.replicas] == ["ready", "ready"])
        assert len(await ask(second, PROMPTS[0], GREEDY)) == 12


@pytest.mark.row("F-282")
@pytest.mark.slow
async def test_adapters_of_other_layers_go_with_it(checkpoint: Path, tmp_path: Path) -> None:
    modules = [name for name in linear_layers(checkpoint) if "self_attn" in name]
    folder = write_adapter(tmp_path, checkpoint, modules, spread=0.3)
    with LLM(str(checkpoint), enable_lora=True, **OPTIONS) as llm:
        given = [{"prompt_token_ids": ids} for ids in PROMPTS]
        answers = llm.generate(given, GREEDY, lora_request=LoRARequest("a", 1, str(folder)), use_tqdm=False)
        wanted = [list(one.outputs[0].token_ids) for one in answers]
    assert wanted != alone(checkpoint, PROMPTS, [GREEDY] * 4)
    async with serving(configure(checkpoint, enable_lora=True, lora_modules=[f"a={folder}"])) as (found, _):
        adapted = [ask(client, ids, GREEDY, adapter="a") for ids in PROMPTS for client in found.replicas]
        plain = [ask(client, ids, GREEDY) for ids in PROMPTS for client in found.replicas]
        both = await asyncio.gather(*adapted, *plain)
        assert both[:8] == [answer for answer in wanted for _ in range(2)]


@pytest.mark.row("F-282")
async def test_they_are_not_replaced_one_by_one(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = configure(checkpoint)
    supervisors = Supervisors(config.replicas())
    clients = tuple(SocketClient(config, address, letters(64)) for address in supervisors.addresses)
    Renewal(clients, supervisors, drain=1.0).begin()
    assert "they share experts, so none answers without the others" in caplog.text
    supervisors.stop()
