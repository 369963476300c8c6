"""Metrics: what is read from the exposition, and what the dashboard makes of it."""

from __future__ import annotations

import pytest

from lsv_webui.dashboard.cards import draw, latencies, rates
from lsv_webui.dashboard.metrics import Histogram, Sample, read_metrics

INF = float("inf")

TEXT = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="a"} 3.0
vllm:num_requests_running{model_name="b"} 1.0
# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{model_name="a"} 0.25
vllm:gpu_cache_usage_perc{model_name="b"} 0.5
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{model_name="a"} 120.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{le="0.1",model_name="a"} 2.0
vllm:time_to_first_token_seconds_bucket{le="0.2",model_name="a"} 4.0
vllm:time_to_first_token_seconds_bucket{le="+Inf",model_name="a"} 4.0
vllm:time_to_first_token_seconds_count{model_name="a"} 4.0
vllm:time_to_first_token_seconds_sum{model_name="a"} 0.5
"""


def test_models_are_summed_and_the_fullest_cache_counts() -> None:
    sample = read_metrics(TEXT, at=1.0)
    assert (sample.running, sample.waiting, sample.kv, sample.tokens) == (4, 0, 0.5, 120)
    assert sample.ttft == Histogram((0.1, 0.2, INF), (2, 4, 4), 0.5)
    assert sample.ttft.mean() == 0.125


def test_quantiles_lie_within_their_bucket() -> None:
    histogram = Histogram((0.1, 0.2, INF), (2, 4, 4))
    assert histogram.quantile(0.25) == pytest.approx(0.05)
    assert histogram.quantile(0.75) == pytest.approx(0.15)
    assert Histogram((0.1, INF), (0, 3)).quantile(0.5) == 0.1
    assert Histogram().quantile(0.5) is None


def test_a_restarted_server_counts_from_zero() -> None:
    now, before = Histogram((1.0, INF), (1, 2), 1.0), Histogram((1.0, INF), (5, 9), 4.0)
    assert now.since(before) == now
    assert before.since(now) == Histogram((1.0, INF), (4, 7), 3.0)


def test_rates_and_latencies_are_of_the_window() -> None:
    samples = [
        Sample(at=float(second), tokens=100.0 * second, ttft=Histogram((1.0, INF), (second, second), second / 4))
        for second in range(4)
    ]
    assert rates(samples, lambda s: s.tokens) == [None, 100.0, 100.0, 100.0]
    means, highest = latencies(samples, lambda s: s.ttft)
    assert means == [None, 0.25, 0.25, 0.25]
    assert highest == [None, *[pytest.approx(0.95)] * 3]


def test_the_dashboard_shows_the_newest_sample() -> None:
    shown = draw([Sample(at=0.0), Sample(at=2.0, running=7, kv=0.4)])
    assert "<b>7</b> requests" in shown
    assert "width:40.0%" in shown
    assert draw(())
