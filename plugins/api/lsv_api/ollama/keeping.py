"""``keep_alive``: how long Ollama keeps a model in memory. Here all models stay until the server stops."""

from __future__ import annotations

import re

from lsv_api.http.failures import Unsupported
from lsv_api.ollama.records import KeepAlive
from lsv_base.errors import BadRequest

_DURATION = re.compile(r"[+-]?(?:0|(?:\d+\.?\d*|\.\d+)(?:ns|us|µs|μs|ms|s|m|h))+")
_DIGIT = re.compile(r"[1-9]")


def check_keep_alive(given: KeepAlive | None) -> None:
    """Raises ``BadRequest`` for a text that is not a duration. Any duration is taken: the model stays longer."""
    if isinstance(given, str) and not _DURATION.fullmatch(given):
        raise BadRequest(
            f'keep_alive must be a number of seconds or a duration such as "5m", got {given[:64]!r}', param="keep_alive"
        )


def check_loaded(given: KeepAlive | None) -> None:
    """Check a request that asks for no answer, only for a model to be loaded, which all are. Raises ``Unsupported`` if
    it is to be unloaded: a client that was told so would count on the memory.
    """
    if given is not None and not _DIGIT.search(str(given)):
        raise Unsupported(
            "keep_alive 0 unloads a model, and here models stay in memory while the server runs; POST /sleep gives "
            "memory back (--enable-sleep-mode), or stop the server",
            param="keep_alive",
        )
