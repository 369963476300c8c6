"""Two emulated devices give the tokens of one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from lsv import LLM, SamplingParams
from lsv_base.processes.ports import free_port
from lsv_base.processes.process import Process
from lsv_testing.tiny import tiny


def answers(checkpoint: Path, ranks: int, platform: str, **more: Any) -> list[tuple[int, ...]]:
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": list(range(5, 5 + length))} for length in (1, 17, 40)]
    with LLM(
        str(checkpoint),
        platform=platform,
        emulate=platform == "xpu",
        tensor_parallel_size=ranks,
        dtype="float32",
        max_model_len=64,
        num_gpu_blocks_override=16,
        skip_tokenizer_init=True,
        **more,
    ) as llm:
        return [answer.outputs[0].token_ids for answer in llm.generate(prompts, params, use_tqdm=False)]


@pytest.mark.row("F-464", "F-588", "F-589", "F-590")
def test_ranks_of_two_machines_give_the_tokens_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second process stands for the other machine."""
    monkeypatch.setenv("LSV_CLUSTER_KEY", "a secret of two machines")
    checkpoint, port = tiny("llama", tmp_path / "llama", tokenizer=True), free_port()
    nodes = {"nnodes": 2, "master_addr": "127.0.0.1", "master_port": port, "node_timeout": 60}
    given = {**nodes, "platform": "xpu", "dtype": "float32", "max_model_len": 64, "num_gpu_blocks_override": 16}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    flags += ["--headless", "--emulate", "--node-rank=1", "-tp=2"]
    command = [sys.executable, "-m", "lsv", "serve", str(checkpoint)]
    with (tmp_path / "log").open("wb") as log, Process([*command, *flags], stdout=log, stderr=log) as other:
        assert answers(checkpoint, 2, "xpu", node_rank=0, **nodes) == answers(checkpoint, 1, "cpu")
        assert other.wait(30) == 0, (tmp_path / "log").read_text()


@pytest.mark.row("F-464", "F-583")
@pytest.mark.parametrize("family", ["llama", pytest.param("qwen3_moe", marks=pytest.mark.slow)])
def test_two_ranks_give_the_tokens_of_one(family: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    checkpoint = tiny(family, tmp_path / family)
    assert answers(checkpoint, 2, "xpu") == answers(checkpoint, 1, "cpu")
    said = capfd.readouterr().err
    for rank in range(2):
        assert f"rank {rank} lsv_xpu.emulation.platform: EMULATED" in said
        assert f"rank {rank} lsv_xpu.links: oneCCL: CCL_TOPO_P2P_ACCESS=1" in said
        assert f"rank {rank} of 2, the {rank + 1}. of 2 here; they meet at /" in said
