"""The form of a logits processor that is given the whole batch: vLLM's, name for name.

Source: vLLM, vllm/v1/sample/logits_processor/interface.py and __init__.py.
"""

from __future__ import annotations

import enum
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from lsv.request.params import SamplingParams

if TYPE_CHECKING:
    import torch
    from torch import Tensor

RequestLogitsProcessor = Callable[..., Any]
"""``(output_ids, logits) -> logits`` of one request, or ``(prompt_ids, output_ids, logits) -> logits``; logits are
float32 [vocabulary].
"""

AddedRequest = tuple[int, SamplingParams, list[int] | None, list[int]]
"""Its row, what it asks for, its prompt, and its output: a list that grows from step to step."""


class MoveDirectionality(enum.Enum):
    """Whether a row moved to another, or two changed places."""

    UNIDIRECTIONAL = enum.auto()
    SWAP = enum.auto()


@dataclass(frozen=True)
class BatchUpdate:
    """How the rows of the batch have changed: first rows were removed, then added, then moved."""

    batch_size: int
    """Rows from now on."""
    removed: Sequence[int]
    added: Sequence[AddedRequest]
    """A row that is added stands where nobody is, or behind the last."""
    moved: Sequence[tuple[int, int, MoveDirectionality]]
    """From a row to another."""


class LogitsProcessor(ABC):
    """Changes the logits of a batch, all rows together."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise ``ValueError`` for a request whose arguments are unfit."""

    @abstractmethod
    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None: ...

    @abstractmethod
    def apply(self, logits: Tensor) -> Tensor:
        """The changed logits, float32 [rows, vocabulary]; it may be changed in place."""

    @abstractmethod
    def is_argmax_invariant(self) -> bool:
        """Whether it never changes which token is the likeliest: greedy requests go without it then."""

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Called before each ``apply``; None where the rows are the same as before."""


class AdapterLogitsProcessor(LogitsProcessor):
    """Gives each request a function of its own."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.req_info: dict[int, partial[Tensor]] = {}

    @abstractmethod
    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        """What changes the logits of a request; None where nothing does."""

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self.req_info, batch_update, self._bound)

    def apply(self, logits: Tensor) -> Tensor:
        for row, change in self.req_info.items():
            changed = change(logits[row])
            if changed is not logits[row]:
                logits[row] = changed
        return logits

    def _bound(self, params: SamplingParams, prompt: list[int] | None, output: list[int]) -> partial[Tensor] | None:
        function = self.new_req_logits_processor(params)
        return None if function is None else bind(function, prompt or [], output)


def bind(function: RequestLogitsProcessor, prompt: list[int], output: list[int]) -> partial[Tensor]:
    """The function of a request with the token ids that it takes, so that logits alone are missing."""
    wants_prompt = len(inspect.signature(function).parameters) == 3
    return partial(function, *((prompt, output) if wants_prompt else (output,)))


def process_dict_updates(
    req_entries: dict[int, Any],
    batch_update: BatchUpdate | None,
    new_state: Callable[[SamplingParams, list[int] | None, list[int]], Any],
) -> bool:
    """Keep what ``new_state`` makes of requests by their rows; None is not kept. Whether anything has changed."""
    if batch_update is None:
        return False
    before = dict(req_entries)
    for row in batch_update.removed:
        req_entries.pop(row, None)
    for row, params, prompt, output in batch_update.added:
        _put(req_entries, row, new_state(params, prompt, output))
    for source, target, direction in batch_update.moved:
        first, second = req_entries.pop(source, None), req_entries.pop(target, None)
        _put(req_entries, target, first)
        if direction is MoveDirectionality.SWAP:
            _put(req_entries, source, second)
    return req_entries != before


def _put(entries: dict[int, Any], row: int, state: Any) -> None:
    if state is None:
        entries.pop(row, None)
    else:
        entries[row] = state
