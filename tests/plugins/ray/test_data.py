"""Batches through engines that Ray Data starts; needs ``pip install -e '.[ray]' 'ray[data]'``."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from lsv.cli import main
from lsv_base.errors import ConfigError

pytest.importorskip("ray")
pytest.importorskip("pyarrow")

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "offline" / "ray_data.py"
ENGINE = ("--dtype", "float32", "--max-model-len", "128", "--max-num-seqs", "8", "--platform", "cpu")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    lines = [{"prompt": list(range(5, 5 + length)), "output_len": 4} for length in range(3, 15)]
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return file


def bench(checkpoint: str, address: str, *words: object) -> int:
    line = ["bench", "offline", checkpoint, *ENGINE, "--ray-address", address, *words]
    return main.main([str(word) for word in line])


@pytest.mark.row("F-096", "F-880")
def test_a_file_is_answered_by_several_engines(cluster: Any, checkpoint: str, prompts: Path, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    words = ("--data", prompts, "--num-prompts", "12", "--instances", "2", "--batch-size", "4", "--output", file)
    assert bench(checkpoint, cluster.address, *words) == 0
    saved = json.loads(file.read_text())
    figures = saved["runs"][0]["figures"]
    assert (saved["kind"], figures["instances"], figures["requests"]) == ("offline", 2, 12)
    assert (figures["input_tokens"], figures["output_tokens"]) == (sum(range(3, 15)), 12 * 4)
    assert figures["output_tokens_per_s"] > 0


@pytest.mark.row("F-096")
def test_an_engine_of_several_ranks_is_one_actor(cluster: Any, checkpoint: str, prompts: Path, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    words = ("--data", prompts, "--num-prompts", "4", "-tp", "2", "--output", file)
    assert bench(checkpoint, cluster.address, *words) == 0
    assert json.loads(file.read_text())["runs"][0]["figures"]["output_tokens"] == 16


def test_more_engines_than_there_is_room_for_are_refused(
    cluster: Any, checkpoint: str, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(checkpoint, cluster.address, "--data", prompts, "--instances", "3", "-tp", "2") == 2
    assert "has room for 2 of 3 engines, each of which needs 2 CPU of one machine" in capsys.readouterr().err


@pytest.mark.row("F-899")
def test_the_example_writes_answers(cluster: Any, checkpoint: str, tmp_path: Path) -> None:
    import ray

    (tmp_path / "prompts.txt").write_text("Hello\nThe capital of France is\nOne two\n")
    spec = importlib.util.spec_from_file_location("ray_data_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    ray.cloudpickle.register_pickle_by_value(module)
    ray.init(address=cluster.address, configure_logging=False)
    try:
        module.main([str(tmp_path / "prompts.txt"), str(tmp_path / "answers"), "--model", checkpoint, *ENGINE])
    finally:
        ray.shutdown()
        sys.modules.pop(spec.name)
    lines = [json.loads(line) for file in (tmp_path / "answers").iterdir() for line in file.read_text().splitlines()]
    assert sorted(line["prompt"] for line in lines) == ["Hello", "One two", "The capital of France is"]
    assert all("generated" in line for line in lines)


def test_engines_over_machines_are_refused(checkpoint: str) -> None:
    from lsv.config import Topology
    from lsv_bench.commands.offline import check
    from lsv_testing.fakes.engine import engine_config

    with pytest.raises(ConfigError, match="each of the --instances is on one machine"):
        check(engine_config(executor="ray"))
    with pytest.raises(ConfigError, match="--instances says how many engines there are"):
        check(engine_config(topology=Topology(data=2)))
