"""What a frontend sees of its engines: a ``Client`` for each served model, gathered in a ``Service``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from lsv.config import EngineConfig, Fit
from lsv.engine.admission import Admission
from lsv.engine.messages import Stats
from lsv.errors import EngineDied, LsvError, ModelNotFound
from lsv.request.outputs import Chunk, RequestRecord
from lsv.request.spec import RequestSpec
from lsv.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from lsv.media.service import MediaService


Vector = tuple[float, ...]
"""What a prompt is pooled to."""


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Where an engine is in its life."""

    state: Literal["loading", "ready", "draining", "dead"]
    """``draining``: running requests may end, new ones are refused."""

    stage: str = ""
    """What is being loaded."""

    done: int = 0
    """Parts of the stage that are done."""

    total: int = 0
    """Parts of the stage."""

    error: str | None = None
    """What a dead engine died of, or one that is being replaced."""


class Client(Protocol):
    """One engine as a frontend uses it."""

    config: EngineConfig
    """What the engine runs."""

    tokenizer: Tokenizer
    """The model's."""

    media: MediaService | None
    """Prepares the media of requests; None where the model takes text only."""

    @property
    def fit(self) -> Fit | None:
        """What fits into the device's memory; None until the engine is ready."""
        ...

    @property
    def status(self) -> EngineStatus:
        """Where the engine is in its life."""
        ...

    @property
    def stats(self) -> Stats:
        """The engine's state after its last step."""
        ...

    @property
    def admission(self) -> Admission:
        """What requests are checked against; ``admission.admit`` shows a request as it will run, or refuses it."""
        ...

    def generate(self, request: RequestSpec) -> AsyncIterator[Chunk]:
        """Chunks of all sequences of a request with ``sampling``, until each has finished.

        The request is admitted first. Closing the iterator early (or cancelling the task that reads it) aborts it.
        Raises ``BadRequest`` for a prompt that can never fit, ``Overloaded``, ``Unavailable``, ``EngineDied`` or
        ``RequestFailed``.
        """
        ...

    async def encode(self, request: RequestSpec) -> list[Vector]:
        """The vector of each prompt of a request with ``pooling``; admitted, aborted, failing as with ``generate``."""
        ...

    def on_finished(self, callback: Callable[[RequestRecord], None]) -> None:
        """Call ``callback`` once for each request of this client that ends, however it ends. It must not block."""
        ...

    async def close(self, *, drain: float = 0.0) -> None:
        """Leave the engine, letting running requests end for at most ``drain`` seconds."""
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
        for client in self.clients.values():
            if client.status.state == "dead":
                return EngineDied(client.status.error or "the engine is gone")
        return None
