"""``lsv doctor --collectives``: ranks that torchrun starts check how they understand each other."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from lsv.settings.launchers import LaunchedRank, read_rank
from lsv_base.errors import ConfigError
from lsv_doctor.collectives import _check_graph

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
CHECK = ["-m", "lsv", "doctor", "--collectives"]
RIGHT = "all_reduce, all_gather and broadcast are right on 2 ranks"


def launch(*words: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [*TORCHRUN, *words], env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.row("F-584")
@pytest.mark.parametrize(
    ("platform", "graph"),
    [
        ("cuda", "all_reduce is right on 2 ranks"),
        pytest.param("cpu", "this platform captures none", marks=pytest.mark.slow),
        pytest.param("xpu", "this platform captures none", marks=pytest.mark.slow),
        pytest.param("hpu", "this platform captures none", marks=pytest.mark.slow),
    ],
)
def test_ranks_of_torchrun_are_checked(platform: str, graph: str) -> None:
    more = [] if platform == "cpu" else ["--emulate"]
    said = launch("--nproc-per-node=2", *CHECK, "--platform", platform, *more)
    assert said.splitlines() == [
        f"ok  gloo: {RIGHT}",
        f"ok  {platform}: {RIGHT}",
        f"ok  {platform}, in a graph: {graph}",
    ]


def test_a_wrong_sum_of_a_graph_is_named() -> None:
    class Device:
        torch_device = torch.device("cpu")

        def compile(self, step: object, shape: object, *, eager: bool) -> object:
            captured = step().clone()  # type: ignore[operator]
            return lambda: captured

    class Communicator:
        def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    launched = LaunchedRank(0, 2, 0, 2, "127.0.0.1", 1, served=True)
    with pytest.raises(ConfigError, match="all_reduce in a graph gave 2 on rank 0, not 3"):
        _check_graph(Device(), Communicator(), launched)  # type: ignore[arg-type]


def test_a_process_without_a_rank_is_told_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "5"}
    for name, value in {**given, "MASTER_ADDR": "head", "TORCHELASTIC_USE_AGENT_STORE": "True"}.items():
        monkeypatch.setenv(name, value)
    assert read_rank() == LaunchedRank(1, 4, 1, 2, "head", 5, served=True)
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(ConfigError, match=r"start it by torchrun, as torchrun --nproc-per-node=2 -m lsv doctor"):
        read_rank()
