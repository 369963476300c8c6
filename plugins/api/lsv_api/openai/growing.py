"""The one answer to a conversation as it grows: what contracts that know no ``n`` write their events from."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

from lsv.request.outputs import Chunk
from lsv_api.http.context import Exchange
from lsv_api.openai.asking import Asked
from lsv_api.openai.generation import UsageCounter, run
from lsv_api.openai.reading import waits_for_results
from lsv_api.records.responses import Delta


class GrowingAnswer:
    """Runs a request that was asked, and knows what its answer is so far.

    ``reader`` has the text, the thoughts and the calls; ``finish`` is None until the answer has ended, then a reason as
    chat completions give it. ``stop`` is the stop string or token that ended it, if one did. ``waits`` says whether it
    waits for the results of its calls, forced ones too. ``watch`` sees every chunk before it is read.
    """

    def __init__(self, asked: Asked, exchange: Exchange, watch: Callable[[Chunk], object] | None = None) -> None:
        self._asked = asked
        self._exchange = exchange
        self._watch = watch
        self.reader = asked.reading.begin()
        self.usage = UsageCounter(asked.request)
        self.finish: str | None = None
        self.stop: int | str | None = None
        self.waits = False

    async def deltas(self) -> AsyncGenerator[list[Delta], None]:
        """What each chunk adds, in order; a chunk that adds nothing is left out. Leaving early aborts the request."""
        asked, reader = self._asked, self.reader
        async with run(asked.request, asked.served, self._exchange, asked.origin) as chunks:
            async for chunk in chunks:
                self.usage.add(chunk)
                self._exchange.count_tokens(len(chunk.ids))
                if self._watch is not None:
                    self._watch(chunk)
                deltas = reader.read(chunk)
                if asked.reading.finds_thoughts:
                    self.usage.count_thoughts(reader.reasoning_tokens)
                if chunk.finish is not None:
                    reader.finish()
                    self.finish = asked.reading.finish_of(reader, chunk.finish, chunk.stop)
                    self.stop = chunk.stop
                    self.waits = waits_for_results(reader, chunk.finish, chunk.stop)
                if deltas:
                    yield deltas

    async def complete(self) -> None:
        """Run to the end."""
        async for _ in self.deltas():
            pass
