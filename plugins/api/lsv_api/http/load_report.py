"""The engines' load in a header of answers, for balancers that ask for it (Open Request Cost Aggregation, ORCA)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lsv.engine.client import Client

ASKED = "endpoint-load-metrics-format"
HEADER = "endpoint-load-metrics"


def report_load(form: str, clients: Iterable[Client]) -> str | None:
    """The header's value in the form TEXT or JSON; None for one that is not known."""
    stats = [replica.stats for client in clients for replica in client.replicas]
    told = {
        "kv_cache_usage_perc": max((float(one.kv_usage) for one in stats), default=0.0),
        "num_requests_waiting": float(sum(one.waiting for one in stats)),
        "num_requests_running": float(sum(one.running for one in stats)),
    }
    if form.upper() == "JSON":
        return "JSON " + msgspec.json.encode({"named_metrics": told}).decode()
    if form.upper() == "TEXT":
        return "TEXT " + ", ".join(f"named_metrics.{name}={value:.12g}" for name, value in told.items())
    return None
