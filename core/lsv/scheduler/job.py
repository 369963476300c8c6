"""A request under way, as the scheduler sees it."""

from __future__ import annotations

from lsv.kv.table import Table
from lsv.request.request import FinishReason, Request
from lsv.scheduler.policy import Key


class Job:
    """What is known of a request beyond the request itself.

    ``rank`` is its place in line. ``planned`` tokens are computed or in flight; up to ``target`` they are known ids
    (prompt, and the output of an earlier stay), after that each is sampled by the row before. Nothing is
    planned past ``last`` tokens: the final token of an answer is never computed. ``rows`` rows and pieces of encoding
    are in flight. While the job decodes, ``room`` is how many tokens can be planned before its blocks or its end must
    be looked at; ``due`` is the count of computed tokens that has the cache look at the table again. A job is
    ``active`` while rows may be planned for it; after that it may have rows in flight, and once ``ended`` their results
    are nobody's. ``scored`` prompt tokens have had their log probabilities delivered. ``slot`` is -1 outside the batch.
    """

    __slots__ = (
        "active", "due", "ended", "last", "limit", "min_output", "most_output", "planned", "rank", "request", "room",
        "rows", "scored", "slot", "stops", "table", "target",
    )  # fmt: skip

    def __init__(self, request: Request, table: Table, rank: tuple[Key, int], longest: int) -> None:
        sampling, size = request.sampling, len(request.prompt)
        self.request = request
        self.table = table
        self.rank = rank
        self.limit = size if sampling is None else min(longest, size + (sampling.max_tokens or longest))
        self.last = size if sampling is None else self.limit - 1
        self.most_output = self.limit - size
        self.min_output = 0 if sampling is None else sampling.min_tokens
        self.stops = frozenset(request.stop_ids)
        self.scored = 0
        self.slot = -1
        self.planned = self.target = self.rows = self.room = self.due = 0
        self.active = self.ended = False

    def look_ahead(self) -> None:
        """Find out how far its blocks and its end let it go."""
        self.room = min(self.last, self.table.capacity)

    @property
    def most_cached(self) -> int:
        """How many tokens may come from the prefix cache: one must be computed, and all that is still to be scored."""
        sampling, known = self.request.sampling, len(self.request)
        if sampling is not None and sampling.prompt_logprobs is not None:
            to_score = len(self.request.prompt) - 1
            return self.scored if self.scored < to_score else known - 1
        return known - 1

    def accept(self, tokens: tuple[int, ...]) -> tuple[int, FinishReason | None]:
        """Append sampled tokens up to the one that ends the answer; how many those were, and how it ended."""
        output = self.request.output
        for taken, token in enumerate(tokens, 1):
            output.append(token)
            if token in self.stops and len(output) >= self.min_output:
                return taken, FinishReason.STOP
            if len(output) >= self.most_output:
                return taken, FinishReason.LENGTH
        return len(tokens), None

    def asked_stop(self, token: int) -> int | None:
        """``token`` if the user named it as a stop, None for eos."""
        sampling = self.request.sampling
        return token if sampling is not None and token in sampling.stop_token_ids else None
