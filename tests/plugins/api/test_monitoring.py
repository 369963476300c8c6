"""Prometheus and Grafana as ``deploy/`` sets them up, held against what ``/metrics`` shows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text(encoding="utf-8"))
PANELS: dict[int, dict[str, Any]] = {panel["id"]: panel for panel in DASHBOARD["panels"]}
QUANTILES = ["P99", "P95", "P90", "P50"]

# id, unit, legends, and the series that are queried
SHOWN = [
    (9, "s", [*QUANTILES, "Average"], "e2e_request_latency_seconds"),
    (8, "short", ["Prompt Tokens/Sec", "Generation Tokens/Sec"], "prompt_tokens_total generation_tokens_total"),
    (10, "s", [*QUANTILES, "Mean"], "time_per_output_token_seconds"),
    (3, "none", ["Num Running", "Num Swapped", "Num Waiting"],
     "num_requests_running num_requests_swapped num_requests_waiting"),
    (5, "s", [*QUANTILES, "Average"], "time_to_first_token_seconds"),
    (4, "percentunit", ["GPU Cache Usage", "CPU Cache Usage"], "gpu_cache_usage_perc cpu_cache_usage_perc"),
    (11, "none", ["{{finished_reason}}"], "request_success_total"),
    (14, "s", ["Queue Time"], "request_queue_time_seconds_sum"),
    (15, "s", ["Prefill", "Decode"], "request_prefill_time_seconds_sum request_decode_time_seconds_sum"),
    (16, "none", ["Tokens"], "request_max_num_generation_tokens_sum"),
]  # fmt: skip


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def queried(panel: dict[str, Any]) -> list[str]:
    return [target["expr"] for target in panel["targets"]]


@pytest.mark.row(
    "F-783", "F-784", "F-785", "F-786", "F-787", "F-788", "F-789", "F-790", "F-791", "F-792", "F-793", "F-794"
)
@pytest.mark.parametrize("panel", PANELS.values(), ids=lambda panel: panel["title"])
async def test_every_series_of_a_panel_is_there(site, panel):
    await site.complete(max_tokens=3)
    scraped = text_string_to_metric_families((await site.http.get("/metrics")).text)
    labels = {sample.name: set(sample.labels) for family in scraped for sample in family.samples}
    for expression in queried(panel):
        series = re.findall(r"(vllm:\w+)\{", expression)
        assert series
        for name in series:
            assert labels[name] >= {"model_name", *re.findall(r"by\((\w+)\)", expression)}, name


@pytest.mark.row("F-783", "F-784", "F-785", "F-786", "F-787", "F-788", "F-791", "F-792", "F-793", "F-794", "F-1000")
@pytest.mark.parametrize(("id", "unit", "legends", "series"), SHOWN, ids=[str(row[0]) for row in SHOWN])
def test_what_panels_show(id, unit, legends, series):
    panel = PANELS[id]
    assert (panel["type"], panel["fieldConfig"]["defaults"]["unit"]) == ("timeseries", unit)
    assert [target["legendFormat"] for target in panel["targets"]] == legends
    wanted = {f"vllm:{name}" for name in series.split()}
    if legends[:4] == QUANTILES:
        (name,) = wanted
        quantiles, (mean,) = queried(panel)[:4], queried(panel)[4:]
        assert [re.match(r"histogram_quantile\(([\d.]+), sum by\(le\)", text)[1] for text in quantiles] == [
            "0.99", "0.95", "0.9", "0.5"
        ]  # fmt: skip
        assert re.findall(r"rate\((vllm:\w+)", mean) == [f"{name}_sum", f"{name}_count"]
        wanted = {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    assert {name for text in queried(panel) for name in re.findall(r"vllm:\w+", text)} == wanted


@pytest.mark.row("F-789", "F-790")
@pytest.mark.parametrize(("id", "series"), [(12, "request_prompt_tokens"), (13, "request_generation_tokens")])
def test_lengths_are_heatmaps(id, series):
    assert PANELS[id]["type"] == "heatmap"
    assert PANELS[id]["options"]["color"]["scheme"] == "Spectral"
    (target,) = PANELS[id]["targets"]
    assert target["format"] == "heatmap"
    assert target["expr"] == (
        f'sum by(le) (increase(vllm:{series}_bucket{{model_name="$model_name"}}[$__rate_interval]))'
    )


@pytest.mark.row("F-782")
def test_two_columns_of_six():
    places = [tuple(panel["gridPos"][side] for side in "xywh") for panel in DASHBOARD["panels"]]
    assert places == [(12 * (number % 2), 8 * (number // 2), 12, 8) for number in range(12)]
    assert len(PANELS) == 12, "an id is there twice"


@pytest.mark.row("F-780")
def test_the_shell():
    assert (DASHBOARD["title"], DASHBOARD["uid"], DASHBOARD["schemaVersion"]) == ("lsv", "lsv", 39)
    assert (DASHBOARD["time"], DASHBOARD["refresh"]) == ({"from": "now-5m", "to": "now"}, "")
    assert all(annotation["hide"] for annotation in DASHBOARD["annotations"]["list"])
    assert "id" not in DASHBOARD, "an id is a database's own"


@pytest.mark.row("F-781")
def test_source_and_model_are_chosen():
    source, model = DASHBOARD["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("DS_PROMETHEUS", "datasource", "prometheus")
    assert (model["name"], model["type"], model["definition"]) == ("model_name", "query", "label_values(model_name)")
    assert not any(variable[choice] for variable in (source, model) for choice in ("multi", "includeAll"))
    chosen = {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}
    assert model["datasource"] == chosen
    for panel in PANELS.values():
        assert [panel["datasource"], *(target["datasource"] for target in panel["targets"])] == [chosen] * (
            1 + len(panel["targets"])
        )
        assert all('{model_name="$model_name"}' in text for text in queried(panel))


@pytest.mark.row("F-777")
def test_the_services():
    services = read(DEPLOY / "monitoring.compose.yaml")["services"]
    prometheus, grafana = services["prometheus"], services["grafana"]
    assert prometheus["image"].startswith("${PROMETHEUS:-prom/prometheus:")
    assert grafana["image"].startswith("${GRAFANA:-grafana/grafana:")
    assert (prometheus["ports"], grafana["ports"]) == (["127.0.0.1:9090:9090"], ["127.0.0.1:3000:3000"])
    assert prometheus["extra_hosts"] == ["host.docker.internal:host-gateway"]
    assert grafana["depends_on"] == ["prometheus"]
    for volume in (*prometheus["volumes"], *grafana["volumes"]):
        here, _, rest = volume.partition(":")
        assert (DEPLOY / here).exists(), here
        assert rest.endswith(":ro")


@pytest.mark.row("F-778")
def test_what_is_scraped():
    config = read(DEPLOY / "prometheus" / "prometheus.yaml")
    assert config["global"] == {"scrape_interval": "5s", "evaluation_interval": "30s"}
    (job,) = config["scrape_configs"]
    assert job["job_name"] == "lsv"
    assert job["static_configs"] == [{"targets": ["host.docker.internal:8000"]}]


@pytest.mark.row("F-779")
def test_grafana_finds_its_source_and_its_dashboard():
    (source,) = read(DEPLOY / "grafana" / "provisioning" / "datasources" / "prometheus.yaml")["datasources"]
    assert (source["type"], source["url"], source["isDefault"]) == ("prometheus", "http://prometheus:9090", True)
    (provider,) = read(DEPLOY / "grafana" / "provisioning" / "dashboards" / "lsv.yaml")["providers"]
    volumes = read(DEPLOY / "monitoring.compose.yaml")["services"]["grafana"]["volumes"]
    assert f"./grafana/dashboard.json:{provider['options']['path']}/lsv.json:ro" in volumes


@pytest.mark.row("F-779", "F-795", "F-796", "F-797")
def test_the_guide_tells_of_every_panel():
    guide = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    for panel in PANELS.values():
        assert f"**{panel['title']}**" in guide
    for file in re.findall(r"`(deploy/[\w./-]+)`", guide):
        assert (ROOT / file).exists(), file
    for words in ("admin", "http://prometheus:9090", "docker compose -f deploy/monitoring.compose.yaml up"):
        assert words in guide
