"""What accounts may use: requests and tokens over time, with the headers that tell clients."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

import msgspec

from lsv_api.accounts.account import Account, Accounts
from lsv_api.accounts.buckets import Buckets
from lsv_base.errors import Overloaded

_MINUTE, _DAY = 60.0, 86_400.0


class RateLimited(Overloaded):
    """An account has used up what it may; ``seconds`` is when to come back."""

    code = "rate_limit_exceeded"

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class Bound(msgspec.Struct, frozen=True):
    """One bound of one account."""

    bucket: int
    amount: float
    """What may be used in ``period``, and at once."""
    period: float
    """Seconds."""
    what: str
    """``requests`` or ``tokens``, as headers and errors call it."""
    setting: str
    """The field of ``Account``."""


class Quotas:
    """Counts what accounts use. A request may start while all its account's buckets hold something.

    What a request will use is not known before it ends, so its tokens are counted as they come: an account that has
    overdrawn a bucket waits until it has filled up again.
    """

    def __init__(
        self, accounts: Accounts, buckets: Buckets | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.accounts = accounts
        self._now = now
        self._bounds: dict[str, tuple[Bound, ...]] = {}
        count = 0
        for account in accounts.all:
            bounds = _bounds(account, count)
            if bounds:
                self._bounds[account.name] = bounds
                count += len(bounds)
        self.buckets = Buckets.make(count) if buckets is None else buckets

    def start(self, account: Account) -> None:
        """A request begins. Raises ``RateLimited``."""
        bounds = self._bounds.get(account.name, ())
        for bound in bounds:
            needed = 1.0 if bound.what == "requests" else math.ulp(0.0)
            left = self._use(bound, 0.0)
            if left < needed:
                seconds = (needed - left) * bound.period / bound.amount
                raise RateLimited(
                    f"Your key may use {bound.amount:g} {bound.what} per {_name(bound.period)} ({bound.setting}), and "
                    f"has used them up; try again in {math.ceil(seconds)} s",
                    seconds,
                )
        for bound in bounds:
            if bound.what == "requests":
                self._use(bound, 1.0)

    def meters_tokens(self, account: Account) -> bool:
        """Whether an account's tokens are to be counted."""
        return any(bound.what == "tokens" for bound in self._bounds.get(account.name, ()))

    def count_tokens(self, account: Account, tokens: int) -> None:
        """Charge ``tokens`` of a prompt, or tokens computed for its answers."""
        for bound in self._bounds.get(account.name, ()):
            if bound.what == "tokens":
                self._use(bound, tokens)

    def headers(self, account: Account) -> Mapping[str, str]:
        """What is left, under the names that OpenAI's clients know; of several bounds of a kind, the tightest."""
        found: dict[str, str] = {}
        for what in ("requests", "tokens"):
            bounds = [bound for bound in self._bounds.get(account.name, ()) if bound.what == what]
            if bounds:
                left, bound = min(((self._use(bound, 0.0), bound) for bound in bounds), key=lambda found: found[0])
                found[f"x-ratelimit-limit-{what}"] = f"{bound.amount:g}"
                found[f"x-ratelimit-remaining-{what}"] = str(max(0, math.floor(left)))
                found[f"x-ratelimit-reset-{what}"] = f"{(bound.amount - left) * bound.period / bound.amount:.1f}s"
        return found

    def _use(self, bound: Bound, amount: float) -> float:
        return self.buckets.use(
            bound.bucket, amount, capacity=bound.amount, rate=bound.amount / bound.period, now=self._now()
        )


def _bounds(account: Account, first: int) -> tuple[Bound, ...]:
    given = [
        (account.requests_per_minute, _MINUTE, "requests", "requests_per_minute"),
        (account.tokens_per_minute, _MINUTE, "tokens", "tokens_per_minute"),
        (account.tokens_per_day, _DAY, "tokens", "tokens_per_day"),
    ]
    kept = [one for one in given if one[0] is not None]
    return tuple(
        Bound(first + number, amount, period, what, setting)
        for number, (amount, period, what, setting) in enumerate(kept)
        if amount is not None
    )


def _name(period: float) -> str:
    return "minute" if period == _MINUTE else "day"
