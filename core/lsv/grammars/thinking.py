"""Answers that begin with thoughts: the form applies after the thoughts, and the thoughts may have a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lsv.grammars import masks
from lsv.grammars.grammar import Matcher, Vocabulary
from lsv.request.thinking import Thinking


class Anything:
    """The grammar of answers without a form, and its matcher."""

    finished = False
    fault: str | None = None

    def begin(self) -> Anything:
        return self

    def accept(self, ids: Sequence[int]) -> bool:
        return True

    def advance(self, ids: Sequence[int]) -> int:
        return len(ids)

    def rollback(self, count: int) -> None:
        """Nothing to undo."""

    def fill(self, row: memoryview) -> None:
        masks.view(row)[:] = masks.ALL


class ThinkingMatcher:
    """Follows one answer through its thoughts, then through its form, which ``answer`` follows.

    Marks are searched in the bytes of the tokens, like the parser of thoughts searches the text. If a form follows, an
    answer can't end inside its thoughts.
    """

    def __init__(self, answer: Matcher, vocabulary: Vocabulary, thinking: Thinking) -> None:
        self._answer = answer
        self._formless = isinstance(answer, Anything)
        self._vocabulary = vocabulary
        self._begins = tuple(mark.encode() for mark in thinking.begins)
        self._ends = tuple(mark.encode() for mark in thinking.ends)
        self._openings = {begin: tuple(vocabulary.encode(begin.decode())) for begin in self._begins}
        self._closing = tuple(vocabulary.encode(thinking.close or thinking.ends[0]))
        """The remaining tokens that close the thoughts once the budget is used up."""
        self._held = max(map(len, self._ends)) - 1
        """Bytes to keep, because they may be the beginning of a mark."""
        self._budget = thinking.budget
        self._used = 0
        self._step: Callable[[int], bool] = self._think if thinking.open else self._open
        self._seen = b""
        """The bytes in which the next mark is searched."""
        self._taken: tuple[int, ...] = ()
        """The tokens so far of a mark that may open the thoughts."""
        self._offered: frozenset[int] = frozenset()
        """Tokens that were allowed only because they begin such a mark."""
        self._fault: str | None = None

    @property
    def free(self) -> bool:
        """Whether the rest of the answer is free."""
        return self._formless and self._step == self._follow

    @property
    def finished(self) -> bool:
        return self._step == self._follow and self._answer.finished

    @property
    def fault(self) -> str | None:
        return self._fault or self._answer.fault

    def accept(self, ids: Sequence[int]) -> bool:
        return all(self._step(token) for token in ids)

    def fill(self, row: memoryview) -> None:
        mask = masks.view(row)
        if self.fault is not None:
            masks.allow_only(mask, ())
        elif self._step == self._follow:
            self._answer.fill(row)
        elif self._step == self._open:
            self._fill_opening(row)
        elif self._closes:
            masks.allow_only(mask, self._closing[:1])
        else:
            mask[:] = masks.ALL
            if not self._formless:
                masks.forbid(mask, self._vocabulary.eos)

    # Where the answer is

    def _open(self, token: int) -> bool:
        """The first tokens: a mark, or the answer itself."""
        if not self._formless and not self._taken and token not in self._offered:
            return self._begin_answer(self._give([token]))
        self._taken += (token,)
        self._seen = (self._seen + self._vocabulary.tokens[token]).lstrip()
        begun = next((begin for begin in self._begins if self._seen.startswith(begin)), None)
        if begun is not None:
            rest, self._seen, self._step = self._seen[len(begun) :], b"", self._think
            return self._look(rest)
        if not any(begin.startswith(self._seen) for begin in self._begins):
            return self._begin_answer(self._formless or self._fail("it neither opens thoughts nor matches the form"))
        return True

    def _think(self, token: int) -> bool:
        self._used += 1
        if self._budget is not None and self._used > self._budget and self._closing[:1] == (token,):
            self._closing = self._closing[1:]
        return self._look(self._vocabulary.tokens[token])

    def _follow(self, token: int) -> bool:
        return self._give([token])

    def _give(self, ids: Sequence[int]) -> bool:
        """Follow tokens of the answer itself."""
        return self._answer.accept(ids)

    def _look(self, more: bytes) -> bool:
        """Search the end of the thoughts in more bytes."""
        self._seen += more
        found = [(at, -len(end)) for end in self._ends if (at := self._seen.find(end)) >= 0]
        if not found:
            self._seen = self._seen[max(0, len(self._seen) - self._held) :]
            return True
        at, size = min(found)
        return self._begin_answer(self._take_up(self._seen[at - size :].lstrip()))

    def _take_up(self, text: bytes) -> bool:
        """Follow the beginning of the answer, if the token that ended the thoughts contained some of it."""
        if not text:
            return True
        try:
            return self._give(self._vocabulary.encode(text.decode()))
        except UnicodeDecodeError:
            return self._formless or self._fail("a token contains the end of the thoughts and half a character")

    def _begin_answer(self, going: bool) -> bool:
        self._step = self._follow
        return going

    def _fail(self, why: str) -> bool:
        self._fault = f"the answer can't go on: {why}"
        return False

    # What may follow

    @property
    def _closes(self) -> bool:
        """Whether the thoughts are being closed because their budget is used up."""
        return self._budget is not None and self._used >= self._budget and self._closing != ()

    def _go_on_opening(self) -> set[int]:
        """The tokens that continue a mark that opens the thoughts."""
        return {
            ids[len(self._taken)]
            for ids in self._openings.values()
            if len(ids) > len(self._taken) and ids[: len(self._taken)] == self._taken
        }

    def _fill_opening(self, row: memoryview) -> None:
        follow = self._go_on_opening()
        mask = masks.view(row)
        if self._taken and not self._formless:
            masks.allow_only(mask, follow)
            return
        self._answer.fill(row)
        if not self._formless:
            self._offered = frozenset(token for token in follow if not masks.allows(mask, token))
            masks.allow(mask, self._offered)
