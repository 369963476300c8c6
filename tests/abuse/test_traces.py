"""A trace collector hangs. Neither requests nor the shutdown of the server wait for it."""

from __future__ import annotations

import threading
import time

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from lsv.request.outputs import RequestRecord
from lsv.request.params import SamplingParams
from lsv.request.request import FinishReason
from lsv.tracing import tracer
from lsv.tracing.tracer import Tracer
from lsv_testing.fakes.requests import make_spec

RECORD = RequestRecord(
    request_id="r", model="m", prompt_tokens=1, tokens=1, cached_tokens=0, finish=FinishReason.STOP, n=1, best_of=1,
    max_tokens=1, queued=0.0, prefill=0.0, ttft=None, e2e=1.0,
)  # fmt: skip


class Hanging(SpanExporter):
    """Accepts spans and never acknowledges them."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def export(self, spans):
        self.released.wait(60)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        pass


@pytest.fixture
def hanging():
    found = Hanging()
    yield found
    found.released.set()


def test_a_hanging_collector_delays_no_request_and_no_stop(hanging, monkeypatch, caplog):
    monkeypatch.setattr(tracer, "_CLOSE_SECONDS", 0.3)
    processor = BatchSpanProcessor(hanging, max_queue_size=64, max_export_batch_size=16)
    found, spec = Tracer(processor), make_spec((1, 2), SamplingParams(), request_id="r")
    slowest = 0.0
    for _ in range(500):
        began = time.monotonic()
        found.tell(spec, RECORD)
        slowest = max(slowest, time.monotonic() - began)
    assert slowest < 1, "what finds no room in the queue is dropped"
    began = time.monotonic()
    found.close()
    assert time.monotonic() - began < 5
    assert "the collector did not answer within 0.3 s" in caplog.text
