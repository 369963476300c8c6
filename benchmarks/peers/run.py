"""lsv and its peers on this machine: the same requests, interleaved repeats, limits of the machine measured in between.

    python benchmarks/peers/run.py --models DIR --engine lsv=.venv/bin/python --engine vllm=PATH/bin/python \\
        --only lsv-bf16,vllm-bf16 --workloads W1,W2,W3 --repeats 3 --results results.json
    python benchmarks/peers/run.py --report results.json

``--engine PROGRAM=PATH`` is the interpreter of the environment a program is installed in (for llamacpp, its server).
Each repeat of each engine is a process of its own; repeats go A B C A B C. New runs are added to the file. ``models``
holds the checkpoint and its converted forms under the names in engines.py; prepare.py writes them.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engines import ENGINES
from machine import measure_limits
from process import run_offline
from report import render
from results import Record, Results, is_disturbed
from serving import serve
from setup import Setup
from shapes import read_shape
from workloads import GROUPS, WORKLOADS, Workload, room_for

from lsv_base.errors import LsvError
from lsv_bench.machine import describe_machine

SHAPES = (
    "qwen2.5-0.5b-shape",
    "qwen3-0.6b-shape",
    "llama-3.2-1b-shape",
    "qwen3-moe-32x4-shape",
    "qwen3-moe-64x8-shape",
)


def main() -> None:
    options = read_options()
    if options.report:
        print(render(Results.read(options.report)))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that engines end with this process
    programs = dict(one.split("=", 1) for one in options.engine)
    names = [name for name in options.only if ENGINES[name].program in programs]
    for repeat in range(options.first_repeat, options.first_repeat + options.repeats):
        for name in names:
            results = Results.read(options.results)
            results.machine = results.machine or read_machine()
            results.shapes[options.shape] = vars(read_shape(options.models / options.shape))
            results.limits.append(measure_limits(options.threads))
            for run in measure(name, programs[ENGINES[name].program], repeat, options):
                results.runs.append(run)
                results.write(options.results)
                show(run)
    results = Results.read(options.results)
    results.limits.append(measure_limits(options.threads))
    results.write(options.results)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, help="folder of checkpoints and converted models")
    parser.add_argument("--engine", action="append", default=[], metavar="PROGRAM=PATH")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(ENGINES), metavar="NAMES")
    parser.add_argument(
        "--workloads", type=read_workloads, default=list(GROUPS["standard"]), metavar="NAMES",
        help=f"names, or groups of them: {', '.join(GROUPS)}",
    )  # fmt: skip
    parser.add_argument("--shape", choices=SHAPES, default=SHAPES[0])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--first-repeat", type=int, default=0, help="to go on with a run that was cut in pieces")
    parser.add_argument("--results", type=Path, default=Path("peers.json"))
    parser.add_argument("--logs", type=Path, default=Path(tempfile.gettempdir()) / "lsv-benchmarks")
    parser.add_argument("--report", type=Path, metavar="RESULTS", help="print the tables of a file of results")
    options = parser.parse_args()
    if options.models is None and options.report is None:
        parser.error("--models is needed: the folder that prepare.py wrote")
    unknown = [name for name in (*options.only, *options.workloads) if name not in ENGINES and name not in WORKLOADS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join([*ENGINES, *GROUPS, *WORKLOADS])}")
    return options


def read_workloads(text: str) -> list[str]:
    return [name for one in text.split(",") for name in GROUPS.get(one, (one,))]


def measure(name: str, program: str, repeat: int, options: argparse.Namespace) -> Iterator[Record]:
    """One repeat of an engine over the workloads: offline ones in one process, S1 with its server."""
    engine = ENGINES[name]
    model = options.models / engine.model.format(shape=options.shape)
    asked, shape = [WORKLOADS[one] for one in options.workloads], read_shape(options.models / options.shape)
    setup = Setup(engine, program, model, shape, options.threads, room_for(asked, shape.kv_bytes(1)))
    for run in _measure(setup, asked, str(repeat), options.logs / f"{name}-{options.shape}-{repeat}.log"):
        yield {"shape": options.shape, "engine": name, "repeat": repeat, **run}


def _measure(setup: Setup, asked: Sequence[Workload], seed: str, log: Path) -> Iterator[Record]:
    if not setup.model.exists():
        yield from ({"workload": one.name, "error": f"there is no {setup.model.name}"} for one in asked)
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    offline = [one for one in asked if not one.clients]
    if offline:
        yield from run_offline(setup, offline, seed, log)
    if setup.engine.server:
        for workload in asked:
            if workload.clients:
                yield {"workload": workload.name, **_serve(setup, workload, seed)}


def _serve(setup: Setup, workload: Workload, seed: str) -> Record:
    try:
        return serve(setup, workload, seed)
    except LsvError as error:
        return {"error": error.message}


def read_machine() -> Record:
    machine = describe_machine()
    return {name: getattr(machine, name) for name in machine.__struct_fields__}


def show(run: Record) -> None:
    if run.get("error"):
        print(f"{run['engine']:18s} {run['workload']} failed: {run['error']}", flush=True)
        return
    figure = WORKLOADS[run["workload"]].figure
    notes = [f"first token {run['ttft_s']:.3f} s"] if "ttft_s" in run else []
    notes += [] if run["complete"] else ["INCOMPLETE"]
    notes += [f"disturbed by {run['other_cores'] + run['stolen_cores']:.2f} cores"] if is_disturbed(run) else []
    memory = run.get("memory_mib", 0)
    print(
        f"{run['engine']:18s} {run['workload']} {run[figure]:9.1f} {figure}  load {run['load_s']:.1f} s  "
        f"memory {memory:.0f} MiB  {', '.join(notes)}",
        flush=True,
    )


if __name__ == "__main__":
    main()
