"""What profiles are asked for, in vLLM's words."""

from typing import Any

import pytest

from lsv import plugins
from lsv.config import Profiling
from lsv.resolve.profiling import profiling
from lsv.resolve.tracing import traces
from lsv_base.errors import ConfigError
from lsv_offline.llm import read_options


def read(**given: Any) -> Profiling | None:
    return profiling(read_options(given, plugins.load(())))


@pytest.mark.row("F-224", "F-854")
def test_what_is_asked_for() -> None:
    assert read() is None
    assert read(torch_profiler_dir="/p") == Profiling(kind="torch", folder="/p")
    asked = {"profiler": "torch", "torch_profiler_dir": "/p", "torch_profiler_with_stack": True}
    assert read(profiler_config=asked) == Profiling(kind="torch", folder="/p", stacks=True)
    assert read(profiler_config={"torch_profiler_use_gzip": False}, torch_profiler_dir="/p") == Profiling(
        kind="torch", folder="/p", compressed=False
    )
    assert read(profiler_config={"profiler": "cuda"}) == Profiling(kind="device", folder="")


@pytest.mark.row("F-854", "F-865")
def test_the_folder_by_the_variable_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_TORCH_PROFILER_DIR", "/p")
    found = read()
    assert found is not None
    assert found.folder == "/p"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"profiler": "torch"}, 'needs "torch_profiler_dir"'),
        ({"profiler": "itt", "torch_profiler_dir": "/p"}, "one of torch, cuda, viztracer, got 'itt'"),
        ({"profiler": "torch", "torch_profiler_dirs": "/p"}, "torch_profiler_dirs is unknown"),
        ({"profiler": "torch", "torch_profiler_dir": "/p", "max_iterations": 3}, "max_iterations is unknown"),
        ({"torch_profiler_with_flops": True}, 'needs "profiler"'),
        ({"torch_profiler_dir": "/p", "torch_profiler_with_flops": "yes"}, "must be true or false"),
    ],
)
def test_what_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read(profiler_config=given)


@pytest.mark.row("F-869")
def test_calls_are_recorded_where_viztracer_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"profiler": "viztracer", "torch_profiler_dir": "/p"}
    monkeypatch.setattr("lsv.resolve.profiling.find_spec", lambda name: object())
    assert read(profiler_config=asked) == Profiling(kind="calls", folder="/p")
    with pytest.raises(ConfigError, match='needs "torch_profiler_dir"'):
        read(profiler_config={"profiler": "viztracer"})
    monkeypatch.setattr("lsv.resolve.profiling.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install viztracer"):
        read(profiler_config=asked)


def endpoint(url: str, **more: Any) -> tuple[str, str]:
    found = traces(read_options({"otlp_traces_endpoint": url, **more}, plugins.load(())))
    assert found is not None
    return found.endpoint, found.protocol


@pytest.mark.row("F-311")
def test_where_traces_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lsv.resolve.tracing.find_spec", lambda name: object())
    assert endpoint("http://localhost:4317") == ("http://localhost:4317", "grpc")
    over_http = ("http://localhost:4318/v1/traces", "http/protobuf")
    assert endpoint("http://localhost:4318") == endpoint("http://localhost:4318/v1/traces") == over_http
    assert endpoint("https://x/otel/v1/traces")[1] == "http/protobuf"
    assert endpoint("http://x:9", otlp_traces_protocol="http/protobuf")[0] == "http://x:9/v1/traces"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc")
    assert endpoint("http://localhost:4318")[1] == "grpc"
    with pytest.raises(ConfigError, match="must be a URL"):
        endpoint("localhost:4317")
    monkeypatch.setattr("lsv.resolve.tracing.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install -e '.\[otel\]'"):
        endpoint("http://localhost:4317")


@pytest.mark.parametrize("endpoint", ["localhost:4317", "http://localhost:99999", "http://[::1", "ftp://localhost"])
def test_an_endpoint_that_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="must be a URL such as"):
        traces(read_options({"otlp_traces_endpoint": endpoint}, plugins.load(())))
