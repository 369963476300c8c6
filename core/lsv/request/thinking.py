"""How an answer thinks before it begins, for those who must know where the one ends and the other starts."""

from __future__ import annotations

import msgspec

from lsv.request.params import told
from lsv_base.errors import BadRequest

MAX_BUDGET = 1 << 31


class Thinking(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The marks around thoughts, as texts. Raises ``BadRequest`` for a budget that is none."""

    begins: tuple[str, ...]
    """One of these opens the thoughts."""

    ends: tuple[str, ...]
    """At the first of these, the thoughts end and the answer begins."""

    close: str = ""
    """What is written where the budget is used up; the first of ``ends`` if empty."""

    open: bool = False
    """Whether the prompt has opened the thoughts. Otherwise the answer may begin with one of ``begins``, or at once."""

    budget: int | None = None
    """The most tokens of thoughts; None for any number."""

    def __post_init__(self) -> None:
        assert self.begins, "no mark opens the thoughts"
        assert self.ends, "no mark ends the thoughts"
        if self.budget is not None and not 0 <= self.budget <= MAX_BUDGET:
            raise BadRequest(
                f"thinking_token_budget must be between 0 and {MAX_BUDGET}, got {told(self.budget)}; leave it out, or "
                "set -1 for no limit",
                param="thinking_token_budget",
            )
