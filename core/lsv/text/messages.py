"""What chat templates expect of messages that is not as the OpenAI API has it, in every frontend."""

from __future__ import annotations

from typing import Any

import msgspec

from lsv.errors import BadRequest


def template_role(role: str) -> str:
    """``developer`` is OpenAI's newer word for ``system``; templates know the older one."""
    return "system" if role == "developer" else role


def template_arguments(arguments: Any, where: str) -> Any:
    """The arguments of a tool call as an object: clients send the JSON text that they were sent.

    Raises ``BadRequest`` for text that is not JSON.
    """
    if not isinstance(arguments, str):
        return arguments
    try:
        return msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        raise BadRequest(f"{where}: function.arguments must be JSON", param=where) from None
