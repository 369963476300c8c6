"""Functions that a request brings along, in a process that can call them: ``SamplingParams(logits_processors=[f])``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor

from lsv_offline.batched.interface import bind
from lsv_runtime.logits_processor import History, LogitsProcessor, RowsFailed

log = logging.getLogger(__name__)


class Calls:
    """The functions of one request, and the tokens that they are shown."""

    def __init__(self, functions: Sequence[Any], history: History) -> None:
        self._history = history
        self._output: list[int] = history.output.tolist()
        prompt: list[int] = history.ids[: history.prompt].tolist()
        # functions with a state of their own have ``clone``, so that no two answers share one
        own = [one.clone() if hasattr(one, "clone") else one for one in functions]
        self._functions: list[partial[Tensor]] = [bind(one, prompt, self._output) for one in own]

    def apply(self, logits: Tensor) -> Tensor:
        """``logits`` float32 [vocabulary], changed by one function after the other."""
        self._output += self._history.output[len(self._output) :].tolist()
        for function in self._functions:
            changed = function(logits)
            if not isinstance(changed, Tensor) or changed.shape != logits.shape:
                raise ValueError(f"it must return logits of the shape {tuple(logits.shape)}, got {changed!r:.100}")
            logits = changed.to(logits)
        return logits


class Callables(LogitsProcessor[Calls]):
    """Calls the functions of each request."""

    def begin(self, arguments: Sequence[Any], history: History) -> Calls:
        return Calls(arguments, history)

    def apply(self, logits: Tensor, states: Sequence[Calls]) -> Tensor:
        failed: dict[int, str] = {}
        for row, calls in enumerate(states):
            try:
                logits[row] = calls.apply(logits[row].clone())
            except Exception as cause:
                log.exception("a function in logits_processors failed")
                failed[row] = f"{type(cause).__name__}: {cause}"
        if failed:
            raise RowsFailed(logits, failed)
        return logits
