"""``--enable-eplb`` and ``--expert-map``: where whole experts are, and when they move. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsv.config import Choices, ExpertOptions, Topology
from lsv.resolve.experts.map import read_map
from lsv.settings import Settings
from lsv_base.errors import ConfigError

_NAME = "eplb_config"
_STEPS = {"window_size": "eplb_window_size", "step_interval": "eplb_step_interval"}
"""vLLM's keys, and the single options that mean the same."""
_WINDOW, _INTERVAL = 1000, 3000
"""What vLLM takes where nobody says."""
_LOGGING = ("log_balancedness", "log_balancedness_interval")
_IDLE = ("communicator", "use_async")
"""Keys without which answers are the same."""
_KEPT = {"num_redundant_experts": (0, "each expert is on one rank"), "policy": ("default", "there is one")}


def choose_experts(settings: Settings, topology: Topology, choices: Choices) -> ExpertOptions | None:
    """None where experts are cut, or spread evenly for good. Raises ``ConfigError`` for what can't be."""
    balances, given = settings["enable_eplb"], settings["expert_map"]
    if not balances:
        _check_idle(settings)
    if not balances and given is None:
        return None
    name = "enable_eplb" if balances else "expert_map"
    if not settings["enable_expert_parallel"] or topology.tensor * topology.data == 1:
        raise ConfigError(
            f"{name}: ranks must have whole experts for that: give --enable-expert-parallel, and "
            "--tensor-parallel-size or --data-parallel-size of 2 or more",
            param=name,
        )
    if topology.expert == 1:
        choices.note(name, False, "no rank has experts that others have not, so all have the same to do")
        return None
    window, interval = _read_steps(settings, choices) if balances else (0, 0)
    return ExpertOptions(map=read_map(given, topology.expert), window=window, interval=interval)


def _check_idle(settings: Settings) -> None:
    """Raises ``ConfigError`` for what says how experts move where none do."""
    for name in (_NAME, *_STEPS.values()):
        if settings[name]:
            raise ConfigError(f"{name}: experts stay where they are without --enable-eplb", param=name)


def _read_steps(settings: Settings, choices: Choices) -> tuple[int, int]:
    """Steps that are counted, and those from one evening out to the next."""
    if settings["cpu_offload_gb"]:
        raise ConfigError(
            "enable_eplb with cpu_offload_gb: layers whose weights are kept on the host hold no experts that could be "
            "exchanged; leave one of them out",
            param="enable_eplb",
        )
    given = _read_config(settings[_NAME])
    if given.get("use_async"):
        choices.note("eplb_config.use_async", True, "has no effect: steps wait while experts are exchanged")
    asked, interval = _read_count(settings, given, "window_size"), _read_count(settings, given, "step_interval")
    interval = interval or _INTERVAL
    window = asked or min(_WINDOW, interval)
    if window > interval:
        raise ConfigError(
            f"eplb_config: window_size={window} must be at most step_interval={interval}: tokens are counted in the "
            "last steps of an interval",
            param=_NAME,
        )
    return window, interval


def _read_config(given: Any) -> Mapping[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"eplb_config must be a JSON object, got {given!r:.100}", param=_NAME)
    known = (*_STEPS, *_KEPT, *_LOGGING, *_IDLE)
    for key, value in given.items():
        if key not in known:
            raise ConfigError(f"eplb_config: unknown key {key!r:.100}; expected {', '.join(known)}", param=_NAME)
        if key in _KEPT and value not in (None, _KEPT[key][0]):
            only, why = _KEPT[key]
            raise ConfigError(f"eplb_config: {key} must be {only}, got {value!r:.100}: {why}", param=_NAME)
    return given


def _read_count(settings: Settings, given: Mapping[str, Any], key: str) -> int | None:
    """By either option, if it is said; raises ``ConfigError`` where they differ."""
    single = _STEPS[key]
    value, alone = given.get(key), settings[single]
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ConfigError(
            f"eplb_config: {key} must be a whole number of steps, 1 or more, got {value!r:.100}", param=_NAME
        )
    if None not in (value, alone) and value != alone:
        raise ConfigError(f"eplb_config says {key}={value}, and {single} is {alone}: give one of them", param=single)
    return value or alone
