"""Where those of several machines meet that compute together: node 0 tells each how the others are reached."""

from __future__ import annotations

import asyncio
import secrets

from lsv.engine.replicas.nodes.line import Line, stream_over
from lsv.engine.supervision.gang import Gang
from lsv.processes.nodes.door import Guest
from lsv.processes.nodes.meeting import Meet, Met
from lsv_base.errors import LsvError

_WORD_SECONDS = 10.0
"""What somebody who has come gets to say who it is."""


class Spot:
    """Where the engines of one start meet: a name that is of no use in another start, at a ``Rendezvous``."""

    def __init__(self) -> None:
        self.address = secrets.token_hex(8)

    def close(self) -> None:
        """There is nothing to remove."""


class Rendezvous:
    """Node 0's side, for engines of a gang and their ranks: whoever has come is answered when its group is complete."""

    def __init__(self, gang: Gang) -> None:
        self._gang = gang
        self._start = ""
        self._there: dict[str, dict[int, tuple[Line[Met, Meet], str]]] = {}

    async def receive(self, guest: Guest) -> None:
        """Those of an earlier start are sent away."""
        try:
            line: Line[Met, Meet] = Line(await stream_over(guest.end), Meet)
        except OSError:
            return
        try:
            said = await asyncio.wait_for(line.receive(), _WORD_SECONDS)
        except (EOFError, OSError, ValueError, LsvError):
            line.close()
            return
        except asyncio.CancelledError:
            line.close()
            raise
        if said.start != self._gang.meeting:
            line.close()
            return
        if said.start != self._start:
            self.close()
            self._start = said.start
        present = self._there.setdefault(said.group, {})
        present[said.place] = (line, said.address)
        if len(present) == said.size:
            del self._there[said.group]
            met = Met(tuple(present[place][1] for place in sorted(present)))
            await asyncio.gather(*(line.finish(met) for line, _ in present.values()))

    def close(self) -> None:
        """Nobody who waits is answered any more."""
        for present in self._there.values():
            for line, _ in present.values():
                line.close()
        self._there.clear()
