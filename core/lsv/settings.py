"""Options, declared once: the flag, the config-file key and the variables all come from one ``Setting``.

This is the only module that reads ``os.environ``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

SettingType = Literal["str", "int", "float", "bool", "json", "list"]


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One option. ``name`` is snake_case, with the plugin's prefix for a plugin's own (``"cpu.threads"``).

    The flag is ``--cpu-threads``, the key in a file ``cpu-threads`` (or ``cpu_threads``), the variable ``LSV_CPU_THREADS``.
    ``env`` lists further variables honoured as aliases (``VLLM_CPU_OMP_THREADS_BIND``). ``short`` are short flags
    (``-tp``). ``choices`` bounds the values. ``scope`` says which commands take it: engine, serve, or all.
    """

    name: str
    type: SettingType = "str"
    default: Any = None
    help: str = ""
    env: Sequence[str] = ()
    short: Sequence[str] = ()
    aliases: Sequence[str] = ()
    choices: Sequence[str] = ()
    scope: Literal["engine", "serve", "all"] = "engine"
