"""``lsv trace [MODEL]``: a few requests in this process, step by step and op by op, as a trace for ui.perfetto.dev."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from lsv.cli.context import CommandContext, HelpWanted
from lsv.settings import Setting
from lsv_bench.commands import settings as options
from lsv_bench.commands.workload import make_samples

_SHORT = {"num_prompts": 4, "random_input_len": 128, "random_output_len": 16}
"""Every op of every step is written down, so a few steps are a large file."""
SETTINGS = (
    *(
        msgspec.structs.replace(setting, default=_SHORT.get(setting.name, setting.default))
        for setting in options.DATASET
    ),
    Setting(name="output", default="trace.json.gz", help="file that is written; .gz compresses it", scope="all"),
    Setting(name="ops", type="bool", default=True, help="show what steps compute, by torch's profiler", scope="all"),
)
SUMMARY = "what a few requests do, step by step and op by op, as a file for ui.perfetto.dev"


def run(arguments: list[str], context: CommandContext) -> int:
    try:
        with tempfile.TemporaryDirectory() as folder:
            return _run([*arguments, "--torch-profiler-dir", folder], context, Path(folder))
    except HelpWanted as wanted:
        from lsv.cli.help import show_settings

        show_settings(context.console, "trace", SUMMARY, wanted)
        return 0


def _run(arguments: list[str], context: CommandContext, folder: Path) -> int:
    settings = context.settings(arguments, scope="engine", extra=SETTINGS)
    samples = make_samples(settings, settings["num_prompts"])
    output = Path(settings["output"])
    from lsv import LLM
    from lsv_bench.offline import measure_throughput

    with LLM.from_settings(settings, context.plugins) as llm:
        measure_throughput(llm, samples[:1])  # what happens once does not belong into the picture
        if settings["ops"]:
            llm.start_profile()
        with llm.timeline() as timeline:
            figures = measure_throughput(llm, samples)
        if settings["ops"]:
            llm.stop_profile()
    write(output, timeline.events, [read(file) for file in sorted(folder.glob("*.pt.trace.json.gz"))])
    steps = sum("rows" in event["args"] for event in timeline.events)
    context.console.print(
        f"{steps} steps of {figures['requests']} requests are in {output}: open it in https://ui.perfetto.dev "
        "(nothing is uploaded) or chrome://tracing"
    )
    return 0


def read(file: Path) -> Mapping[str, Any]:
    """A trace of torch's profiler."""
    trace: Mapping[str, Any] = json.loads(gzip.decompress(file.read_bytes()))
    return trace


def write(output: Path, events: Sequence[Mapping[str, Any]], traces: Iterable[Mapping[str, Any]]) -> None:
    """One trace of the engine's ``events`` and of what torch has recorded, by one clock."""
    merged = list(events)
    for trace in traces:
        zero = trace.get("baseTimeNanoseconds", 0) / 1000
        merged += ({**event, "ts": event["ts"] + zero} if "ts" in event else event for event in trace["traceEvents"])
    first = min((event["ts"] for event in merged if event.get("ts")), default=0.0)
    merged = [{**event, "ts": round(event["ts"] - first, 3)} if "ts" in event else event for event in merged]
    data = json.dumps({"traceEvents": merged, "displayTimeUnit": "ms"}).encode()
    output.write_bytes(gzip.compress(data) if output.suffix == ".gz" else data)
