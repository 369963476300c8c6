"""OpenTelemetry spans of requests: created when a request ends, sent by OpenTelemetry's own thread.

Needs ``opentelemetry-sdk`` and an exporter (``pip install -e '.[otel]'``), and is imported only where traces are asked
for. Attributes have vLLM's names. Source: vLLM 03b8a67, vllm/tracing.py, SpanAttributes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from lsv.config import Traces
from lsv.request.outputs import RequestRecord
from lsv.request.request import FinishReason
from lsv.request.spec import RequestSpec
from lsv_base.errors import ConfigError
from lsv_base.version import __version__

_log = logging.getLogger(__name__)

_NANOSECONDS = 1_000_000_000
_CLOSE_SECONDS = 3.0
"""Time limit for sending the last spans when a server stops."""


class Tracer:
    """Tells of requests that have ended, each in the trace that its headers name, or in one of its own."""

    def __init__(self, processor: SpanProcessor) -> None:
        resource = Resource.create()
        if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: "lsv"}))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)  # which may take as long as it likes
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("lsv", __version__)
        self._contexts = TraceContextTextMapPropagator()

    @classmethod
    def to(cls, traces: Traces) -> Tracer:
        """One that sends to a URL. Raises ``ConfigError`` where the exporter for its protocol is missing."""
        return cls(BatchSpanProcessor(_exporter(traces)))

    def tell(self, request: RequestSpec, record: RequestRecord) -> None:
        """One of the request's prompts has been answered, or has failed. It does not block."""
        end = time.time_ns()
        begin = end - int(record.e2e * _NANOSECONDS)
        span = self._tracer.start_span(
            "llm_request",
            context=self._contexts.extract(request.trace),
            kind=SpanKind.SERVER,
            attributes={**_of_request(request), **_of_record(record)},
            start_time=begin - int(request.preparing * _NANOSECONDS),
        )
        if record.finish is FinishReason.ERROR:
            span.set_status(StatusCode.ERROR)
        inside = set_span_in_context(span)
        media = [("media", -request.preparing, 0.0)] if request.preparing else []
        for name, first, last in (*media, *_phases(record)):
            part = self._tracer.start_span(name, context=inside, start_time=begin + int(first * _NANOSECONDS))
            part.end(begin + int(last * _NANOSECONDS))
        span.end(end)

    def close(self) -> None:
        """Send the remaining spans. Gives up on a collector that does not answer within ``_CLOSE_SECONDS``."""
        ending = threading.Thread(target=self._provider.shutdown, name="lsv-traces", daemon=True)
        ending.start()
        ending.join(_CLOSE_SECONDS)
        if ending.is_alive():
            _log.warning("traces: the collector did not answer within %g s; the last spans are lost", _CLOSE_SECONDS)


def _phases(record: RequestRecord) -> Iterator[tuple[str, float, float]]:
    """The parts of a request's time: name, begin and end in seconds from its arrival. What never began has none."""
    planned, first = record.queued, record.queued + record.prefill
    yield "queue", 0.0, min(planned, record.e2e) if record.prefill else record.e2e
    if record.prefill:
        yield "prefill", planned, min(first, record.e2e)
        if record.tokens and first < record.e2e:
            yield "decode", first, record.e2e


def _of_request(request: RequestSpec) -> Mapping[str, Any]:
    params = request.sampling
    found: dict[str, Any] = {"gen_ai.request.id": request.request_id}
    if params is not None:
        found |= {"gen_ai.request.temperature": params.temperature, "gen_ai.request.top_p": params.top_p}
    return found


def _of_record(record: RequestRecord) -> Mapping[str, Any]:
    first = record.queued + record.prefill
    found: dict[str, Any] = {
        "gen_ai.response.model": record.model,
        "gen_ai.request.max_tokens": record.max_tokens,
        "gen_ai.request.n": record.n,
        "gen_ai.usage.num_sequences": record.best_of,
        "gen_ai.usage.prompt_tokens": record.prompt_tokens,
        "gen_ai.usage.completion_tokens": record.tokens,
        "gen_ai.latency.time_in_queue": record.queued,
        "gen_ai.latency.e2e": record.e2e,
        "gen_ai.latency.time_in_model_prefill": record.prefill,
        "gen_ai.latency.time_in_model_decode": max(0.0, record.e2e - first) if record.prefill else 0.0,
        "gen_ai.latency.time_in_model_inference": max(0.0, record.e2e - record.queued) if record.prefill else 0.0,
        "gen_ai.response.finish_reasons": [record.finish.value],
        "lsv.usage.cached_tokens": record.cached_tokens,
        "lsv.preemptions": record.preemptions,
    }
    if record.ttft is not None:
        found["gen_ai.latency.time_to_first_token"] = record.ttft
    return found


def _exporter(traces: Traces) -> SpanExporter:
    try:
        exporter: SpanExporter
        if traces.protocol == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc

            exporter = Grpc(endpoint=traces.endpoint)
        else:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http

            exporter = Http(endpoint=traces.endpoint)
        return exporter
    except ImportError as cause:
        package = f"opentelemetry-exporter-otlp-proto-{traces.protocol.partition('/')[0]}"
        raise ConfigError(
            f"traces go to {traces.endpoint} over {traces.protocol}: pip install {package} ({cause}), or choose the "
            "other with --otlp-traces-protocol",
            param="otlp_traces_endpoint",
        ) from None
