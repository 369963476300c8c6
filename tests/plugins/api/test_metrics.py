"""Metrics: every name the dashboard queries exists, and counts what happened."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lsv.config import Topology
from lsv.engine.messages import ExpertCounts, Stats
from lsv.request.outputs import Gaps, Timings
from lsv.scheduler.outcome import SpeculationCounts
from lsv_api.metrics import registry
from lsv_api.metrics.drafts import collect_drafts
from lsv_api.metrics.engines import Recent
from lsv_api.metrics.experts import collect_experts
from lsv_api.metrics.requests import buckets_1_2_5
from lsv_base.errors import RequestFailed
from lsv_testing.fakes.client import FakeClient, fake_config
from suite.waiting import until

DASHBOARD = [
    "vllm:e2e_request_latency_seconds_bucket",
    "vllm:e2e_request_latency_seconds_sum",
    "vllm:e2e_request_latency_seconds_count",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:time_per_output_token_seconds_bucket",
    "vllm:time_per_output_token_seconds_sum",
    "vllm:time_per_output_token_seconds_count",
    "vllm:num_requests_running",
    "vllm:num_requests_swapped",
    "vllm:num_requests_waiting",
    "vllm:time_to_first_token_seconds_bucket",
    "vllm:time_to_first_token_seconds_sum",
    "vllm:time_to_first_token_seconds_count",
    "vllm:gpu_cache_usage_perc",
    "vllm:cpu_cache_usage_perc",
    "vllm:request_prompt_tokens_bucket",
    "vllm:request_generation_tokens_bucket",
    "vllm:request_success_total",
    "vllm:request_queue_time_seconds_sum",
    "vllm:request_prefill_time_seconds_sum",
    "vllm:request_decode_time_seconds_sum",
    "vllm:request_max_num_generation_tokens_sum",
]

MANUAL = {
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:num_requests_swapped": "gauge",
    "vllm:gpu_cache_usage_perc": "gauge",
    "vllm:cpu_cache_usage_perc": "gauge",
    "vllm:cpu_prefix_cache_hit_rate": "gauge",
    "vllm:gpu_prefix_cache_hit_rate": "gauge",
    "vllm:num_preemptions": "counter",
    "vllm:prompt_tokens": "counter",
    "vllm:generation_tokens": "counter",
    "vllm:time_to_first_token_seconds": "histogram",
    "vllm:time_per_output_token_seconds": "histogram",
    "vllm:e2e_request_latency_seconds": "histogram",
    "vllm:request_prompt_tokens": "histogram",
    "vllm:request_generation_tokens": "histogram",
    "vllm:request_params_best_of": "histogram",
    "vllm:request_params_n": "histogram",
    "vllm:request_success": "counter",
    "vllm:avg_prompt_throughput_toks_per_s": "gauge",
    "vllm:avg_generation_throughput_toks_per_s": "gauge",
    "vllm:request_queue_time_seconds": "histogram",
    "vllm:request_prefill_time_seconds": "histogram",
    "vllm:request_decode_time_seconds": "histogram",
    "vllm:request_max_num_generation_tokens": "histogram",
    # newer names
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:inter_token_latency_seconds": "histogram",
    "vllm:prefix_cache_queries": "counter",
    "vllm:prefix_cache_hits": "counter",
    "vllm:iteration_tokens_total": "histogram",
    "vllm:request_inference_time_seconds": "histogram",
    "vllm:request_params_max_tokens": "histogram",
    "vllm:request_num_preemptions": "histogram",
    "vllm:num_requests_waiting_by_reason": "gauge",
    "vllm:admission_rejections": "counter",
    "vllm:cache_config_info": "gauge",
}

BUCKETS = {
    "vllm:time_to_first_token_seconds": "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1.0 2.5 5.0 7.5 10.0",
    "vllm:time_per_output_token_seconds": "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1.0 2.5",
    "vllm:e2e_request_latency_seconds": "1.0 2.5 5.0 10.0 15.0 20.0 30.0 40.0 50.0 60.0",
    "vllm:request_prompt_tokens": "1.0 2.0 5.0 10.0 20.0 50.0 100.0 200.0 500.0",
    "vllm:request_params_n": "1.0 2.0 5.0 10.0 20.0",
    "vllm:request_params_best_of": "1.0 2.0 5.0 10.0 20.0",
}


async def scrape(site):
    reply = await site.http.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    return {family.name: family for family in text_string_to_metric_families(reply.text)}


def sample(families, name, **labels):
    found = [
        item.value
        for family in families.values()
        for item in family.samples
        if item.name == name and labels.items() <= item.labels.items()
    ]
    assert len(found) == 1, (name, labels, found)
    return found[0]


@pytest.mark.row(
    "F-1000", "F-106", "F-746", "F-747", "F-749", "F-752", "F-753", "F-754", "F-755", "F-769", "F-770", "F-748",
)  # fmt: skip
async def test_dashboard_names_exist_before_the_first_request(site):
    families = await scrape(site)
    names = {item.name for family in families.values() for item in family.samples}
    assert set(DASHBOARD) <= names
    for name, kind in MANUAL.items():
        assert families[name].type == kind, name
        assert all(item.labels["model_name"] == "fake" for item in families[name].samples)


@pytest.mark.row("F-1018")
@pytest.mark.parametrize("base", [0, 2])
async def test_each_replica_has_series_of_its_own(start, base: int):
    """By its number among all, where other servers have those before it."""
    both = [FakeClient(fake_config(topology=Topology(data=2, replica=number, base=base))) for number in range(2)]
    both[0].stats, both[1].stats = Stats(running=2), Stats(running=1)
    families = await scrape(await start(type("Front", (FakeClient,), {"replicas": both})()))
    for engine, running in ((str(base), 2), (str(base + 1), 1)):
        assert sample(families, "vllm:num_requests_running", model_name="fake", engine=engine) == running
        assert sample(families, "vllm:cache_config_info", model_name="fake", engine=engine) == 1
    assert sample(families, "vllm:time_to_first_token_seconds_count", model_name="fake") == 0, (
        "requests are the model's"
    )


@pytest.mark.row("F-366", "F-764", "F-765", "F-766", "F-767", "F-768")
def test_drafts_are_counted_where_there_are_any():
    counts = SpeculationCounts(rows=4, drafts=12, accepted=6, by_place=(3, 2, 1), emitted=10)
    found = {
        (item.name, item.labels.get("position")): item.value
        for family in collect_drafts({("plain", "0"): Stats(), ("drafting", "0"): Stats(speculation=counts)})
        for item in family.samples
        if item.labels["model_name"] == "drafting"
    }
    prefix = "vllm:spec_decode_"
    assert {name.removeprefix(prefix): value for (name, place), value in found.items() if place is None} == {
        "num_drafts_total": 4, "num_draft_tokens_total": 12, "num_accepted_tokens_total": 6,
        "num_emitted_tokens_total": 10, "draft_acceptance_rate": 0.5, "efficiency": 10 / 16,
    }  # fmt: skip
    assert [found[f"{prefix}num_accepted_tokens_per_pos_total", place] for place in "012"] == [3, 2, 1]
    assert list(collect_drafts({("plain", "0"): Stats()})) == []


@pytest.mark.row("F-282")
def test_the_balance_of_experts_is_told_where_they_move():
    counts = ExpertCounts(measured=0.5, expected=0.75, moved_total=6, balanced_total=2)
    found = {
        (item.name, item.labels.get("placement")): item.value
        for family in collect_experts({("plain", "0"): Stats(), ("sparse", "0"): Stats(experts=counts)})
        for item in family.samples
    }
    assert found == {
        ("lsv:expert_balance", "measured"): 0.5, ("lsv:expert_balance", "expected"): 0.75,
        ("lsv:experts_moved_total", None): 6, ("lsv:expert_balancings_total", None): 2,
    }  # fmt: skip
    assert list(collect_experts({("plain", "0"): Stats()})) == []


async def test_parts_of_the_engine_are_counted(site):
    families = await scrape(site)
    assert not any(name.startswith("lsv:quota") for name in families)
    site.engine.stats = Stats(parts={"quota_held": 3, "quota_seconds": 0.5})
    families = await scrape(site)
    assert sample(families, "lsv:quota_held_total") == 3
    assert sample(families, "lsv:quota_seconds_total") == 0.5


@pytest.mark.row("F-756", "F-757", "F-758", "F-759", "F-760", "F-761", "F-762", "F-1014")
async def test_buckets(site):
    families = await scrape(site)
    for name, expected in BUCKETS.items():
        bounds = [item.labels["le"] for item in families[name].samples if item.name.endswith("_bucket")]
        assert bounds == [*expected.split(), "+Inf"], name
    assert buckets_1_2_5(20) == (1, 2, 5, 10, 20)
    assert buckets_1_2_5(19) == (1, 2, 5, 10)


@pytest.mark.row(
    "F-756", "F-757", "F-758", "F-759", "F-760", "F-761", "F-762", "F-763", "F-771", "F-772", "F-773", "F-774", "F-1000"
)
async def test_requests_are_counted(site):
    await site.complete(max_tokens=3)
    await site.complete(prompt=[1] * 10, n=2)
    families = await scrape(site)
    assert sample(families, "vllm:request_success_total", finished_reason="length") == 1
    assert sample(families, "vllm:request_success_total", finished_reason="stop") == 1
    assert sample(families, "vllm:request_success_total", finished_reason="abort") == 0
    assert sample(families, "vllm:request_prompt_tokens_sum") == 3 + 10
    assert sample(families, "vllm:request_generation_tokens_sum") == 3 + 2 * 14
    assert sample(families, "vllm:request_max_num_generation_tokens_sum") == 3 + 14
    assert sample(families, "vllm:request_params_n_sum") == 3
    for stage in ("queue", "prefill", "decode"):
        assert sample(families, f"vllm:request_{stage}_time_seconds_count") == 2
    assert sample(families, "vllm:e2e_request_latency_seconds_count") == 2
    assert sample(families, "vllm:time_to_first_token_seconds_count") == 2
    assert sample(families, "vllm:time_per_output_token_seconds_count") == 2 + 27
    assert sample(families, "lsv:http_requests_total", route="/v1/completions", status="200") == 2


class Answering(FakeClient):
    """Reports timings of running requests."""

    happened: list[Timings] = []

    def take_timings(self):
        happened, self.happened = self.happened, []
        return happened


async def test_first_tokens_and_gaps_are_counted_while_answers_grow(start):
    engine = Answering()
    site = await start(engine)
    gaps = Gaps()
    gaps.add(0.02, 4)
    engine.happened = [Timings(0.3, gaps), Timings(None, gaps)]
    for _ in range(2):
        families = await scrape(site)
        assert sample(families, "vllm:time_to_first_token_seconds_count") == 1
        assert sample(families, "vllm:inter_token_latency_seconds_count") == 8
        assert sample(families, "vllm:inter_token_latency_seconds_sum") == 0.04
        assert sample(families, "vllm:request_prompt_tokens_count") == 0


async def test_every_process_counts_what_happens_in_it(start, monkeypatch):
    """One process answers a scrape for all of them."""
    monkeypatch.setattr(registry, "_SECONDS", 0.01)
    engine = Answering()
    site = await start(engine)
    engine.happened = [Timings(0.3)]
    await until(lambda: engine.happened == [])
    assert sample(await scrape(site), "vllm:time_to_first_token_seconds_count") == 1


async def test_failures_are_counted_apart(site):
    site.engine.failure = RequestFailed("broken")
    await site.complete()
    families = await scrape(site)
    assert sample(families, "lsv:request_failures_total") == 1
    assert sample(families, "vllm:time_to_first_token_seconds_count") == 0
    assert sample(families, "lsv:http_requests_total", route="/v1/completions", status="500") == 1


@pytest.mark.row("F-1019", "F-106", "F-335", "F-357", "F-746", "F-747", "F-749", "F-752", "F-753", "F-754", "F-755")
async def test_engine_state_is_read_at_the_scrape(site):
    site.engine.stats = Stats(
        running=3, waiting=2, kv_usage=0.25, preemptions_total=7, prompt_tokens_total=1000,
        generation_tokens_total=500, prefix_queries_total=10, prefix_hits_total=4, nonfinite_total=1, deferred=1,
        rejections_total=5, tokens_total=1100, step_tokens=(2, 3, *[0] * 11, 1),
    )  # fmt: skip
    families = await scrape(site)
    assert sample(families, "vllm:num_requests_running") == 3
    assert sample(families, "vllm:num_requests_waiting") == 2
    assert sample(families, "vllm:gpu_cache_usage_perc") == 0.25
    assert sample(families, "vllm:num_preemptions_total") == 7
    assert sample(families, "vllm:generation_tokens_total") == 500
    assert sample(families, "vllm:gpu_prefix_cache_hit_rate") == 0.4
    assert sample(families, "lsv:nonfinite_total") == 1
    assert sample(families, "vllm:avg_prompt_throughput_toks_per_s") > 0
    assert sample(await scrape(site), "vllm:avg_prompt_throughput_toks_per_s") > 0, (
        "a scrape changes nothing for others"
    )
    assert sample(families, "vllm:num_requests_waiting_by_reason", reason="capacity") == 1
    assert sample(families, "vllm:num_requests_waiting_by_reason", reason="deferred") == 1
    assert sample(families, "vllm:admission_rejections_total") == 5
    assert sample(families, "vllm:iteration_tokens_total_bucket", le="8.0") == 5
    assert sample(families, "vllm:iteration_tokens_total_count") == 6
    assert sample(families, "vllm:iteration_tokens_total_sum") == 1100
    assert sample(families, "vllm:cache_config_info", block_size="16", num_gpu_blocks="64") == 1


@pytest.mark.row("F-769", "F-770")
def test_throughput_is_that_of_the_last_seconds():
    recent = Recent(Stats(), 0.0)
    for second in range(1, 31):
        stats = Stats(steps_total=second, prompt_tokens_total=5 * second, generation_tokens_total=10 * second)
        recent.rates(stats, float(second))
    idle = Stats(steps_total=30, prompt_tokens_total=150, generation_tokens_total=300)
    assert recent.rates(idle, 30.0) == recent.rates(idle, 30.0) == (5.0, 10.0)
    assert recent.rates(idle, 60.0) == (0.0, 0.0)
    assert recent.rates(Stats(steps_total=1, generation_tokens_total=7), 61.0) == (0.0, 7.0), "the engine is a new one"


async def test_labels_come_from_closed_sets(site):
    await site.http.get("/whatever-a-client-writes")
    families = await scrape(site)
    routes = {item.labels["route"] for item in families["lsv:http_requests"].samples}
    assert routes == {"other"}


@pytest.mark.row("F-218")
async def test_two_names_of_one_model_are_one_series(start):
    site = await start(names=("fake", "alias"))
    assert (await site.complete(model="alias")).json()["model"] == "fake"
    families = await scrape(site)
    assert sample(families, "vllm:num_requests_running") == 0
    assert sample(families, "vllm:request_success_total", finished_reason="stop") == 1
