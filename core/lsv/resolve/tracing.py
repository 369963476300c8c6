"""Where spans of requests are sent: ``--otlp-traces-endpoint``."""

from __future__ import annotations

from importlib.util import find_spec
from urllib.parse import urlsplit

from lsv.config import Traces
from lsv.settings import Settings
from lsv_base.errors import ConfigError

_NAME = "otlp_traces_endpoint"
_HTTP_PORT, _HTTP_PATH = 4318, "/v1/traces"


def traces(settings: Settings) -> Traces | None:
    """None where nothing is sent. Raises ``ConfigError`` for what is no URL, and without OpenTelemetry.

    Without a protocol the URL says it: HTTP has a port and a path of its own.
    """
    given: str | None = settings[_NAME]
    if not given:
        return None
    try:
        url = urlsplit(given)
        valid, port = url.scheme in ("http", "https") and bool(url.hostname), url.port
    except ValueError:  # a port or an address that is none
        valid = False
    if not valid:
        raise ConfigError(f"{_NAME} must be a URL such as http://localhost:4317, got {given!r}", param=_NAME)
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        raise ConfigError(f"{_NAME} needs OpenTelemetry: pip install -e '.[otel]' in a clone of lsv", param=_NAME)
    path = url.path.rstrip("/")
    over_http = port == _HTTP_PORT or path.endswith(_HTTP_PATH)
    protocol = settings["otlp_traces_protocol"] or ("http/protobuf" if over_http else "grpc")
    if protocol == "http/protobuf" and not path:
        given = given.rstrip("/") + _HTTP_PATH
    return Traces(endpoint=given, protocol=protocol)
