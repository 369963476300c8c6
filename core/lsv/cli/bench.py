"""``lsv bench latency|throughput|serve``."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from lsv.bench.datasets import Sample, random_samples, sharegpt_samples
from lsv.bench.report import Figures, show
from lsv.cli.context import JSON, CommandContext
from lsv.errors import ConfigError
from lsv.settings import Setting, Settings

REPORT_SETTINGS = (
    JSON,
    Setting(name="output", help="also write the figures to this JSON file", scope="all"),
)
DATASET_SETTINGS = (
    Setting(
        name="dataset_name",
        default="random",
        choices=("random", "sharegpt"),
        help="where prompts come from",
        scope="all",
    ),
    Setting(name="dataset_path", help="file of the sharegpt dataset", scope="all"),
    Setting(
        name="random_input_len", type="int", default=1024, aliases=("input_len",), help="prompt tokens", scope="all"
    ),
    Setting(
        name="random_output_len", type="int", default=128, aliases=("output_len",), help="generated tokens", scope="all"
    ),
    Setting(name="random_range_ratio", type="float", default=0.0, help="lengths vary by this share", scope="all"),
    Setting(name="random_vocab_size", type="int", default=1000, help="ids are drawn below this", scope="all"),
    Setting(name="num_prompts", type="int", default=10, help="number of requests", scope="all"),
    Setting(name="dataset_seed", type="int", default=0, help="seed of the dataset and of the arrivals", scope="all"),
)
LATENCY_SETTINGS = (
    Setting(name="batch_size", type="int", default=8, help="requests in the batch", scope="all"),
    Setting(name="num_iters", type="int", default=10, help="measured rounds", scope="all"),
    Setting(name="num_iters_warmup", type="int", default=2, help="unmeasured rounds before", scope="all"),
)
SERVE_SETTINGS = (
    Setting(name="url", default=None, help="address of the server, ending in /v1", scope="all"),
    Setting(name="host", default="127.0.0.1", help="host of the server", scope="all"),
    Setting(name="port", type="int", default=8000, help="port of the server", scope="all"),
    Setting(name="model_name", aliases=("served_model_name",), help="served name (default: the first)", scope="all"),
    Setting(name="api_key", env=("OPENAI_API_KEY", "VLLM_API_KEY"), help="key of the server", scope="all"),
    Setting(name="request_rate", default="inf", help="requests per second (Poisson), or inf", scope="all"),
    Setting(name="max_concurrency", type="int", default=1024, help="most open requests", scope="all"),
    Setting(name="ignore_eos", type="bool", default=True, help="generate to full length", scope="all"),
)


def run(arguments: list[str], context: CommandContext) -> int:
    kinds = {"latency": _latency, "throughput": _throughput, "serve": _serve}
    if not arguments or arguments[0] not in kinds:
        raise ConfigError(f"lsv bench takes one of {', '.join(kinds)}, e.g. lsv bench throughput MODEL")
    return kinds[arguments[0]](arguments[1:], context)


def _samples(settings: Settings, count: int) -> list[Sample]:
    if settings["dataset_name"] == "sharegpt":
        if not settings["dataset_path"]:
            raise ConfigError("the sharegpt dataset needs --dataset-path FILE.json", param="dataset_path")
        return sharegpt_samples(
            settings["dataset_path"], count, settings["random_output_len"], seed=settings["dataset_seed"]
        )
    return random_samples(
        count,
        settings["random_input_len"],
        settings["random_output_len"],
        vocab=settings["random_vocab_size"],
        spread=settings["random_range_ratio"],
        seed=settings["dataset_seed"],
    )


def _report(figures: Figures, settings: Settings, context: CommandContext, title: str) -> int:
    show(figures, context.console, title=title, as_json=settings["json"], output=settings["output"])
    return 0


def _with_progress(
    context: CommandContext, what: str, total: int, work: Callable[[Callable[[], None]], Figures]
) -> Figures:
    """Run ``work`` under a progress bar on stderr; it calls its argument after each part."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        return work(lambda: progress.advance(task))


def _latency(arguments: list[str], context: CommandContext) -> int:
    settings = context.settings(arguments, scope="engine", extra=REPORT_SETTINGS + DATASET_SETTINGS + LATENCY_SETTINGS)
    from lsv.bench.offline import measure_latency
    from lsv.llm import LLM

    samples = _samples(settings, settings["batch_size"])
    warmup, rounds = settings["num_iters_warmup"], settings["num_iters"]
    with LLM.from_settings(settings, context.plugins) as llm:
        figures = _with_progress(
            context,
            "rounds",
            warmup + rounds,
            lambda done: measure_latency(llm, samples, warmup=warmup, rounds=rounds, done=done),
        )
    return _report(figures, settings, context, "latency")


def _throughput(arguments: list[str], context: CommandContext) -> int:
    settings = context.settings(arguments, scope="engine", extra=REPORT_SETTINGS + DATASET_SETTINGS)
    from lsv.bench.offline import measure_throughput
    from lsv.llm import LLM

    samples = _samples(settings, settings["num_prompts"])
    with LLM.from_settings(settings, context.plugins) as llm:
        figures = measure_throughput(llm, samples)
    return _report(figures, settings, context, "throughput")


def _serve(arguments: list[str], context: CommandContext) -> int:
    settings = context.settings(arguments, scope="client", extra=REPORT_SETTINGS + DATASET_SETTINGS + SERVE_SETTINGS)
    from lsv.bench.load import Load, press
    from lsv.cli.openai_api import ApiClient

    url = settings["url"] or f"http://{settings['host']}:{settings['port']}/v1"
    load = Load(
        url=url,
        model=settings["model_name"] or ApiClient(url, settings["api_key"]).models()[0],
        rate=_rate(settings["request_rate"]),
        concurrency=settings["max_concurrency"],
        ignore_eos=settings["ignore_eos"],
        api_key=settings["api_key"],
        seed=settings["dataset_seed"],
    )
    samples = _samples(settings, settings["num_prompts"])
    figures = _with_progress(context, "requests", len(samples), lambda done: asyncio.run(press(load, samples, done)))
    return _report(figures, settings, context, f"{load.model} at {url}")


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not rate > 0:
        raise ConfigError(f"request_rate must be a positive number or inf, got {text!r}", param="request_rate")
    return rate
