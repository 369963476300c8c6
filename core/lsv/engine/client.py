"""What a frontend sees of an engine: a ``Client`` per served model, gathered in a ``Service``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from lsv.config import EngineConfig, Fit
from lsv.engine.messages import Stats
from lsv.errors import LsvError, ModelNotFound
from lsv.request.media import Media, Positions
from lsv.request.outputs import Chunk, RequestRecord
from lsv.request.params import PoolingParams, SamplingParams
from lsv.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from lsv.media.service import MediaService


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Where an engine is in its life. ``done`` of ``total`` counts the present loading ``stage``."""

    state: Literal["loading", "ready", "draining", "dead"]
    stage: str = ""
    done: int = 0
    total: int = 0
    error: str | None = None


class Client(Protocol):
    """One engine as a frontend uses it. ``fit`` is None until the engine is ready.

    ``media`` prepares the images, audio and video of requests; it is None where the model takes text only.
    """

    config: EngineConfig
    tokenizer: Tokenizer
    media: MediaService | None

    @property
    def fit(self) -> Fit | None: ...

    @property
    def status(self) -> Status: ...

    @property
    def stats(self) -> Stats: ...

    def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str,
        media: tuple[Media, ...] = (),
        positions: Positions | None = None,
        priority: int = 0,
        salt: bytes = b"",
        trace: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Chunk]:
        """Chunks of all ``params.candidates`` answers, until each has finished.

        Closing the iterator early (or cancelling the task that reads it) aborts the request. Raises ``BadRequest``
        for a prompt that can never fit, ``Overloaded``, ``Unavailable``, ``EngineDied`` or ``RequestFailed``.
        """
        ...

    async def encode(self, prompt: Sequence[int], params: PoolingParams, *, request_id: str) -> tuple[float, ...]:
        """One vector for a prompt."""
        ...

    def on_finished(self, callback: Callable[[RequestRecord], None]) -> None:
        """Call ``callback`` once for each request of this client that ends, however it ends. It must not block."""
        ...

    async def close(self, *, drain: float = 0.0) -> None:
        """Stop the engine, letting running requests end for at most ``drain`` seconds."""
        ...


class Service:
    """Served name → client. The first name is the default and the one answers carry."""

    def __init__(self, clients: Mapping[str, Client]) -> None:
        self.clients = dict(clients)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.clients)

    def find(self, name: str | None) -> Client:
        """The client behind a served name; None means the first one. Raises ``ModelNotFound``."""
        if name is None:
            return next(iter(self.clients.values()))
        try:
            return self.clients[name]
        except KeyError:
            known = ", ".join(self.clients)
            raise ModelNotFound(f"The model `{name}` does not exist; this server has: {known}", param="model") from None

    def dead(self) -> LsvError | None:
        """The first dead engine's error, if any."""
        from lsv.errors import EngineDied

        for client in self.clients.values():
            if client.status.state == "dead":
                return EngineDied(client.status.error or "the engine is gone")
        return None
