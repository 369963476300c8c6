"""The tables of docs/performance.md, from a file of results."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from engines import ENGINES, LSV
from results import Record, Results, is_disturbed
from shapes import Shape
from workloads import GROUPS, WORKLOADS, Workload

PRECISIONS = ("bf16", "bf16 with drafts", "int8", "int4", "int4, 16-bit activations", "fp8")

GROWTH = {*GROUPS["prefill"], *GROUPS["decode"]}


def render(results: Results) -> str:
    """Markdown: the machine, then for each shape the medians, the ratios and the shares of the machine's limits."""
    parts = [_machine(results)]
    for shape in dict.fromkeys(run["shape"] for run in results.runs):
        facts = Shape(**results.shapes[shape])
        parts += [
            f"### {shape}",
            _medians(results, shape),
            _ratios(results, shape),
            _roofline(results, shape, facts),
            _memory(results, shape, facts),
            *_growth(results, shape),
        ]
    wrong = _problems(results)
    return "\n\n".join([*parts, *([wrong] if wrong else [])])


def _machine(results: Results) -> str:
    machine, limits = results.machine, results.limits
    versions = ", ".join(f"{name} {version}" for name, version in machine.get("versions", {}).items())
    lines = [
        f"{machine.get('cores')} cores of {machine.get('cpu')} ({', '.join(machine.get('instruction_sets', []))}), "
        f"{machine.get('memory_gib')} GiB, {versions}.",
        *_peers(results),
        "",
        "| limit, measured between the runs | min | median | max |",
        "|---|---|---|---|",
    ]
    for name, key, unit in (
        ("read, plain loop", "read_plain_gbps", "GB/s"),
        ("read, best pattern", "read_gbps", "GB/s"),
        ("bf16 from registers", "bf16_tflops", "TFLOP/s"),
        ("int8 from registers", "int8_tops", "TOP/s"),
    ):
        found = [float(one[key]) for one in limits]
        if found:
            low, middle, high = min(found), statistics.median(found), max(found)
            lines.append(f"| {name}, {unit} | {low:.2f} | {middle:.2f} | {high:.2f} |")
    return "\n".join(lines)


def _peers(results: Results) -> list[str]:
    """One line that names the peers' versions."""
    found = {name: version for run in results.runs for name, version in run.get("versions", {}).items()}
    peers = ", ".join(f"{name} {found[name]}" for name in sorted(found) if name not in results.machine["versions"])
    return ["", f"Peers: {peers}."] if peers else []


def _medians(results: Results, shape: str) -> str:
    """One row an engine; a cell is median (min to max, number of runs)."""
    workloads = [one for one in WORKLOADS.values() if _ran(results, shape, one) and one.name not in GROWTH]
    heads = [f"{one.name} {one.figure.removesuffix('_tps')} tok/s" for one in workloads]
    rows = [["engine", *heads, "W1 TTFT s", "S1 TTFT p99 s", "S1 ITL p50 / p99 ms"]]
    for name in ENGINES:
        cells = [_spread(_figures(results, shape, name, one, one.figure)) for one in workloads]
        if any(cells):
            first = _middle(_figures(results, shape, name, WORKLOADS["W1"], "ttft_s"))
            serving = {
                key: _middle(_figures(results, shape, name, WORKLOADS["S1"], key))
                for key in ("ttft_p99_s", "itl_p50_s", "itl_p99_s")
            }
            gaps = [serving["itl_p50_s"], serving["itl_p99_s"]]
            rows.append([
                name, *(cell or "-" for cell in cells), _number(first, 3), _number(serving["ttft_p99_s"], 2),
                " / ".join(_number(gap and 1000 * gap, 0) for gap in gaps),
            ])  # fmt: skip
    return "Medians (min to max, runs).\n\n" + _table(rows)


def _ratios(results: Results, shape: str) -> str:
    """lsv over the best peer of the same precision."""
    rows = [["workload", *(f"{one}: lsv / best peer" for one in PRECISIONS)]]
    for workload in WORKLOADS.values():
        cells = [_ratio(results, shape, workload, precision) for precision in PRECISIONS]
        if any(cell != "-" for cell in cells):
            rows.append([f"{workload.name} {workload.meaning}", *cells])
    return "Ratios of the medians.\n\n" + _table(rows)


def _ratio(results: Results, shape: str, workload: Workload, precision: str) -> str:
    medians = {
        name: _middle(_figures(results, shape, name, workload, workload.figure))
        for name, engine in ENGINES.items()
        if engine.precision == precision
    }
    found = {name: value for name, value in medians.items() if value}
    ours = next((value for name, value in found.items() if ENGINES[name].program == LSV), None)
    peers = {name: value for name, value in found.items() if ENGINES[name].program != LSV}
    if not peers:
        return "-"
    best = max(peers, key=lambda name: peers[name])
    return f"{_number(ours and ours / peers[best], 2)} ({best} {peers[best]:.0f})"


def _roofline(results: Results, shape: str, facts: Shape) -> str:
    """W1 against the bandwidth (best pattern, median), W2 against the peak of the class's arithmetic."""
    read = _middle(float(one["read_gbps"]) for one in results.limits) or 0.0
    peaks = {
        "bf16": _middle(float(one["bf16_tflops"]) for one in results.limits) or 0.0,
        "int8": _middle(float(one["int8_tops"]) for one in results.limits) or 0.0,
    }
    rows = [["engine", "MB a token", "W1 limit tok/s", "W1 of limit", "W2 TFLOP/s", "of bf16 peak", "of int8 peak"]]
    for name, engine in ENGINES.items():
        decode = _middle(_figures(results, shape, name, WORKLOADS["W1"], "decode_tps"))
        prefill = _middle(_figures(results, shape, name, WORKLOADS["W2"], "prompt_tps"))
        if decode is None and prefill is None:
            continue
        bytes_a_token = facts.weight_bytes(engine.bits) + facts.kv_bytes(WORKLOADS["W1"].prompt + 64)
        limit = 1e9 * read / bytes_a_token
        tokens = WORKLOADS["W2"].prompt
        rate = prefill and prefill * facts.prefill_flops(tokens) / tokens / 1e12
        rows.append([
            name, f"{bytes_a_token / 1e6:.0f}", f"{limit:.1f}", _percent(decode, limit), _number(rate, 2),
            _percent(rate, peaks["bf16"]), _percent(rate, peaks["int8"]),
        ])  # fmt: skip
    return "Shares of the machine's limits (medians of both).\n\n" + _table(rows)


def _memory(results: Results, shape: str, facts: Shape) -> str:
    """Load to ready in seconds; anonymous and shared memory of all processes after the last workload, in MiB."""
    rows = [["engine", "load s", "server ready s", "memory MiB", "mapped files MiB", "weights MiB"]]
    for name, engine in ENGINES.items():
        runs = [run for one in WORKLOADS.values() for run in results.of(shape, name, one.name)]
        if not runs:
            continue
        offline = [run for run in runs if run["workload"] != "S1"]
        loads = [_middle(float(run["load_s"]) for run in part) for part in (offline, results.of(shape, name, "S1"))]
        rows.append([
            name, *(_number(load, 1) for load in loads),
            f"{max(run.get('memory_mib', 0) for run in runs):.0f}",
            f"{max(run.get('mapped_files_mib', 0) for run in runs):.0f}",
            f"{facts.weight_bytes(engine.bits) / 2**20:.0f}",
        ])  # fmt: skip
    return "Start and memory.\n\n" + _table(rows)


def _growth(results: Results, shape: str) -> list[str]:
    """How prefill and decode grow: a chart, and a table that starts with its lines in their order."""
    parts = []
    for title, axis, group in (
        ("Prefill, tokens a second", "tokens of the prompt", "prefill"),
        ("Decode, tokens a second", "rows", "decode"),
    ):
        workloads = [WORKLOADS[one] for one in GROUPS[group]]
        lines = {}
        for name in ENGINES:
            figures = [_middle(_figures(results, shape, name, one, one.figure)) for one in workloads]
            if None not in figures:
                lines[name] = figures
        if not lines:
            continue
        ticks = ", ".join(one[1:] for one in GROUPS[group])
        drawn = [f"    line [{', '.join(_number(one, 0) for one in figures)}]" for figures in lines.values()]
        chart = ["```mermaid", "xychart-beta", f'    title "{title}"', f'    x-axis "{axis}" [{ticks}]', *drawn, "```"]
        rows = [[axis, *(one[1:] for one in GROUPS[group])]]
        rows += [[name, *(_number(one, 0) for one in figures)] for name, figures in lines.items()]
        parts += ["\n".join(chart), _table(rows)]
    return parts


def _problems(results: Results) -> str:
    failed = [run for run in results.runs if run.get("error")]
    short = [run for run in results.runs if not run.get("error") and not run["complete"]]
    disturbed = [run for run in results.runs if not run.get("error") and is_disturbed(run)]
    lines = []
    if failed:
        lines.append("Failed: " + "; ".join(f"{_name(run)} ({run['error']})" for run in failed) + ".")
    if short:
        lines.append("Fewer tokens than asked for: " + ", ".join(map(_name, short)) + ".")
    if disturbed:
        lines.append(f"{len(disturbed)} of {len(results.runs)} runs were disturbed by other processes or the host.")
    return "\n\n".join(lines)


def _name(run: Record) -> str:
    return f"{run['engine']} {run['workload']} {run['shape']}"


def _ran(results: Results, shape: str, workload: Workload) -> bool:
    return any(results.of(shape, name, workload.name) for name in ENGINES)


def _figures(results: Results, shape: str, engine: str, workload: Workload, key: str) -> list[float]:
    runs = results.of(shape, engine, workload.name)
    return [float(run[key]) for run in runs if run["complete"] and run.get(key) is not None]


def _spread(found: Sequence[float]) -> str:
    if not found:
        return ""
    places = 0 if max(found) >= 100 else 1
    middle = _number(statistics.median(found), places)
    if len(found) == 1:
        return f"{middle} (1)"
    return f"{middle} ({_number(min(found), places)} to {_number(max(found), places)}, {len(found)})"


def _middle(found: Iterable[float]) -> float | None:
    values = list(found)
    return statistics.median(values) if values else None


def _number(value: float | None, places: int) -> str:
    return "-" if value is None else f"{value:.{places}f}"


def _percent(value: float | None, limit: float) -> str:
    return "-" if value is None or not limit else f"{100 * value / limit:.0f} %"


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body))
