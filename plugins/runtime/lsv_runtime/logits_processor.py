"""The seam to logits processors: a plugin's code that changes the logits of the requests that ask for it by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lsv.config import EngineConfig

State = TypeVar("State")


class History(Protocol):
    """The tokens of a request, as far as the host knows them: in ``apply`` it knows all of them.

    They grow from step to step. Read them anew in each: arrays that were read earlier may be out of date.
    """

    @property
    def prompt(self) -> int:
        """How many tokens the prompt has."""
        ...

    @property
    def ids(self) -> npt.NDArray[np.int32]:
        """The prompt and the output."""
        ...

    @property
    def output(self) -> npt.NDArray[np.int32]:
        """The output, which is not empty at ``begin`` where a request comes back after a preemption."""
        ...


class RowsFailed(Exception):
    """Raised by ``apply`` where some of its rows failed: why, by row, and the ``logits`` of the others."""

    def __init__(self, logits: Tensor, faults: Mapping[int, str]) -> None:
        super().__init__(f"rows {sorted(faults)} failed")
        self.logits, self.faults = logits, faults


class LogitsProcessor(ABC, Generic[State]):
    """Offered by ``LogitsProcessorOffer``; made once in each worker, when a request first asks for it.

    It keeps a state of its own choosing for each request. Every rank of a model has a processor, and all of them must
    come to the same logits.
    """

    def __init__(self, config: EngineConfig, vocab_size: int, device: torch.device) -> None:
        self.config, self.vocab_size, self.device = config, vocab_size, device

    def begin(self, arguments: Any, history: History) -> State:
        """The state of a request that enters the worker; by default its ``arguments``, as the offer's type reads them.

        Raising fails the request alone.
        """
        return cast(State, arguments)

    def end(self, state: State) -> None:
        """The request has left the worker: it has ended, or was preempted and begins again later."""

    @abstractmethod
    def apply(self, logits: Tensor, states: Sequence[State]) -> Tensor:
        """Change the logits from which a step samples the next tokens of the requests with these ``states``.

        ``logits`` float32 [rows, vocabulary] on the device, a row for each of the states and for nobody else. It may be
        changed in place, or another tensor of its shape returned; minus infinity forbids a token. A row must not depend
        on the others. Raising fails the requests of these rows, ``RowsFailed`` those of the rows that it names.
        """
