"""Through which adapters requests go, read when Prometheus asks; there is nothing to read where none are served."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from lsv.engine.client import Client
from lsv.request.adapter import shown_name


def collect_adapters(engines: Mapping[tuple[str, str], Client]) -> Iterator[Metric]:
    """What routers in front of several servers read: names as labels of a series whose value is the time in seconds.

    Source: ``vllm.v1.metrics.loggers``, which has the same labels but the first two.
    """
    metric = GaugeMetricFamily(
        "vllm:lora_requests_info",
        "Adapters of running and of waiting requests, and how many may run at a time.",
        labels=("model_name", "engine", "max_lora", "waiting_lora_adapters", "running_lora_adapters"),
    )
    for (model, engine), client in engines.items():
        options, found = client.config.adapters, client.stats.adapters
        if options is not None:
            names = ((), ()) if found is None else (found.waiting, found.running)
            shown = (",".join(sorted({shown_name(name) for name in one})) for one in names)
            labels = (model, engine, str(options.slots), *shown)
            metric.add_metric(labels, time.time())
    if metric.samples:
        yield metric
