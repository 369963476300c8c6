"""Saved results, comparisons of two, charts and pictures of them."""

import importlib.util
import io
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from lsv_base.errors import ConfigError
from lsv_bench.charts import plot, svg
from lsv_bench.charts.charts import Chart, Series, charts
from lsv_bench.charts.compare import compare
from lsv_bench.charts.tables import show_comparison, show_result
from lsv_bench.machine import Machine, describe_machine
from lsv_bench.result import Result, Run, read_result, write_result

MACHINE = Machine(cpu="c", cores=2, instruction_sets=("avx2",), memory_gib=8.0, system="s", versions={"lsv": "1"})
SVG = "{http://www.w3.org/2000/svg}"


def result(*runs: Run, kind: str = "serve", **changes: Any) -> Result:
    fields = {"title": "t <&>", "command": "lsv bench", "time": "now", "machine": MACHINE, **changes}
    return Result(kind=kind, runs=list(runs), **fields)


def run(point: dict[str, Any] | None = None, **figures: float) -> Run:
    return Run(point=point or {}, figures=figures)


def sweep() -> Result:
    points = [("1", 10.0, 5.0), ("4", 30.0, 9.0), ("inf", 33.0, 900.0)]
    runs = [
        run({"request_rate": rate}, output_tokens_per_s=speed, ttft_p50_ms=ttft, ttft_p99_ms=2 * ttft)
        for rate, speed, ttft in points
    ]
    return result(*runs, Run(point={"random_input_len": 9000}, errors={"too long": 1}), kind="sweep-serve")


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = str(tmp_path / "new" / "r.json")
    write_result(sweep(), path)
    assert read_result(path) == sweep()
    assert json.loads(Path(path).read_text())["lsv_bench"] == 1


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "can't be read"),
        ("{", "can't be read"),
        ("[1]", "can't be read"),
        ("{}", "lsv_bench must be 1, got None"),
        ('{"lsv_bench": 2}', "must be 1, got 2"),
        ('{"lsv_bench": 1, "kind": "serve"}', "damaged"),
    ],
)
def test_other_files_are_no_results(tmp_path: Path, content: str | None, why: str) -> None:
    path = tmp_path / "r.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=why):
        read_result(str(path))


def test_the_machine_is_described_without_names() -> None:
    machine = describe_machine()
    assert machine.cpu
    assert machine.cores >= 1
    assert {"python", "lsv"} <= machine.versions.keys()
    assert set(msgspec.to_builtins(machine)) == {
        "cpu", "cores", "instruction_sets", "memory_gib", "system", "versions",
    }  # fmt: skip


def test_repeats_compare_by_their_medians() -> None:
    a = result(*(run(output_tokens_per_s=speed, ttft_p50_ms=5.0, requests=4) for speed in (10.0, 90.0, 20.0)))
    b = result(run(output_tokens_per_s=30.0, ttft_p50_ms=10.0, requests=4, errors=0), settings={"rate": 2})
    found = compare(a, b)
    assert found.repeats == (3, 1)
    rows = {row.figure: (row.a, row.b, row.ratio, row.better, row.verdict) for row in found.rows}
    assert rows == {
        "output_tokens_per_s": (20.0, 30.0, 1.5, "higher", "better"),
        "ttft_p50_ms": (5.0, 10.0, 2.0, "lower", "worse"),
        "requests": (4, 4, 1.0, None, ""),
    }
    assert [(one.what, one.a, one.b) for one in found.differences] == [("rate", "-", "2")]


def test_a_percent_is_noise_and_nothing_divides_by_zero() -> None:
    found = compare(result(run(a_ms=100.0, errors=0)), result(run(a_ms=100.9, errors=2)))
    assert [(row.figure, row.ratio, row.verdict) for row in found.rows] == [
        ("a_ms", pytest.approx(1.009), "same"), ("errors", None, "worse"),
    ]  # fmt: skip


def test_sweeps_compare_point_by_point() -> None:
    other = result(run({"request_rate": "4"}, ttft_p50_ms=3.0), run({"request_rate": "8"}, ttft_p50_ms=1.0),
                   kind="sweep-serve")  # fmt: skip
    found = compare(sweep(), other)
    assert [(row.point, row.figure, row.ratio) for row in found.rows] == [
        ("request_rate=4", "ttft_p50_ms", pytest.approx(1 / 3))
    ]
    assert found.only_b == ["request_rate=8"]
    assert found.only_a == ["request_rate=1", "request_rate=inf"]


def test_what_does_not_compare_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"x\.json holds a serve benchmark and y\.json a latency one"):
        compare(result(run(a_ms=1)), result(run(a_ms=1), kind="latency"), names=("x.json", "y.json"))
    with pytest.raises(ConfigError, match="no point in common"):
        compare(result(run(a_ms=1)), result(Run(errors={"x": 1})))


def printed(show: Any, *arguments: Any) -> str:
    console = Console(file=io.StringIO(), width=160)
    show(*arguments[:1], console, *arguments[1:])
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.row("F-888")
@pytest.mark.parametrize("width", [80, 40])
def test_a_sweep_is_shown_whole_on_a_narrow_terminal(width: int) -> None:
    latencies = ("ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms", "e2el_p50_ms")
    names = ("output_tokens_per_s", "requests_per_s", "goodput_per_s", *latencies)
    figures = {name: 123_450 + number for number, name in enumerate(names)}
    buffer = io.StringIO()
    show_result(result(run({"max_concurrency": 4}, **figures), kind="sweep-serve"), Console(file=buffer, width=width))
    shown = buffer.getvalue()
    assert max(map(len, shown.splitlines())) <= width
    assert [name for name, value in figures.items() if f"{value:,}" not in shown] == []
    assert shown.count("max_concurrency") > 1


def test_tables() -> None:
    single = printed(show_result, result(run(requests=4, ttft_mean_ms=1.5, ttft_p50_ms=1234.5)))
    assert re.search(r"requests\s+│\s+4 ", single)
    assert re.search(r"ttft\s+│\s+1\.50\s+│\s+1,23[45] ", single)
    repeated = printed(show_result, result(run(ready_s=1.0), run(ready_s=3.0), run(ready_s=2.0), kind="startup"))
    assert re.search(r"ready_s\s+│\s+2\s+│\s+1\s+│\s+3 ", repeated)
    swept = printed(show_result, sweep())
    assert re.search(r"request_rate\s+┃\s+tok/s\s+┃\s+ttft p50", swept)
    assert re.search(r"4\s+│\s+30\s+│\s+9 ", swept)
    assert "1 × error at random_input_len=9000: too long" in swept
    compared = printed(show_comparison, compare(sweep(), sweep()), ("x.json", "y.json"))
    assert "A = x.json" in compared
    assert re.search(r"request_rate=1\s+│\s+output_tokens_per_s\s+│\s+10\s+│\s+10\s+│\s+1\.000", compared)


def test_a_sweep_charts_lines_and_others_bars() -> None:
    drawn = charts(sweep())
    assert [(c.title, c.labels, c.lines) for c in drawn] == [
        ("Throughput by request rate", ["1", "4", "inf"], True),
        ("Time to first token by request rate", ["1", "4", "inf"], True),
    ]
    assert [(s.name, s.values) for s in drawn[1].series] == [("p50", [5.0, 9.0, 900.0]), ("p99", [10.0, 18.0, 1800.0])]
    cold, warm = run({"start": "cold"}, stage_weights_s=2.0), run({"start": "warm"}, stage_weights_s=1.0)
    (chart,) = charts(result(cold, warm, kind="startup"))
    assert (chart.labels, [s.values for s in chart.series], chart.lines) == (["weights"], [[2.0], [1.0]], False)
    with pytest.raises(ConfigError, match="nothing to plot"):
        charts(result(Run(errors={"x": 1})))


@pytest.mark.parametrize("lines", [True, False])
@pytest.mark.parametrize("values", [[1.0, None, 3.0], [0.0, 0.0, 0.0], [0.002, 5.0, 90_000.0]])
def test_drawings_stay_inside_and_are_well_formed(lines: bool, values: list[float | None]) -> None:
    chart = Chart(title="a < b & c", unit="ms", x='"x"', labels=["1", "2", "3"], lines=lines,
                  series=[Series("p50", values), Series("p99", values)])  # fmt: skip
    root = ET.fromstring(svg.draw(chart))
    _, _, width, height = map(float, root.get("viewBox", "").split())
    limits = {"x": width, "x1": width, "x2": width, "cx": width, "y": height, "y1": height, "y2": height, "cy": height}
    for element in root.iter():
        for name, limit in limits.items():
            assert 0 <= float(element.get(name, 0)) <= limit, (element.tag, name)
        if element.tag == f"{SVG}rect":
            assert 0 <= float(element.get("y", 0)) + float(element.get("height", 0)) <= height
    marks = list(root.iter(f"{SVG}circle")) if lines else [r for r in root.iter(f"{SVG}rect") if len(r)]
    assert len(marks) == 2 * sum(value is not None for value in values)
    assert "a < b & c" in [text.text for text in root.iter(f"{SVG}text")]


def test_higher_values_are_drawn_higher() -> None:
    for values in ([1.0, 2.0, 3.0], [1.0, 100.0, 10_000.0]):
        chart = Chart(title="t", unit="", x="", labels=["a", "b", "c"], series=[Series("s", values)], lines=True)
        root = ET.fromstring(svg.draw(chart))
        heights = [float(circle.get("cy", 0)) for circle in root.iter(f"{SVG}circle")]
        assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=0.2)
        assert heights[0] > heights[2]


def test_bars_bear_their_values_where_there_is_room() -> None:
    def texts(series: int) -> set[str | None]:
        rows = [Series(f"s{n}", [1234.0, 0.5]) for n in range(series)]
        chart = Chart(title="t", unit="", x="", labels=["a", "b"], series=rows)
        return {text.text for text in ET.fromstring(svg.draw(chart)).iter(f"{SVG}text")}

    assert {"1,234", "0.5"} <= texts(2)
    assert "1,234" not in texts(12)


def test_ticks() -> None:
    assert svg.nice_ticks(9.3) == [0, 2, 4, 6, 8, 10]
    assert svg.nice_ticks(0.05) == pytest.approx([0, 0.01, 0.02, 0.03, 0.04, 0.05])
    assert svg.nice_ticks(0) == [0, 1]
    assert svg.log_ticks(5, 1800) == [1, 10, 100, 1000, 10_000]
    assert svg.log_ticks(10, 10) == [10, 100]


def test_a_page_needs_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "p.html"
    plot.write_plot(sweep(), str(path))
    root = ET.parse(path).getroot()
    assert len(list(root.iter(f"{SVG}svg"))) == 2
    text = path.read_text()
    assert "t &lt;&amp;&gt;" in text
    assert not re.search(r"(src|href)=|@import|url\(", text)
    assert "request_rate=inf" in text


def test_a_png_needs_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs matplotlib.*pip install matplotlib"):
        plot.check_plot("x.png")
    with pytest.raises(ConfigError, match=r"\.html or \.png"):
        plot.check_plot("x.pdf")
    plot.check_plot("x.HTML")


def test_a_png_is_drawn_where_matplotlib_is(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot.write_plot(sweep(), str(tmp_path / "p.png"))
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
