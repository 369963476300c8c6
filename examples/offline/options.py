"""The options of ``lsv serve`` for a script that has the model itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lsv import EngineArgs, FlexibleArgumentParser


def read(about: str | None, arguments: Sequence[str] | None, **defaults: Any) -> dict[str, Any]:
    """What ``LLM`` is given: the options that stand on the command line, and a script's own ``defaults``."""
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser(description=about))
    parser.set_defaults(**defaults)
    return EngineArgs.from_cli_args(parser.parse_args(arguments)).given()
