"""A request that has not ended, as the scheduler sees it."""

from __future__ import annotations

from lsv.kv.table import Table
from lsv.request.request import FinishReason, Request
from lsv.scheduler.policy import Key


class Job:
    """What the scheduler knows of a request beyond the request itself; all lengths are in tokens.

    ``planned`` chases the tokens that are known, and beyond these those that steps in flight will have sampled:
    chunked prefill, prefix hits and preemption only set where it starts and how far it goes at a time.
    """

    __slots__ = (
        "active", "ended", "in_flight", "known", "max_length", "max_output", "max_planned", "min_output",
        "next_kv_check", "plannable", "planned", "rank", "request", "scored", "slot", "stop_ids", "table",
    )  # fmt: skip

    def __init__(self, request: Request, table: Table, rank: tuple[Key, int], longest: int) -> None:
        sampling, size = request.sampling, len(request.prompt)
        self.request = request
        self.table = table
        self.rank = rank
        """Its place in line: the policy's key, then the order of arrival."""
        self.slot = -1
        """The worker's slot; -1 outside the running batch."""
        self.active = False
        """Whether rows may be planned for it. When that is over, rows of it can still be in flight."""
        self.ended = False
        """Whether the request has ended: results of its rows in flight are dropped."""
        self.in_flight = 0
        """Its rows and pieces of encoding in plans that have not settled."""

        # How far it has come

        self.planned = 0
        """Tokens that are computed or in flight."""
        self.known = 0
        """Tokens whose ids were known at admission: the prompt, and the output from before a preemption.

        Behind these, each token is sampled by the row before.
        """
        self.plannable = 0
        """While decoding: how far ``planned`` may go before the job's blocks or its end must be looked at."""
        self.next_kv_check = 0
        """The count of computed tokens from which on the KV manager has something to do for the table."""
        self.scored = 0
        """Prompt tokens whose log probabilities have been delivered."""

        # How far it may go

        self.max_length = size if sampling is None else min(longest, size + (sampling.max_tokens or longest))
        """The most tokens of prompt and output together."""
        self.max_planned = size if sampling is None else self.max_length - 1
        """The most tokens that are ever computed: the last one of an answer is not."""
        self.max_output = self.max_length - size
        self.min_output = 0 if sampling is None else sampling.min_tokens
        self.stop_ids = frozenset(request.stop_ids)

    def update_plannable(self) -> None:
        """Find out how far its blocks and its end let it go."""
        self.plannable = min(self.max_planned, self.table.capacity)

    @property
    def max_cached(self) -> int:
        """How many tokens may come from the prefix cache: one must be computed, and all that still need scoring."""
        sampling, known = self.request.sampling, len(self.request)
        if sampling is not None and sampling.prompt_logprobs is not None:
            to_score = len(self.request.prompt) - 1
            return self.scored if self.scored < to_score else known - 1
        return known - 1

    def accept(self, tokens: tuple[int, ...]) -> tuple[int, FinishReason | None]:
        """Append sampled tokens up to the one that ends the answer; returns how many those were, and how it ended."""
        output = self.request.output
        for taken, token in enumerate(tokens, 1):
            output.append(token)
            if token in self.stop_ids and len(output) >= self.min_output:
                return taken, FinishReason.STOP
            if len(output) >= self.max_output:
                return taken, FinishReason.LENGTH
        return len(tokens), None

    def user_stop(self, token: int) -> int | None:
        """``token`` if the user named it as a stop, None for eos."""
        sampling = self.request.sampling
        return token if sampling is not None and token in sampling.stop_token_ids else None
