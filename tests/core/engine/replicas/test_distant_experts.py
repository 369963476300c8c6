"""Replicas on several machines that share the experts of a mixture: processes here, over loopback."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from lsv import LLM, SamplingParams
from lsv.config import EngineConfig
from lsv.resolve import resolve
from lsv_base.errors import EngineDied
from lsv_offline.llm import read_arguments
from lsv_testing.tiny import tiny

from .conftest import answer, states, until
from .machines import HERE, KEY, Head, engine_of, find_port, head, node, words

pytestmark = pytest.mark.xdist_group("replica_nodes")

OPTIONS: dict[str, Any] = {
    "dtype": "float32", "max_model_len": 128, "skip_tokenizer_init": True, "max_num_batched_tokens": 24,
    "enable_chunked_prefill": True, "max_num_seqs": 8, "kv_cache_memory_bytes": 1 << 20,
}  # fmt: skip
PROMPTS = [list(range(5, 5 + length)) for length in (3, 17, 40)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, detokenize=False)
SEEDED = GREEDY.replace(temperature=0.9, seed=7)
LONG = GREEDY.replace(max_tokens=80)
ASKED = [(ids, params) for ids in PROMPTS for params in (GREEDY, SEEDED)]
GONE = "replica {} is gone, with which this one shares experts: {}"
KILLED = "the engine process was killed by signal 9"
LOST = "the node at 127.0.0.1 with replica 1 is lost"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSV_CLUSTER_KEY", KEY)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("qwen3_moe", tmp_path_factory.mktemp("model"), num_experts=8, mlp_only_layers=[])


@pytest.fixture(scope="module")
def wanted(checkpoint: Path) -> Sequence[list[int]]:
    """What one engine answers that has all experts."""
    with LLM(str(checkpoint), **OPTIONS) as llm:
        prompts = [{"prompt_token_ids": ids} for ids, _ in ASKED]
        answers = llm.generate(prompts, [params for _, params in ASKED], use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in answers]


def configure(path: Path, **options: Any) -> EngineConfig:
    """Of the first of two machines."""
    given = {
        "data_parallel_size": 2, "data_parallel_size_local": 1, "data_parallel_address": HERE,
        "data_parallel_rpc_port": find_port(), "enable_expert_parallel": True, "node_timeout": 60.0,
    }  # fmt: skip
    return resolve(*read_arguments({"model": str(path), **OPTIONS, **given, **options}))


@pytest.mark.row("F-570", "F-571", "F-574", "F-599")
@pytest.mark.parametrize("platform", ["cpu", pytest.param("cuda", marks=pytest.mark.slow)])
async def test_machines_share_experts_and_answer_as_one_engine_with_all(
    platform: str, checkpoint: Path, wanted: Sequence[list[int]]
) -> None:
    """In the midst of requests that nobody wants any more. A GPU is an emulated one."""
    config = configure(checkpoint, platform=platform, emulate=platform != "cpu")
    with node(config) as other:
        async with head(config, vocabulary=64) as found:
            await found.client.ready()
            near, far = found.client.replicas
            assert [await answer(near, params, ids=ids) for ids, params in ASKED] == wanted, "the other has no request"
            assert far.stats.tokens_total == 0
            assert far.stats.steps_total > 0
            unwanted = [asyncio.create_task(answer(one, LONG, ids=ids[1:])) for ids in PROMPTS for one in (near, far)]
            await until(lambda: near.stats.generation_tokens_total > 80 and far.stats.generation_tokens_total > 0)
            asked = [answer(one, params, ids=ids) for ids, params in ASKED for one in (far, near)]
            answers = asyncio.gather(*asked)
            await until(lambda: near.stats.running > 3)
            for task in unwanted:
                task.cancel()
            assert await answers == [each for each in wanted for _ in range(2)]
        assert "node 0 has ended" in await words(other)
    assert other.returncode == 0


async def fail_both(found: Head, end: Callable[[], None]) -> list[str]:
    """What a request of each of two replicas ends with, in the midst of which something ends."""
    near, far = found.client.replicas
    before = near.stats.generation_tokens_total, far.stats.generation_tokens_total
    asked = [asyncio.create_task(answer(one, LONG)) for one in (near, far)]
    await until(lambda: near.stats.generation_tokens_total > before[0])
    await until(lambda: far.stats.generation_tokens_total > before[1])
    end()
    ends = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(one) for one in ends} == {EngineDied}
    return [str(one) for one in ends]


async def both_answer(found: Head, wanted: Sequence[list[int]]) -> None:
    """Once they are there."""
    await until(lambda: states(found.client) == {"ready"})
    assert [await answer(one, ASKED[0][1], ids=ASKED[0][0]) for one in found.client.replicas] == [wanted[0]] * 2


@pytest.mark.row("F-282", "F-574")
async def test_a_machine_that_is_lost_takes_the_others_along_and_all_come_back(
    checkpoint: Path, wanted: Sequence[list[int]]
) -> None:
    config = configure(checkpoint)
    async with head(config, vocabulary=64) as found:
        with node(config) as other:
            await found.client.ready()
            assert await fail_both(found, other.kill) == [GONE.format(1, LOST), LOST]
        with node(config):
            await both_answer(found, wanted)


@pytest.mark.row("F-282")
@pytest.mark.slow
async def test_engines_of_all_machines_end_with_the_first_and_are_started_again(
    checkpoint: Path, wanted: Sequence[list[int]]
) -> None:
    config = configure(checkpoint)
    with node(config, restarts=2) as other:
        async with head(config, restarts=2, vocabulary=64) as found:
            await found.client.ready()
            pid = engine_of(other)
            assert await fail_both(found, lambda: os.kill(pid, signal.SIGKILL)) == [GONE.format(1, KILLED), KILLED]
            await both_answer(found, wanted)
            assert engine_of(other) != pid
            mine = found.supervisors.replicas[0].process
            assert await fail_both(found, mine.kill) == [KILLED, GONE.format(0, KILLED)]
            await both_answer(found, wanted)
            os.kill(engine_of(other), signal.SIGKILL)
            await until(lambda: states(found.client) == {"dead"})  # there are no restarts left on any machine
        assert GONE.format(1, KILLED) in str(found.client.status.error)


@pytest.mark.slow
async def test_a_server_that_is_lost_takes_its_machines_along(checkpoint: Path, wanted: Sequence[list[int]]) -> None:
    config = configure(checkpoint)
    with node(config, restarts=3) as other:
        async with head(config, vocabulary=64) as found:
            await found.client.ready()
            first = engine_of(other)
            for host in found.reception._hosts:
                host.line.close()  # as if the process were killed: nobody says goodbye
        async with head(config, vocabulary=64) as found:
            await found.client.ready()
            await both_answer(found, wanted)
            assert engine_of(other) != first


@pytest.mark.row("F-282", "F-570")
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"tensor_parallel_size": 2},
        {"pipeline_parallel_size": 2},
        {"data_parallel_size": 3},
        {"data_parallel_size_local": 0},
        {"enable_eplb": True, "eplb_config": {"window_size": 3, "step_interval": 4}, "expert_map": "[1,0,0,1,0,1,0,1]"},
        {"data_parallel_size_local": None, "data_parallel_address": None, "nnodes": 2, "node_rank": 0,
         "master_addr": HERE},
    ],
    ids=str,
)  # fmt: skip
async def test_what_else_an_engine_does_changes_no_answer(
    options: dict[str, Any], checkpoint: Path, wanted: Sequence[list[int]]
) -> None:
    config = configure(checkpoint, **options)
    with node(config):
        async with head(config, vocabulary=64) as found:
            await found.client.ready()
            asked = [answer(one, params, ids=ids) for ids, params in ASKED for one in found.client.replicas]
            assert await asyncio.gather(*asked) == [each for each in wanted for _ in found.client.replicas]
            if "enable_eplb" in options:
                assert found.client.stats.experts is not None
                assert found.client.stats.experts.moved_total > 0
