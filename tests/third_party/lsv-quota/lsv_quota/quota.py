"""A token bucket: requests wait until the budget allows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from lsv.engine.parts.part import Part, PartContext
from lsv.request.group import RequestGroup
from lsv.request.spec import RequestSpec
from lsv_base.errors import BadRequest, LsvError

BURST = 2
"""Seconds' worth of tokens that an idle engine saves up."""


def make_quota(context: PartContext) -> Quota | None:
    """None where no budget is set."""
    rate = context.config.options.get("quota.tokens_per_second")
    return None if rate is None else Quota(int(rate), context.now)


class Quota(Part):
    """Holds requests back in the order in which they came."""

    name = "quota"

    def __init__(self, rate: int, now: Callable[[], float]) -> None:
        self._rate, self._now = rate, now
        self._left = float(rate * BURST)
        self._seen = now()
        self._waiting: dict[int, int] = {}
        """Tokens by group."""
        self._held = 0

    def open(self, group: RequestGroup) -> bool:
        tokens = count_tokens(group.spec)
        most = self._rate * BURST
        if tokens > most:
            raise BadRequest(f"the request asks for up to {tokens} tokens, and the quota is {most}: ask for fewer")
        self._refill()
        if not self._waiting and tokens <= self._left:
            self._left -= tokens
            return False
        self._waiting[group.id] = tokens
        self._held += 1
        return True

    def ready(self) -> Iterable[tuple[int, LsvError | None]]:
        self._refill()
        for group, tokens in tuple(self._waiting.items()):
            if tokens > self._left:
                break
            self._left -= tokens
            del self._waiting[group]
            yield group, None

    def close(self, group: int) -> None:
        self._waiting.pop(group, None)

    def counters(self) -> Mapping[str, float]:
        return {"held": self._held}

    def _refill(self) -> None:
        now = self._now()
        self._left = min(self._left + (now - self._seen) * self._rate, self._rate * BURST)
        self._seen = now


def count_tokens(spec: RequestSpec) -> int:
    """The tokens of all prompts, and the most that the answers can have."""
    answers = 0 if spec.sampling is None else (spec.sampling.max_tokens or 0) * spec.candidates
    return sum(len(prompt.ids) + answers for prompt in spec.prompts)
