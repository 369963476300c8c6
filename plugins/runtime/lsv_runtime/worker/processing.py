"""Logits processors at work: made when first asked for, with a state for each request, applied to rows of logits."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lsv.config import EngineConfig
from lsv.offers import LogitsProcessorOffer, Stage
from lsv.plugins.catalog import Catalog
from lsv.plugins.logits_processors import BATCHED, find_processor, read_arguments
from lsv_base.errors import LsvError, RequestFailed
from lsv_runtime.logits_processor import History, LogitsProcessor, RowsFailed

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Processing:
    """What one processor does for one request."""

    offer: LogitsProcessorOffer
    processor: LogitsProcessor[Any]
    state: Any
    fault: str | None = None
    """Why it failed."""


class Processors:
    """The logits processors of one worker."""

    def __init__(self, catalog: Catalog, config: EngineConfig, vocab_size: int, device: torch.device) -> None:
        self._catalog = catalog
        self._surroundings = config, vocab_size, device
        self._made: dict[str, LogitsProcessor[Any]] = {}
        if config.logits_processors:
            self._make(catalog.find(LogitsProcessorOffer, BATCHED))  # what is wrong with them is told at the start

    def begin(self, asked: Mapping[str, Any], history: History) -> tuple[Processing, ...]:
        """What the processors that a request asks for will do for it, in no order.

        Raises ``LsvError`` where one can't be had, or refuses its arguments; none has begun then.
        """
        begun: list[Processing] = []
        for name, arguments in asked.items():
            try:
                begun.append(self._begin(name, arguments, history))
            except Exception as cause:
                end_processing(begun)
                if isinstance(cause, LsvError):
                    raise
                log.exception("logits processor %s could not begin", name)
                raise RequestFailed(f"logits processor {name}: {type(cause).__name__}: {cause}") from cause
        return tuple(begun)

    def _begin(self, name: str, arguments: Any, history: History) -> Processing:
        offer = find_processor(self._catalog, name)
        read = read_arguments(offer, arguments)
        processor = self._made.get(name) or self._make(offer)
        return Processing(offer, processor, processor.begin(read, history))

    def _make(self, offer: LogitsProcessorOffer) -> LogitsProcessor[Any]:
        made: LogitsProcessor[Any] = self._catalog.load(offer)(*self._surroundings)
        self._made[offer.name] = made
        return made


def end_processing(processing: Iterable[Processing]) -> None:
    """A request has left the worker, or did not get into it."""
    for one in processing:
        try:
            one.processor.end(one.state)
        except Exception:
            log.exception("logits processor %s could not end", one.offer.name)


def process_logits(logits: Tensor, requests: Sequence[Sequence[Processing]], stage: Stage) -> None:
    """Apply the processors of a stage, one after the other by name, each to the rows that asked for it. In place.

    ``logits`` float32 [rows, vocabulary]; ``requests`` are what is done for the row of each. Rows whose processor fails
    become NaN.
    """
    wanted: dict[str, list[tuple[int, Processing]]] = {}
    for row, processing in enumerate(requests):
        for one in processing:
            if one.offer.stage == stage:
                wanted.setdefault(one.offer.name, []).append((row, one))
    for name in sorted(wanted):
        rows, each = zip(*wanted[name], strict=True)
        if len(rows) == len(logits):
            changed = _apply(logits, each)
            if changed is not logits:
                logits.copy_(changed)
        else:
            which = torch.tensor(rows, device=logits.device)
            logits.index_copy_(0, which, _apply(logits.index_select(0, which), each))


def _apply(logits: Tensor, each: Sequence[Processing]) -> Tensor:
    """What a processor makes of the rows of the requests that it does ``each`` of these for."""
    name, processor = each[0].offer.name, each[0].processor
    try:
        changed = processor.apply(logits, [one.state for one in each])
        if changed.shape != logits.shape:
            raise ValueError(f"it made logits {tuple(changed.shape)} of {tuple(logits.shape)}")
        return changed.to(logits)
    except RowsFailed as failed:
        changed = failed.logits.to(logits, copy=True)
        for row, fault in failed.faults.items():
            each[row].fault = f"{name}: {fault}"
            changed[row] = torch.nan
        return changed
    except Exception as cause:
        log.exception("logits processor %s failed", name)
        for one in each:
            one.fault = f"{name}: {type(cause).__name__}: {cause}"
        return torch.full_like(logits, torch.nan)
