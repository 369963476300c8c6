"""From options to requests, and from measurements to what is shown and kept."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lsv.cli.context import CommandContext
from lsv.settings import Setting, Settings
from lsv_base.errors import ConfigError
from lsv_bench.charts.plot import check_plot, write_plot
from lsv_bench.dataset_files import custom_samples, sharegpt_samples
from lsv_bench.datasets import Sample, prefix_samples, random_samples
from lsv_bench.machine import describe_machine
from lsv_bench.result import Kind, Result, Run, write_result

if TYPE_CHECKING:
    from lsv import LLM

_SECRETS = ("api_key",)
_NOT_KEPT = ("json", "output", "result_dir", "plot", "metadata", "show_stdout", *_SECRETS)

T = TypeVar("T")


def make_samples(settings: Mapping[str, Any], count: int, *, number: int = 0) -> list[Sample]:
    """The requests of one measurement. ``number`` counts measurements, so that none meets another's cached prompts.

    Raises ``ConfigError``.
    """
    seed, name = settings["dataset_seed"] + number, _dataset(settings)
    if name == "random":
        return random_samples(
            count,
            settings["random_input_len"],
            settings["random_output_len"],
            vocab=settings["random_vocab_size"],
            spread=settings["random_range_ratio"],
            seed=seed,
        )
    if name in ("prefix-repetition", "prefix_repetition"):
        return prefix_samples(
            count,
            settings["prefix_repetition_prefix_len"],
            settings["prefix_repetition_suffix_len"],
            settings["prefix_repetition_num_prefixes"],
            settings["prefix_repetition_output_len"],
            vocab=settings["random_vocab_size"],
            seed=seed,
        )
    path = settings["dataset_path"]
    if not path:
        raise ConfigError(f"the {name} dataset needs --dataset-path FILE", param="dataset_path")
    if name == "sharegpt":
        return sharegpt_samples(path, count, settings["sharegpt_output_len"], seed=seed)
    return custom_samples(path, count, settings["random_output_len"])


def _dataset(settings: Mapping[str, Any]) -> str:
    name, path = settings["dataset_name"], settings["dataset_path"]
    if name is None and path:
        return "custom" if path.endswith(".jsonl") else "sharegpt"
    return name or "random"


def read_percentiles(settings: Mapping[str, Any]) -> tuple[float, ...]:
    """Raises ``ConfigError`` for a value that is not a percentile."""
    texts = settings["metric_percentiles"]
    try:
        percents = tuple(float(text) for text in texts)
    except ValueError:
        percents = ()
    if not percents or not all(0 < percent <= 100 for percent in percents):
        raise ConfigError(
            f"metric-percentiles must be numbers over 0 and up to 100, such as 50,99, got {', '.join(texts)!r}",
            param="metric_percentiles",
        )
    return percents


class Report:
    """Takes the runs of one benchmark as they are measured, and shows and keeps them.

    Made before anything is measured, so that what can't be written or drawn is refused first. Raises ``ConfigError``.
    """

    def __init__(
        self, kind: Kind, title: str, arguments: Sequence[str], settings: Settings, own: Iterable[Setting]
    ) -> None:
        if settings["plot"]:
            check_plot(settings["plot"])
        self._settings = settings
        now = datetime.now(UTC)
        self._files = [path for path in (settings["output"],) if path]
        if settings["result_dir"]:
            self._files.append(str(Path(settings["result_dir"]) / f"{kind}-{now:%Y%m%d-%H%M%S}.json"))
        self.result = Result(
            kind=kind,
            title=title,
            command=_command(kind, arguments, settings),
            time=f"{now:%Y-%m-%dT%H:%M:%SZ}",
            machine=describe_machine(),
            settings=_in_force(settings, own),
            metadata=_read_metadata(settings["metadata"]),
        )
        self._write()

    def add(self, run: Run) -> None:
        """Keep a run; files are written at once, so that a sweep that is broken off leaves what it has."""
        self.result.runs.append(run)
        self._write()

    def show(self, context: CommandContext) -> int:
        """Print everything; returns the exit code, which is 1 when no run succeeded."""
        if self._settings["json"]:
            import msgspec

            context.console.print_json(data=msgspec.to_builtins(self.result))
        else:
            from lsv_bench.charts.tables import show_result

            show_result(self.result, context.console)
        if not any(run.figures for run in self.result.runs):
            return 1
        if self._settings["plot"]:
            write_plot(self.result, self._settings["plot"])
        return 0

    def _write(self) -> None:
        for file in self._files:
            write_result(self.result, file)


@contextmanager
def recorded(llm: LLM, settings: Mapping[str, Any]) -> Iterator[None]:
    """The engine records a profile of what happens inside, where that is asked for. Raises ``BadRequest``."""
    if not settings["profile"]:
        yield
        return
    llm.start_profile()
    try:
        yield
    finally:
        llm.stop_profile()


def with_progress(what: str, total: int, work: Callable[[Callable[[], None]], T]) -> T:
    """Run ``work`` under a progress bar on stderr; it calls its argument after each part."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        return work(lambda: progress.advance(task))


def _command(kind: str, arguments: Sequence[str], settings: Settings) -> str:
    """The command line, without keys."""
    text = shlex.join(("lsv", "bench", *kind.split("-", 1), *arguments))
    for name in _SECRETS:
        secrets = settings.get(name)
        for secret in (secrets,) if isinstance(secrets, str) else secrets or ():
            text = text.replace(secret, "***")
    return text


def _in_force(settings: Settings, own: Iterable[Setting]) -> dict[str, Any]:
    """The benchmark's own settings, and of the engine's those that were given."""
    names = {setting.name for setting in own}
    return {
        name: settings[name]
        for name in settings
        if name not in _NOT_KEPT and (name in names or settings.source(name) != "default")
    }


def _read_metadata(texts: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    wrong = next((key for key, equals, _ in pairs if not key or not equals), None)
    if wrong is not None:
        raise ConfigError(f"metadata must be KEY=VALUE, got {wrong!r}", param="metadata")
    return {key: value for key, _, value in pairs}
