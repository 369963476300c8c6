"""A request in a slot of a fake worker."""

from __future__ import annotations

from collections.abc import Container, Sequence

from lsv.request.media import cross_item
from lsv.scheduler.plan import Begin
from lsv_testing.fakes import tokens as fake_tokens


class FakeSlot:
    """A request in a slot: its tokens, the state after each of them, its block tables."""

    def __init__(self, begin: Begin, stay: int, groups: int) -> None:
        self.begin = begin
        self.stay = stay
        self.states = fake_tokens.states(fake_tokens.seen(begin.ids, begin.media))
        self.ids = list(begin.ids)
        self.tables: list[list[int]] = [[] for _ in range(groups)]
        self.fault: str | None = None
        self.cross_item = cross_item(begin.media)
        self.computed: int | None = None
        self.draft_states: list[tuple[int, ...]] = [()] * groups
        """By group, the blocks for the states before each of ``drafts``."""
        self.proposed: tuple[int, ...] = ()
        self.drafts: tuple[int, ...] = ()
        """What is verified in this step."""

    @property
    def expected(self) -> list[int]:
        """The state after each token, drafts among them."""
        states = list(self.states)
        for token in self.drafts:
            states.append(fake_tokens.fold(states[-1], token))
        return states

    def verify(self, allowed: Sequence[Container[int]] = ()) -> tuple[int, ...]:
        """The next tokens: one for each draft that is the one before, and one more. Where a grammar says what is
        ``allowed``, it says so for each of these places.
        """
        assert len(allowed) in (0, 1 + len(self.drafts)), "the masks are not those of the row's places"
        found = [self.sample(allowed[0] if allowed else None)]
        for place, draft in enumerate(self.drafts, start=1):
            if draft != found[-1]:
                break
            found.append(self.sample(allowed[place] if allowed else None))
        return tuple(found)

    def sample(self, allowed: Container[int] | None = None) -> int:
        """The next token; one that is ``allowed``, where a grammar says so."""
        params, begin = self.begin.params, self.begin
        assert params is not None, "a pooling request does not sample"
        early = len(self.ids) - begin.prompt < params.min_tokens
        withheld = {*begin.stop_ids} if early else set()
        assert allowed is not None or params.structured_outputs is None, "a row with a grammar has no mask"
        if allowed is not None:
            withheld = {token for token in range(fake_tokens.VOCABULARY) if token not in allowed}
        token = fake_tokens.next_token(self.states[-1], withheld)
        self.ids.append(token)
        self.states.append(fake_tokens.fold(self.states[-1], token))
        return token
