"""Benchmark arithmetic: percentiles, arrivals, goodput, batches, memory, stages."""

import itertools
import statistics
from pathlib import Path

import pytest

from lsv_base.errors import ConfigError, Unavailable
from lsv_bench.arrivals import Arrivals
from lsv_bench.figures import better, medians, percentile, split, spread
from lsv_bench.load import LoadRun, Outcome
from lsv_bench.memory import measure_memory
from lsv_bench.offline import Batch
from lsv_bench.offline import summarise as summarise_batches
from lsv_bench.server import Health, Stages
from lsv_bench.serving import errors, read_targets, summarise


def test_percentiles_are_nearest_rank() -> None:
    values = [float(n) for n in range(1, 101)]
    assert [percentile(values, p) for p in (1, 50, 99, 100)] == [1.0, 50.0, 99.0, 100.0]
    assert percentile([3.0], 99) == 3.0
    assert percentile([], 50) == 0.0


def test_a_spread_is_in_milliseconds_and_can_be_split_again() -> None:
    found = spread("ttft", [0.1, 0.3], (50, 99.9))
    assert found == pytest.approx({"ttft_mean_ms": 200.0, "ttft_p50_ms": 100.0, "ttft_p99.9_ms": 300.0})
    assert [split(name) for name in found] == [("ttft", "mean"), ("ttft", "p50"), ("ttft", "p99.9")]
    assert split("first_answer_ms") is None
    assert spread("tpot", []) == {}


def test_medians_and_directions() -> None:
    assert medians([{"a": 1}, {"a": 5, "b": 2}, {"a": 3}]) == {"a": 3, "b": 2}
    assert [better(n) for n in ("output_tokens_per_s", "good_percent", "ttft_p50_ms", "ready_s", "memory_mib")] == [
        "higher", "higher", "lower", "lower", "lower",
    ]  # fmt: skip
    assert [better(n) for n in ("errors", "seconds", "requests", "cached_tokens")] == ["lower", "lower", None, None]


def test_arrivals_at_once_and_by_a_seeded_process() -> None:
    assert Arrivals().times(3, 0) == [0.0, 0.0, 0.0]
    poisson = Arrivals(rate=10.0)
    assert poisson.times(50, 1) == poisson.times(50, 1) != poisson.times(50, 2)
    times = poisson.times(4000, 1)
    assert times[0] == 0.0
    assert times == sorted(times)
    assert times[-1] == pytest.approx(400, rel=0.05)
    assert poisson.times(1, 1) == [0.0]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 16.0])
def test_burstiness_is_the_shape_of_the_gaps(burstiness: float) -> None:
    times = Arrivals(rate=10.0, burstiness=burstiness).times(20_000, 1)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert statistics.fmean(gaps) == pytest.approx(0.1, rel=0.05)
    assert statistics.stdev(gaps) / statistics.fmean(gaps) == pytest.approx(burstiness**-0.5, rel=0.05)


@pytest.mark.parametrize("ramp", ["linear", "exponential"])
def test_a_ramp_begins_slowly(ramp: str) -> None:
    times = Arrivals(rate=100.0, ramp=ramp, start_rate=1.0, burstiness=1e6).times(101, 0)
    assert times[1] - times[0] == pytest.approx(1.0, rel=0.1)
    assert times[-1] - times[-2] == pytest.approx(0.01, rel=0.1)


def load_run() -> LoadRun:
    good = Outcome(ttft=0.1, gaps=[0.1, 0.2], e2el=0.4, input_tokens=8, cached_tokens=4, output_tokens=3)
    slow = Outcome(ttft=0.9, gaps=[], e2el=0.9, input_tokens=8, output_tokens=1)
    failed = Outcome(e2el=9.0, error="refused")
    return LoadRun([good, slow, failed, failed], 2.0, 3)


def test_figures_of_a_server() -> None:
    found = summarise(
        load_run(), metrics=("ttft", "tpot", "itl", "e2el"), percents=(50,), targets={"ttft": 0.5, "tpot": 0.2}
    )
    assert found == pytest.approx({
        "requests": 2, "errors": 2, "peak_concurrency": 3, "seconds": 2.0, "requests_per_s": 1.0,
        "input_tokens": 16, "cached_tokens": 4, "output_tokens": 4, "output_tokens_per_s": 2.0,
        "total_tokens_per_s": 10.0, "goodput_per_s": 0.5, "good_percent": 25.0,
        "ttft_mean_ms": 500.0, "ttft_p50_ms": 100.0, "tpot_mean_ms": 150.0, "tpot_p50_ms": 150.0,
        "itl_mean_ms": 150.0, "itl_p50_ms": 100.0, "e2el_mean_ms": 650.0, "e2el_p50_ms": 400.0,
    })  # fmt: skip
    assert errors(load_run().outcomes) == {"refused": 2}
    plain = summarise(load_run(), metrics=("ttft",), percents=(99,), targets={})
    assert "goodput_per_s" not in plain
    assert not any(name.startswith("itl") for name in plain)


def test_goodput_targets() -> None:
    assert read_targets(["ttft:500", "tpot:50", "e2el:1e3"]) == {"ttft": 0.5, "tpot": 0.05, "e2el": 1.0}
    for text in ("itl:5", "ttft", "ttft:x", "ttft:0", "ttft:nan"):
        with pytest.raises(ConfigError, match="goodput must be"):
            read_targets([text])
    with pytest.raises(ConfigError, match="each once"):
        read_targets(["ttft:5", "ttft:6"])


def test_figures_of_a_batch_tell_prefill_from_decode() -> None:
    batch = Batch([0.5, 1.0], 3.0, input_tokens=100, output_tokens=24, early=4)
    found = summarise_batches([batch, batch], (50,))
    assert found["prefill_tokens_per_s"] == pytest.approx(100.0)
    assert found["decode_tokens_per_s"] == pytest.approx(10.0)
    assert found["output_tokens_per_s"] == pytest.approx(8.0)
    assert (found["latency_p50_ms"], found["ttft_mean_ms"]) == (3000.0, 750.0)
    assert "decode_tokens_per_s" not in summarise_batches([Batch([1.0], 1.0, 8, 1, 1)])


def fake_process(proc: Path, pid: int, parent: int, anon: int, rollup: str | None) -> None:
    folder = proc / str(pid)
    folder.mkdir()
    lines = f"Name:\tx\nPPid:\t{parent}\nRssAnon:\t{anon} kB\nRssFile:\t1024 kB\nRssShmem:\t2048 kB\n"
    (folder / "status").write_text(lines)
    if rollup is not None:
        (folder / "smaps_rollup").write_text(rollup)


def test_memory_counts_descendants_and_shared_pages_once(tmp_path: Path) -> None:
    half = "Pss_File:  512 kB\nPss_Shmem:  1024 kB\nPrivate_Hugetlb:  0 kB\nShared_Hugetlb:  4096 kB\n"
    fake_process(tmp_path, 10, 1, 10 * 1024, half)
    fake_process(tmp_path, 11, 10, 20 * 1024, half)
    fake_process(tmp_path, 12, 11, 30 * 1024, None)
    fake_process(tmp_path, 99, 1, 1 << 20, half)
    (tmp_path / "13").mkdir()  # a process that has just gone
    assert measure_memory(10, tmp_path) == {
        "processes": 3, "anonymous_mib": 60.0, "shared_mib": 12.0, "memory_mib": 72.0, "mapped_files_mib": 2.0,
    }  # fmt: skip
    assert measure_memory(5, tmp_path) == {}


@pytest.mark.row("F-874")
def test_stages_add_up_to_the_whole() -> None:
    stages = Stages()
    for stage, now in (("process", 0.1), ("process", 0.9), ("weights", 1.0), ("warm_up", 3.0), ("weights", 3.5)):
        stages.see(stage, now)
    assert stages.end(4.0) == pytest.approx({"process": 1.0, "weights": 2.5, "warm_up": 0.5})


def test_health_is_read_from_lsv_and_from_others() -> None:
    def at(answers: dict[str, tuple[int, bytes] | None]) -> str | None:
        return Health("http://x:1/v1", lambda url: answers[url.removeprefix("http://x:1")])()

    loading = b'{"status": "loading", "models": [{"state": "loading", "stage": "warm-up", "error": null}]}'
    assert at({"/health": None}) == "process"
    assert at({"/health": (503, loading)}) == "warm_up"
    assert at({"/health": (503, b"busy")}) == "loading"
    assert at({"/health": (200, b"")}) is None
    assert at({"/health": (404, b""), "/v1/models": (200, b"{}")}) is None
    assert at({"/health": (404, b""), "/v1/models": None}) == "process"
    with pytest.raises(Unavailable, match="no memory"):
        at({"/health": (503, b'{"models": [{"state": "dead", "stage": "", "error": "no memory"}]}')})
