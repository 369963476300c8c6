"""Stop strings: found wherever they straddle tokens, at constant cost per character, whatever the strings are."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple


class Stopped(NamedTuple):
    """The text to show before a stop string, and the stop string."""

    text: str
    stop: str


class StopStrings:
    """The automaton of Aho and Corasick for the stop strings of a request; its candidates share it.

    A state stands for the longest end of the text so far that a stop string begins with; 0 is the empty one. Built in
    time and memory linear in the strings' length.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._shorter = [0]  # the state of the longest proper end that a stop string begins with
        self._found: list[str | None] = [None]  # the longest stop string that the state's text ends with
        self._text = [("", 0)]  # the state's text: a stop string, and how much of its beginning
        for stop in stops:
            self._add(stop)
        self._link()

    def read(self, state: int, text: str, *, early: bool) -> tuple[int, int, str | None]:
        """The state after ``text``, how many of its characters were read, and the stop string that is complete there.

        Reading ends at the first stop string, of several that are complete there the longest; ``early`` text is read to
        its end, and then the state stands for text that can still become a stop string.
        """
        following, shorter, found = self._next, self._shorter, self._found
        for count, character in enumerate(text, start=1):
            while state and character not in following[state]:
                state = shorter[state]
            state = following[state].get(character, 0)
            if found[state] is not None and not early:
                return state, count, found[state]
        while state and not following[state]:
            state = shorter[state]
        return state, len(text), None

    def length(self, state: int) -> int:
        """The length of the state's text."""
        return self._text[state][1]

    def text(self, state: int, end: int) -> str:
        """The first ``end`` characters, at most, of the state's text."""
        stop, length = self._text[state]
        return stop[: min(end, length)]

    def _add(self, stop: str) -> None:
        state = 0
        for length, character in enumerate(stop, start=1):
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._shorter.append(0)
                self._found.append(None)
                self._text.append((stop, length))
            state = self._next[state][character]
        self._found[state] = stop

    def _link(self) -> None:
        """Fill ``_shorter``, and ``_found`` of states that only end in a stop string; short states come first."""
        waiting = deque(self._next[0].values())
        while waiting:
            state = waiting.popleft()
            self._found[state] = self._found[state] or self._found[self._shorter[state]]
            for character, longer in self._next[state].items():
                shorter = self._shorter[state]
                while shorter and character not in self._next[shorter]:
                    shorter = self._shorter[shorter]
                self._shorter[longer] = self._next[shorter].get(character, 0)
                waiting.append(longer)


class StopFinder:
    """Passes text on until a stop string occurs, and never shows the beginning of what may become one.

    What is held back is always the beginning of a stop string, so a state of the automaton is all that is kept of it.
    """

    def __init__(self, stops: StopStrings, *, include: bool = False) -> None:
        self._stops = stops
        self._include = include
        self._state = 0

    def push(self, text: str, *, early: bool = False) -> str | Stopped:
        """The text that can be shown now. What is complete within ``early`` text does not count.

        Of several stop strings the one that is complete first counts, then the longest; so it makes no difference
        how the text is cut into pieces.
        """
        state, count, stop = self._stops.read(self._state, text, early=early)
        if stop is not None:
            shown = self._take(text, self._held + count - (0 if self._include else len(stop)))
            self._state = 0
            return Stopped(shown, stop)
        shown = self._take(text, self._held + count - self._stops.length(state))
        self._state = state
        return shown

    def flush(self) -> str:
        """What was held back, at the end of the answer."""
        held = self._take("", self._held)
        self._state = 0
        return held

    @property
    def _held(self) -> int:
        """How many characters are held back."""
        return self._stops.length(self._state)

    def _take(self, text: str, end: int) -> str:
        """The first ``end`` characters of what is held back and ``text`` behind it."""
        return self._stops.text(self._state, end) + text[: max(0, end - self._held)]
