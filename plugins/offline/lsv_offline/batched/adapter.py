"""Batched logits processors at work: those that an operator names, on all requests of an engine that sample."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lsv.config import EngineConfig
from lsv.request.params import PROCESSOR_REFUSES, SamplingParams
from lsv_base.errors import BadRequest, ConfigError
from lsv_offline.batched import interface
from lsv_offline.batched.interface import BatchUpdate, MoveDirectionality
from lsv_offline.batched.loading import VllmConfig, load_processor
from lsv_offline.vllm_names.processors import BORROWED
from lsv_runtime.logits_processor import History, LogitsProcessor, RowsFailed

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Member:
    """A request."""

    params: SamplingParams
    history: History
    prompt: list[int] = field(init=False)
    output: list[int] = field(init=False)
    """It grows in place, so that whoever holds it knows every token."""

    def __post_init__(self) -> None:
        self.prompt = self.history.ids[: self.history.prompt].tolist()
        self.output = self.history.output.tolist()

    def follow(self) -> None:
        self.output += self.history.output[len(self.output) :].tolist()


class Batched(LogitsProcessor[Member]):
    """The processors of an engine, one after the other as they were named; the arguments are a request's parameters."""

    def __init__(self, config: EngineConfig, vocab_size: int, device: torch.device) -> None:
        """Raises ``ConfigError`` for a processor that can't be made."""
        super().__init__(config, vocab_size, device)
        told = VllmConfig.of(config, vocab_size)
        self._batches = [_Batch(name, load_processor(name), told, device) for name in config.logits_processors]

    def begin(self, arguments: SamplingParams, history: History) -> Member:
        for batch in self._batches:
            batch.check(arguments)
        return Member(arguments, history)

    def end(self, state: Member) -> None:
        for batch in self._batches:
            batch.leave(state)

    def apply(self, logits: Tensor, states: Sequence[Member]) -> Tensor:
        failed: dict[int, str] = {}
        for member in states:
            member.follow()
        for batch in self._batches:
            logits, faults = batch.run(logits, states)
            failed |= faults
        if failed:
            raise RowsFailed(logits, failed)
        return logits


class _Batch:
    """The rows of one processor. A request has a row from its first token on, and keeps it while it sits out a step:
    its logits are zeros there, and what becomes of them does not count.
    """

    def __init__(self, name: str, kind: type[Any], told: VllmConfig, device: torch.device) -> None:
        self._name = name
        self._kind = kind
        self._make: Callable[[], interface.LogitsProcessor] = lambda: kind(told, device, False)
        try:
            with BORROWED.borrowed():
                self._processor = self._make()
        except Exception as cause:
            raise ConfigError(
                f"--logits-processors {name}: it can't be made: {type(cause).__name__}: {cause}",
                param="logits_processors",
            ) from cause
        self._members: list[Member] = []
        self._rows: dict[Member, int] = {}
        self._gone: list[Member] = []

    def check(self, params: SamplingParams) -> None:
        """Raises ``BadRequest`` where the processor does not take the parameters."""
        validate = getattr(self._kind, "validate_params", None)
        if validate is None:
            return
        try:
            with BORROWED.borrowed():
                validate(params)
        except ValueError as cause:
            raise BadRequest(f"{PROCESSOR_REFUSES}{self._name}: {cause}", param="extra_args") from cause

    def leave(self, member: Member) -> None:
        if member in self._rows:
            self._gone.append(member)

    def run(self, logits: Tensor, states: Sequence[Member]) -> tuple[Tensor, dict[int, str]]:
        """The logits of ``states`` changed, and by row, why some failed.

        A processor may import names of vLLM as late as here.
        """
        with BORROWED.borrowed():
            return self._run(logits, states)

    def _run(self, logits: Tensor, states: Sequence[Member]) -> tuple[Tensor, dict[int, str]]:
        try:
            update = self._update(states)
            rows = [self._rows[member] for member in states]
            batch = logits.new_zeros(len(self._members), logits.shape[-1])
            batch[rows] = logits
            return _apply(self._processor, batch, self._members, update)[rows], {}
        except Exception:
            log.exception("logits processor %s failed: its requests go on one by one", self._name)
            return self._run_each(logits, states)

    def _run_each(self, logits: Tensor, states: Sequence[Member]) -> tuple[Tensor, dict[int, str]]:
        """Find those that fail: each has a processor to itself. The others begin again with the next step."""
        changed, failed = logits.clone(), dict[int, str]()
        for row, member in enumerate(states):
            update = BatchUpdate(1, (), ((0, member.params, member.prompt, member.output),), ())
            try:
                changed[row] = _apply(self._make(), logits[row : row + 1].clone(), (member,), update)[0]
            except Exception as cause:
                failed[row] = f"{self._name}: {type(cause).__name__}: {cause}"
        self._members, self._rows, self._gone = [], {}, []
        self._processor = self._make()
        return changed, failed

    def _update(self, states: Sequence[Member]) -> BatchUpdate | None:
        """Give newcomers their rows, and close the gaps of those who have left."""
        newcomers = [member for member in states if member not in self._rows]
        if not newcomers and not self._gone:
            return None
        removed = sorted(self._rows.pop(member) for member in self._gone)
        gaps, self._gone = removed[::-1], []
        added = [(self._place(member, gaps), member.params, member.prompt, member.output) for member in newcomers]
        moved = []
        while gaps:
            gap, last = gaps[0], len(self._members) - 1
            if last == gap:
                gaps.pop(0)
            else:
                gap = gaps.pop()
                moved.append((last, gap, MoveDirectionality.UNIDIRECTIONAL))
                self._members[gap] = self._members[last]
                self._rows[self._members[gap]] = gap
            self._members.pop()
        return BatchUpdate(len(self._members), removed, added, moved)

    def _place(self, member: Member, gaps: list[int]) -> int:
        """The first gap, or the row behind the last."""
        row = gaps.pop() if gaps else len(self._members)
        self._members[row : row + 1] = [member]
        self._rows[member] = row
        return row


def _apply(
    processor: interface.LogitsProcessor, logits: Tensor, members: Sequence[Member], update: BatchUpdate | None
) -> Tensor:
    """What a processor makes of the logits, which are used up.

    One that leaves the likeliest token alone is given logits as the temperature scales them, and none of a greedy
    request, as vLLM does.
    """
    processor.update_state(update)
    if not processor.is_argmax_invariant():
        return _checked(processor.apply(logits), logits)
    scales = torch.tensor([member.params.temperature or 1.0 for member in members], device=logits.device).unsqueeze(-1)
    greedy = torch.tensor([member.params.greedy for member in members], device=logits.device).unsqueeze(-1)
    return torch.where(greedy, logits, _checked(processor.apply(logits / scales), logits) * scales)


def _checked(changed: Tensor, logits: Tensor) -> Tensor:
    if changed.shape != logits.shape:
        raise ValueError(f"it made logits {tuple(changed.shape)} of {tuple(logits.shape)}")
    return changed.to(logits)
