"""Replicas that share the experts of a mixture: engine processes that step together, live and die together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lsv import LLM, SamplingParams
from lsv.config import EngineConfig
from lsv.engine.replicas.replica_set import ReplicaSet
from lsv.engine.replicas.supervisors import Supervisors
from lsv.engine.socket_client import SocketClient
from lsv.engine.supervision.supervisor import RestartPolicy
from lsv.errors import EngineDied
from lsv.llm import read_arguments
from lsv.resolve import resolve
from lsv.testing.fakes.requests import make_spec
from lsv.testing.fakes.text import letters
from lsv.testing.tiny import tiny

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


async def ask(client: SocketClient, ids: Ids, params: SamplingParams) -> Ids:
    return [token async for chunk in client.generate(make_spec(ids, params)) for token in chunk.ids]


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
        {"quantization": "int8"},
        {"quantization": "sym_int4"},
        {"reference_ops": True},
        {"num_gpu_blocks_override": 9},  # no room for two of the prompts: one is preempted
        {"enable_prefix_caching": False},
        {"expert_map": "[0,1,1,0,1,1,1,0]"},
        {"distributed_executor_backend": "mp"},
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
