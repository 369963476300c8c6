"""schemathesis over ``/openapi.json`` of real servers: lsv-demo, and a tiny model that hears for its routes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from lsv_testing.tiny_hearing import tiny_hearing
from trials.server import TrialServer

_CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,negative_data_rejection,unsupported_method,allow_header_conformance,events_are_valid"
)
_CONFIG = """
hooks = "trials.fuzz.api_hooks"

[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", "501", "503"]

[output.truncation]
enabled = false
"""
_SLOWEST = "20"
"""Seconds that an answer may take; all are short, but the machine may be busy."""
_LITTLE = ("--max-num-seqs", "8", "--num-gpu-blocks-override", "256", "--disable-log-requests")


@dataclass(frozen=True)
class ApiReport:
    """``output`` is schemathesis's own, with a curl line for each failure."""

    model: str
    passed: bool
    summary: str
    faults: int
    output: Path


def fuzz_api(seconds: float, seed: int, folder: Path) -> list[ApiReport]:
    """A fifth of the time goes to the routes that only a model that hears has."""
    heard = folder / "tiny-whisper"
    if not heard.is_dir():
        tiny_hearing(heard)
    return [
        _run("lsv-demo", (), 0.8 * seconds, seed, folder),
        _run(str(heard), ("--include-path-regex", "/v1/audio"), 0.2 * seconds, seed, folder),
    ]


def _run(model: str, chosen: tuple[str, ...], seconds: float, seed: int, folder: Path) -> ApiReport:
    name = Path(model).name
    config, output = folder / "schemathesis.toml", folder / f"api-{name}-{seed}.txt"
    config.write_text(_CONFIG, encoding="utf-8")
    with TrialServer(model, *_LITTLE, "--served-model-name", "lsv-demo", log=folder / f"api-{name}.log") as server:
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run"),
            *(f"{server.url}/openapi.json", "--seed", str(seed), "--max-time", str(max(1, round(seconds)))),
            *("--checks", _CHECKS, "--phases", "examples,coverage,fuzzing", "--request-timeout", "60"),
            *("--max-response-time", _SLOWEST, "--continue-on-failure", "--warnings", "off", *chosen),
        ]
        with output.open("wb") as file:
            code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
        faults = server.faults()
    return ApiReport(name, code == 0, _summary(output), faults, output)


def _summary(output: Path) -> str:
    """The line that counts test cases."""
    lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.strip() for line in lines if "generated" in line), f"nothing, see {output}")
