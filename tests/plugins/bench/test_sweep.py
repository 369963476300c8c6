"""Which points a sweep measures."""

import json
from pathlib import Path

import pytest

from lsv.settings import Declared, Setting
from lsv_base.errors import ConfigError
from lsv_bench.commands import latency, serve
from lsv_bench.sweep import read_steps, steps

SERVE = Declared(serve.SETTINGS)
LATENCY = Declared((*latency.SETTINGS, Setting(name="block_size", type="int")))


def values(suite: str) -> list[object]:
    return [next(iter(step.point.values())) for step in steps(suite, "serve", SERVE)]


@pytest.mark.row("F-883", "F-884", "F-885", "F-886")
def test_the_suites_have_the_documented_values() -> None:
    assert values("rate") == ["1", "2", "4", "8", "16", "32", "inf"]
    assert values("concurrency") == [1, 2, 4, 8, 16, 32, 64, 128]
    assert values("input") == [128, 256, 512, 1024, 2048, 4096, 8192, 16384]
    assert values("output") == [64, 128, 256, 512, 1024, 2048]


def test_points_send_enough_requests_unless_told_how_many() -> None:
    assert [s.changes["num_prompts"] for s in steps("concurrency", "serve", SERVE, ["1", "64"])] == [16, 256]
    assert [s.changes["num_prompts"] for s in steps("rate", "serve", SERVE, ["1", "32", "inf"])] == [16, 256, 256]
    (step,) = steps("concurrency", "serve", SERVE, ["64"], prompts=5)
    assert step.changes == step.point == {"max_concurrency": 64}


def test_offline_concurrency_is_the_batch_and_there_is_no_rate() -> None:
    assert steps("concurrency", "latency", LATENCY, ["2"])[0].changes == {"batch_size": 2}
    assert steps("input", "latency", LATENCY, ["1k"])[0].point == {"random_input_len": 1000}
    with pytest.raises(ConfigError, match="lsv bench sweep serve"):
        steps("rate", "latency", LATENCY)
    with pytest.raises(ConfigError, match="batch-size must be a whole number"):
        steps("concurrency", "latency", LATENCY, ["x"])


@pytest.mark.row("F-316", "F-888")
def test_points_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "points.json"
    path.write_text(json.dumps([{"request-rate": 4, "input_len": "1k"}, {"burstiness": 0.5}]))
    first, second = read_steps(str(path), SERVE)
    assert first.changes == {"request_rate": "4", "random_input_len": 1000}
    assert second.point == {"burstiness": 0.5}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "can't be read"),
        ("[]", "must hold a list"),
        ("[1]", "must hold a list"),
        ('[{"batch_size": 1}, {"speed": 1}]', "entry 1: speed is not an option"),
        ('[{"block_size": 16}]', "entry 0: block_size is not an option"),
        ('[{"batch_size": 0}]', "entry 0: batch-size must be at least 1"),
    ],
)
def test_files_of_points_are_refused_by_entry(tmp_path: Path, content: str, why: str) -> None:
    path = tmp_path / "points.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=why):
        read_steps(str(path), LATENCY)
