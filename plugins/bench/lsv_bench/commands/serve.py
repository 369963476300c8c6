"""``lsv bench serve``: a running server under load."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lsv.cli.address import server_address
from lsv.cli.context import CommandContext
from lsv_base.errors import ConfigError
from lsv_bench.arrivals import Arrivals
from lsv_bench.commands import settings as options
from lsv_bench.commands.workload import Report, make_samples, read_percentiles, with_progress
from lsv_bench.datasets import Conversation, Sample, spelled
from lsv_bench.load import ENDPOINTS, Target, run_load
from lsv_bench.openai_api import ApiClient
from lsv_bench.result import Run
from lsv_bench.serving import METRICS, errors, read_targets, summarise

SETTINGS = (*options.REPORT, *options.DATASET, *options.SERVE)
_WARMUP_SEED = 1 << 30
"""Keeps the warm-up's prompts apart from all measured ones."""


def run(arguments: list[str], context: CommandContext) -> int:
    settings = context.settings(arguments, scope="client", extra=SETTINGS)
    check(settings)
    report = Report("serve", f"serve, {address(settings)}", arguments, settings, SETTINGS)
    model = find_model(settings)
    for number in range(settings["repeats"]):
        report.add(measure(settings, model, number))
    return report.show(context)


def check(settings: Mapping[str, Any]) -> None:
    """Raises ``ConfigError`` for what would otherwise come up only once a server is under load."""
    read_percentiles(settings)
    read_targets(settings["goodput"])
    read_rate(settings["request_rate"])
    unknown = [metric for metric in settings["percentile_metrics"] if metric not in METRICS]
    if unknown:
        raise ConfigError(
            f"percentile-metrics must be any of {', '.join(METRICS)}, got {unknown[0]!r}", param="percentile_metrics"
        )
    if not isinstance(settings["extra_body"], dict):
        raise ConfigError("extra-body must be a JSON object", param="extra_body")
    _samples(settings, 1, 0)


def measure(settings: Mapping[str, Any], model: str, number: int, point: Mapping[str, Any] | None = None) -> Run:
    """Warm the server up and put it under load once; requests that fail are counted in the run."""
    target = _target(settings, model)
    count, concurrency = settings["num_prompts"], settings["max_concurrency"]
    if settings["num_warmups"]:
        warmup = _samples(settings, settings["num_warmups"], _WARMUP_SEED + number)
        asyncio.run(run_load(target, warmup, [0.0] * len(warmup), concurrency=concurrency, done=lambda: None))
    samples = _samples(settings, count, number)
    times = _arrivals(settings).times(count, settings["dataset_seed"] + number)
    with _profiled(settings):
        load = with_progress(
            "requests",
            count,
            lambda done: asyncio.run(run_load(target, samples, times, concurrency=concurrency, done=done)),
        )
    failed = errors(load.outcomes)
    if sum(failed.values()) == count:
        return Run(point=dict(point or {}), errors=failed)
    figures = summarise(
        load,
        metrics=settings["percentile_metrics"],
        percents=read_percentiles(settings),
        targets=read_targets(settings["goodput"]),
    )
    return Run(point=dict(point or {}), figures=figures, errors=failed)


@contextmanager
def _profiled(settings: Mapping[str, Any]) -> Iterator[None]:
    """The server records a profile of what happens inside, where that is asked for."""
    if not settings["profile"]:
        yield
        return
    client = ApiClient(address(settings), settings["api_key"])
    client.order("start_profile")
    try:
        yield
    finally:
        client.order("stop_profile")


def address(settings: Mapping[str, Any]) -> str:
    """Where the server is, ending in ``/v1``. Raises ``ConfigError``."""
    given: str = settings["api"] or f"{settings['host']}:{settings['port']}"
    return f"{server_address(given)}/v1"


def find_model(settings: Mapping[str, Any]) -> str:
    """The model to ask for. Raises ``Unavailable`` when no server answers."""
    name: str | None = settings["model_name"] or settings.get("model")
    return name or ApiClient(address(settings), settings["api_key"]).models()[0]


def read_rate(text: str) -> float:
    """Raises ``ConfigError`` for a value that is not a rate."""
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not rate > 0:
        raise ConfigError(f"request_rate must be a positive number or inf, got {text!r}", param="request_rate")
    return rate


def _target(settings: Mapping[str, Any], model: str) -> Target:
    return Target(
        url=address(settings),
        model=model,
        endpoint=ENDPOINTS[settings["endpoint"]],
        api_key=settings["api_key"],
        ignore_eos=settings["ignore_eos"],
        temperature=settings["temperature"],
        extra_body=settings["extra_body"],
    )


def _arrivals(settings: Mapping[str, Any]) -> Arrivals:
    return Arrivals(
        rate=read_rate(settings["request_rate"]),
        burstiness=settings["burstiness"],
        ramp=settings["ramp_up_strategy"],
        start_rate=settings["ramp_up_start_rps"],
    )


def _samples(settings: Mapping[str, Any], count: int, number: int) -> list[Sample]:
    """Samples that the endpoint takes."""
    samples = make_samples(settings, count, number=number)
    if ENDPOINTS[settings["endpoint"]] == "chat":
        return spelled(samples)
    if isinstance(samples[0].prompt, Conversation):
        raise ConfigError(f"{settings['dataset_path']} holds messages: add --endpoint chat", param="endpoint")
    return samples
