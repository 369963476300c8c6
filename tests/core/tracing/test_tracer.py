"""Spans of requests: their times, their names, their place in the caller's trace."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from lsv.request.outputs import RequestRecord
from lsv.request.params import SamplingParams
from lsv.request.request import FinishReason
from lsv.request.spec import RequestSpec
from lsv_testing.fakes.requests import make_spec

pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry is not installed: pip install -e '.[otel]'")

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from lsv.config import Traces
from lsv.tracing.tracer import Tracer
from lsv_base.errors import ConfigError

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
SECOND = 1_000_000_000


def spec(**more: Any) -> RequestSpec:
    return make_spec((1, 2, 3), SamplingParams(temperature=0.5, top_p=0.9), request_id="r1", **more)


def record(**changes: Any) -> RequestRecord:
    known: dict[str, Any] = {
        "request_id": "r1", "model": "m", "prompt_tokens": 3, "tokens": 5, "cached_tokens": 0,
        "finish": FinishReason.STOP, "n": 1, "best_of": 1, "max_tokens": 16, "queued": 1.0, "prefill": 2.0, "ttft": 3.1,
        "e2e": 10.0,
    }  # fmt: skip
    return RequestRecord(**{**known, **changes})


def tell(request: RequestSpec, *records: RequestRecord) -> dict[str, ReadableSpan]:
    exporter = InMemorySpanExporter()
    traces = Tracer(SimpleSpanProcessor(exporter))
    for one in records:
        traces.tell(request, one)
    traces.close()
    return {span.name: span for span in exporter.get_finished_spans()}


@pytest.mark.row("F-123", "F-311", "F-873")
def test_a_request_is_a_span_of_the_callers_trace() -> None:
    found = tell(spec(trace={"traceparent": f"00-{TRACE}-{PARENT}-01"}), record())
    whole = found["llm_request"]
    assert f"{whole.context.trace_id:032x}" == TRACE
    assert whole.parent is not None
    assert f"{whole.parent.span_id:016x}" == PARENT
    assert whole.attributes is not None
    assert whole.resource.attributes["service.name"] == "lsv"
    assert {name: whole.attributes[name] for name in whole.attributes if "latency" not in name} == {
        "gen_ai.request.id": "r1", "gen_ai.request.temperature": 0.5, "gen_ai.request.top_p": 0.9,
        "gen_ai.response.model": "m", "gen_ai.request.max_tokens": 16, "gen_ai.request.n": 1,
        "gen_ai.usage.num_sequences": 1, "gen_ai.usage.prompt_tokens": 3, "gen_ai.usage.completion_tokens": 5,
        "gen_ai.response.finish_reasons": ("stop",), "lsv.usage.cached_tokens": 0, "lsv.preemptions": 0,
    }  # fmt: skip
    assert {name.rpartition(".")[2]: value for name, value in whole.attributes.items() if "latency" in name} == {
        "time_in_queue": 1.0, "time_to_first_token": 3.1, "e2e": 10.0, "time_in_model_prefill": 2.0,
        "time_in_model_decode": 7.0, "time_in_model_inference": 9.0,
    }  # fmt: skip


def test_its_parts_follow_each_other() -> None:
    found = tell(spec(), record())
    whole = found["llm_request"]
    assert whole.parent is None
    assert whole.start_time is not None
    spans = {}
    for name in ("queue", "prefill", "decode"):
        part = found[name]
        assert part.parent is not None
        assert part.start_time is not None
        assert part.end_time is not None
        assert part.parent.span_id == whole.context.span_id
        spans[name] = ((part.start_time - whole.start_time) / SECOND, (part.end_time - whole.start_time) / SECOND)
    assert spans == {"queue": (0.0, 1.0), "prefill": (1.0, 3.0), "decode": (3.0, 10.0)}


def test_media_come_first() -> None:
    found = tell(spec(preparing=0.5), record())
    whole, media, queue = (found[name] for name in ("llm_request", "media", "queue"))
    assert whole.start_time == media.start_time
    assert media.end_time == queue.start_time == whole.start_time + SECOND // 2


def test_what_never_began_has_waited() -> None:
    found = tell(spec(), record(finish=FinishReason.ERROR, queued=0.0, prefill=0.0, ttft=None, tokens=0, e2e=4.0))
    assert set(found) == {"llm_request", "queue"}
    assert found["llm_request"].status.status_code.name == "ERROR"


def test_a_trace_that_is_not_sampled_stays_so() -> None:
    assert tell(spec(trace={"traceparent": f"00-{TRACE}-{PARENT}-00"}), record()) == {}


def test_an_exporter_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("grpc", "http"):
        monkeypatch.setitem(sys.modules, f"opentelemetry.exporter.otlp.proto.{module}.trace_exporter", None)
    for protocol, package in (("grpc", "proto-grpc"), ("http/protobuf", "proto-http")):
        with pytest.raises(ConfigError, match=f"pip install opentelemetry-exporter-otlp-{package} "):
            Tracer.to(Traces(endpoint="http://localhost:4317", protocol=protocol))
