"""Profiles: ``--profiler-config``, and the folder by itself."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lsv.config import Profiling
from lsv.resolve.tracing import traces
from lsv.settings import Settings
from lsv_base.errors import ConfigError, suggestion

_NAME = "profiler_config"
_KINDS = {"torch": "torch", "cuda": "device", "viztracer": "calls"}
"""Names of profilers, the first two vLLM's, and ours of what they record."""
_SWITCHES = {
    "torch_profiler_with_stack": "stacks",
    "torch_profiler_record_shapes": "record_shapes",
    "torch_profiler_with_memory": "memory",
    "torch_profiler_with_flops": "flops",
    "torch_profiler_use_gzip": "compressed",
}
"""vLLM's names of switches, and ours."""
_NEUTRAL = ("torch_profiler_dump_cuda_time_total", "ignore_frontend")
"""The table of ops is always written; only the engine is recorded."""
_KNOWN = ("profiler", "torch_profiler_dir", *_SWITCHES, *_NEUTRAL)


def operation(settings: Settings) -> dict[str, Any]:
    """How the engine is operated and watched: the part of a configuration that no answer depends on."""
    return {
        "step_timeout": settings["step_timeout"],
        "load_timeout": settings["load_timeout"],
        "profiling": profiling(settings),
        "traces": traces(settings),
        "sleep_mode": settings["enable_sleep_mode"],
    }


def profiling(settings: Settings) -> Profiling | None:
    """How steps are profiled on demand; None where nobody may ask for that. Raises ``ConfigError``."""
    given = settings[_NAME]
    if given is not None and not isinstance(given, dict):
        raise ConfigError(f"{_NAME} must be a JSON object", param=_NAME)
    options: dict[str, Any] = dict(given or {})
    for key in options:
        if key not in _KNOWN:
            raise ConfigError(
                f"{_NAME}: {key} is unknown{suggestion(key, _KNOWN)}; there are {', '.join(_KNOWN)}", param=_NAME
            )
    folder = options.get("torch_profiler_dir") or settings["torch_profiler_dir"]
    kind = options.get("profiler") or ("torch" if folder else None)
    if kind is None:
        if options:
            raise ConfigError(f'{_NAME} needs "profiler": one of {", ".join(_KINDS)}', param=_NAME)
        return None
    if kind not in _KINDS:
        raise ConfigError(f"{_NAME}: profiler must be one of {', '.join(_KINDS)}, got {kind!r}", param=_NAME)
    if _KINDS[kind] != "device" and not folder:
        raise ConfigError(f'{_NAME}: the profiler {kind} needs "torch_profiler_dir", where it writes', param=_NAME)
    if kind == "viztracer" and find_spec("viztracer") is None:
        raise ConfigError(f"{_NAME}: the profiler viztracer is not installed: pip install viztracer", param=_NAME)
    switches = {ours: options[name] for name, ours in _SWITCHES.items() if options.get(name) is not None}
    if wrong := [name for name, ours in _SWITCHES.items() if not isinstance(switches.get(ours, True), bool)]:
        raise ConfigError(f"{_NAME}: {wrong[0]} must be true or false", param=_NAME)
    return Profiling(kind=_KINDS[kind], folder=str(Path(folder).absolute()) if folder else "", **switches)
