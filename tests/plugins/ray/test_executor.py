"""Ranks on the machines of a Ray cluster; needs ``pip install -e '.[ray]'``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lsv import LLM, SamplingParams
from lsv_base.errors import ConfigError, EngineDied

pytest.importorskip("ray")

from ray.cluster_utils import Cluster

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, detokenize=False)
PROMPTS = [{"prompt_token_ids": list(range(5, 5 + length))} for length in (3, 17, 40)]
PLAIN: dict[str, Any] = {"dtype": "float32", "max_model_len": 128, "skip_tokenizer_init": True, "max_num_seqs": 8}


def answers(llm: LLM) -> list[tuple[int, ...]]:
    return [one.outputs[0].token_ids for one in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]


def keep_answering(llm: LLM) -> None:
    for _ in range(1000):
        answers(llm)


@pytest.mark.row("F-276", "F-280", "F-565")
def test_four_ranks_on_two_machines_answer_as_one(cluster: Cluster, checkpoint: str) -> None:
    with LLM(checkpoint, **PLAIN) as llm:
        expected = answers(llm)
    spread = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "ray_address": cluster.address}
    with LLM(checkpoint, distributed_executor_backend="ray", **spread, **PLAIN) as llm:
        assert answers(llm) == expected


@pytest.mark.row("F-581", "F-806")
def test_workers_reach_the_driver_at_its_own_address(
    cluster: Cluster, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_HOST_IP", "127.0.0.4")
    spread = {"tensor_parallel_size": 2, "ray_address": cluster.address}
    with LLM(checkpoint, distributed_executor_backend="ray", **spread, **PLAIN) as llm:
        assert len(answers(llm)) == len(PROMPTS)
        assert "0400007F" in Path("/proc/net/tcp").read_text(), "the ranks meet there (proc(5): little-endian)"
    monkeypatch.setenv("VLLM_HOST_IP", "203.0.113.1")
    with pytest.raises(ConfigError, match=r"host_ip=203\.0\.113\.1 is not an address of this machine"):
        LLM(checkpoint, distributed_executor_backend="ray", **spread, **PLAIN)


@pytest.mark.row("F-464", "F-588", "F-589")
def test_emulated_intel_gpus_on_two_machines_answer_as_one(cluster: Cluster, checkpoint: str) -> None:
    with LLM(checkpoint, **PLAIN) as llm:
        expected = answers(llm)
    spread = {"tensor_parallel_size": 2, "ray_address": cluster.address, "num_gpu_blocks_override": 32}
    with LLM(checkpoint, platform="xpu", emulate=True, distributed_executor_backend="ray", **spread, **PLAIN) as llm:
        assert answers(llm) == expected


@pytest.mark.row("F-285", "F-871")
def test_workers_are_started_under_nsight(cluster: Cluster, checkpoint: str, nsys: Path) -> None:
    options = {"distributed_executor_backend": "ray", "ray_address": cluster.address, "ray_workers_use_nsight": True}
    options["load_timeout"] = 60
    with LLM(checkpoint, tensor_parallel_size=2, profiler_config={"profiler": "cuda"}, **options, **PLAIN) as llm:
        assert answers(llm)
    calls = [file.read_text().splitlines() for file in nsys.glob("words.*")]
    workers = [call for call in calls if any("default_worker.py" in word for word in call)]
    assert len(workers) >= 2
    assert {"profile", "cuda,nvtx,osrt,cudnn,cublas", "--capture-range=cudaProfilerApi"} <= set(workers[0])


def test_a_cluster_without_room_is_told_of(cluster: Cluster, checkpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"no room for 2 workers of 64 CPU each: it has 4 CPU"):
        LLM(
            checkpoint, distributed_executor_backend="ray", tensor_parallel_size=2, ray_address=cluster.address,
            ray_cpus=64, load_timeout=5, **PLAIN,
        )  # fmt: skip


def test_no_cluster_at_an_address_is_told_of(checkpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"ray\.address=127\.0\.0\.1:1"):
        LLM(checkpoint, distributed_executor_backend="ray", ray_address="127.0.0.1:1", **PLAIN)


def test_the_machine_of_a_lost_worker_is_named(cluster: Cluster, checkpoint: str) -> None:
    lost = cluster.add_node(num_cpus=2, resources={"spare": 2})
    options = {"ray_resource": "spare", "ray_address": cluster.address, "tensor_parallel_size": 2}
    with LLM(checkpoint, distributed_executor_backend="ray", **options, **PLAIN) as llm:
        answers(llm)
        cluster.remove_node(lost, allow_graceful=False)
        with pytest.raises(EngineDied, match=r"the worker of rank \d on Ray node .* is gone"):
            keep_answering(llm)
