"""What a frontend sees of its engines: a ``Client`` for each served model, gathered in a ``Service``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from lsv.adapters.registry import resolve
from lsv.config import EngineConfig, Fit
from lsv.engine.admission import Admission
from lsv.engine.messages import Stats
from lsv.engine.orders.order import Order
from lsv.request.adapter import OPERATOR, Adapter, Viewer, owner_of
from lsv.request.outputs import Chunk, RequestRecord, Timings
from lsv.request.spec import RequestSpec
from lsv.text.tokenizer import Tokenizer
from lsv_base.errors import EngineDied, LsvError, ModelNotFound

if TYPE_CHECKING:
    from lsv.media.service import MediaService


Vector = tuple[float, ...]
"""What a prompt is pooled to."""


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Where an engine is in its life."""

    state: Literal["loading", "ready", "sleeping", "draining", "dead"]
    """``sleeping``: it has given memory back, and takes no requests until it is woken up; ``draining``: running
    requests may end, new ones are refused.
    """

    stage: str = ""
    """What is being loaded; of a sleeping engine, the parts that sleep."""

    done: int = 0
    """Parts of the stage that are done."""

    total: int = 0
    """Parts of the stage."""

    error: str | None = None
    """Why an engine died or is being replaced."""

    silent: float = 0.0
    """Seconds for which a ready engine has been silent; 0 unless several heartbeats are missing.

    It may hang or compute a long step, and still accepts requests.
    """


class Client(Protocol):
    """One engine as a frontend uses it, or several of one model that share its requests."""

    config: EngineConfig
    """What the engine runs."""

    tokenizer: Tokenizer
    """The model's."""

    media: MediaService | None
    """Prepares the media of requests; None where the model takes text only."""

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """The adapters that are served by names of their own."""
        ...

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
    def replicas(self) -> Sequence[Client]:
        """The engines behind this client, each by its own; only itself where it stands for one.

        Requests are for the client: it knows which replica they go to.
        """
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

    def take_timings(self) -> Sequence[Timings]:
        """Timings of running requests since the last call. Records of ended requests have the rest."""
        ...

    async def order(self, order: Order) -> None:
        """Have the engine carry out an order, such as ``lsv.engine.orders.sleep.Sleep``. Returns when that is done.

        Raises the error that the order is refused with, ``Unavailable`` or ``EngineDied``.
        """
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

    def adapters(self, viewer: Viewer = OPERATOR) -> Mapping[str, tuple[Client, Adapter]]:
        """The adapters of all models that ``viewer`` may use, by the viewer's names of them.

        An account's own adapter hides an operator's adapter of the same name.
        """
        found = [
            (client, adapter)
            for client in dict.fromkeys(self.clients.values())
            for adapter in client.adapters
            if viewer.sees(adapter.name)
        ]
        found.sort(key=lambda one: owner_of(one[1].name) != "")  # later entries replace earlier ones
        return {viewer.calls(adapter.name): (client, adapter) for client, adapter in found}

    def find(self, name: str | None) -> Client:
        """The client behind a served name; None means the first one. Raises ``ModelNotFound``."""
        return self.route(name)[0]

    def route(self, name: str | None, viewer: Viewer = OPERATOR) -> tuple[Client, str]:
        """The client that serves a name, and its name of the adapter; empty if ``name`` is a model.

        Raises ``ModelNotFound``.
        """
        if name is None:
            return next(iter(self.clients.values())), ""
        if name in self.clients:
            return self.clients[name], ""
        adapters = self.adapters(viewer)
        if name in adapters:
            client, adapter = adapters[name]
            return client, adapter.name
        for client in dict.fromkeys(self.clients.values()):
            if name in client.config.unlisted_names:
                return client, ""
            options = client.config.adapters
            if options is not None and resolve(options, name) is not None:
                return client, name
        known = ", ".join((*self.clients, *adapters))
        raise ModelNotFound(f"The model `{name}` does not exist; this server has: {known}", param="model")

    def dead(self) -> LsvError | None:
        """The first dead engine's error, if any."""
        for client in self.clients.values():
            if client.status.state == "dead":
                return EngineDied(client.status.error or "the engine is gone")
        return None
