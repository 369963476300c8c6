"""Every error a user can cause, as data that crosses processes.

LsvError
├── BadRequest            400  a request field is wrong
│   ├── ContextTooLong    400  prompt and answer together do not fit the model's context
│   ├── ModelNotFound     404  the served name is unknown
│   └── TooLarge          413  the body is over the limit
├── Unauthorized          401  the key is missing or wrong
├── Overloaded            429  the queue is full, come back later
├── Unavailable           503  loading, draining
│   └── EngineDied        503  the engine process is gone
├── RequestFailed         500  this request alone failed in the engine (non-finite logits …)
└── StartError            exit code 2: the server can't start as asked
    ├── ConfigError       an option, a file or a combination is wrong
    ├── PluginError       a plugin is broken, missing or ambiguous
    └── CheckpointError   the checkpoint is missing, incomplete or of another shape
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar

import msgspec


class ErrorRecord(msgspec.Struct, frozen=True):
    """An ``LsvError`` on the wire."""

    code: str
    message: str
    param: str | None = None


class LsvError(Exception):
    """Base of all errors that are the user's to mend.

    ``message`` is one line that says what was wrong, what was expected and what to do;
    ``param`` names the request field or option at fault.
    """

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    def record(self) -> ErrorRecord:
        return ErrorRecord(self.code, self.message, self.param)


class BadRequest(LsvError):
    code = "invalid_request"
    status = 400


class ContextTooLong(BadRequest):
    code = "context_length_exceeded"


class ModelNotFound(BadRequest):
    code = "model_not_found"
    status = 404


class TooLarge(BadRequest):
    code = "request_too_large"
    status = 413


class Unauthorized(LsvError):
    code = "invalid_api_key"
    status = 401


class Overloaded(LsvError):
    code = "overloaded"
    status = 429


class Unavailable(LsvError):
    code = "unavailable"
    status = 503


class NotYet(Unavailable):
    """What an order asks for is under way: it is to be given again."""

    code = "not_yet"


class EngineDied(Unavailable):
    code = "engine_died"


class RequestFailed(LsvError):
    code = "request_failed"


class StartError(LsvError):
    code = "start_error"
    exit_code = 2


class ConfigError(StartError):
    code = "config_error"


class PluginError(StartError):
    code = "plugin_error"


class CheckpointError(StartError):
    code = "checkpoint_error"


def _with_subclasses(base: type[LsvError]) -> list[type[LsvError]]:
    return [base, *(found for child in base.__subclasses__() for found in _with_subclasses(child))]


def from_record(record: ErrorRecord) -> LsvError:
    """The error a record stands for; a code this version does not know becomes a plain ``LsvError``."""
    by_code = {cls.code: cls for cls in _with_subclasses(LsvError)}
    return by_code.get(record.code, LsvError)(record.message, param=record.param)


_ABBREVIATION = 4
"""Letters."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like ``name``, or None where nothing comes close.

    Abbreviations that begin with different letters name different things: ``tpu`` is not a slip of ``xpu``.
    """
    if len(name) <= _ABBREVIATION:
        known = [one for one in known if one[:1] == name[:1]]
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def suggestion(name: str, known: Iterable[str]) -> str:
    """``"; did you mean …?"`` to append to an error, or nothing."""
    found = nearest(name, known)
    return f"; did you mean {found}?" if found else ""
