"""The client of several engines of one model: each request goes to one of them, everything else to all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsv.adapters.registry import resolve
from lsv.config import Fit
from lsv.engine.admission import Admission
from lsv.engine.client import EngineStatus, Vector
from lsv.engine.messages import Stats
from lsv.engine.orders.adapters import LoadAdapter, UnloadAdapter
from lsv.engine.orders.order import Order, ResetPrefixCache
from lsv.engine.replicas.health import summarise
from lsv.engine.replicas.prefixes import Chain, name_blocks
from lsv.engine.replicas.replica import Replica, Visit
from lsv.engine.replicas.router import Router
from lsv.engine.replicas.totals import add_stats
from lsv.engine.socket_client import SocketClient
from lsv.request.adapter import Adapter
from lsv.request.outputs import Chunk, RequestRecord, Timings
from lsv.request.spec import RequestSpec
from lsv_base.errors import EngineDied, LsvError, Overloaded, Unavailable

if TYPE_CHECKING:
    from lsv.media.service import MediaService

log = logging.getLogger(__name__)


class ReplicaSet:
    """Talks to the engines of ``clients``, which prepare no media themselves: ``media`` does for all.

    It is ready once all have been, and as long as one is. A replica that is lost fails the requests it had, never to be
    tried elsewhere: what killed one engine would kill the next. One that is back gets the adapters of the others.
    """

    def __init__(
        self, clients: Sequence[SocketClient], *, media: MediaService | None = None, router: Router | None = None
    ) -> None:
        first = clients[0]
        self.config, self.tokenizer = first.config, first.tokenizer
        self.media = media
        self._clients = tuple(clients)
        self._replicas = [Replica(number, client) for number, client in enumerate(clients)]
        self._router = router or Router()
        self._complete = False
        """Whether all were ready once, but for those that are lost."""
        self._prepares = media is None
        """Whether media can be prepared."""
        self._broken: LsvError | None = None
        """Why they never will be."""
        self._settled = asyncio.Event()
        """Set unless all are loading."""
        self._closing = False
        self._special: Mapping[type[Order], Callable[[Any], Awaitable[None]]] = {
            ResetPrefixCache: self._reset_prefix_cache,
            LoadAdapter: self._load_adapter,
            UnloadAdapter: self._unload_adapter,
        }
        """Orders for which the replicas need more than to be given them."""
        self._tasks: set[asyncio.Task[None]] = set()
        for replica in self._replicas:
            replica.client.watch(partial(self._follow, replica))

    async def start(self) -> None:
        """Connect to the engines as soon as they are there; returns at once."""
        for client in self._clients:
            await client.start()
        if self.media is not None:
            self._spawn(self._await_processor(self.media))

    async def ready(self) -> Fit:
        """Wait until requests are taken; raises the error that a start failed with."""
        await self._settled.wait()
        fit = self.fit
        if self.status.state != "ready" or fit is None:
            raise self.failure or EngineDied(self.status.error or "the engines have been stopped")
        return fit

    # What they are

    @property
    def replicas(self) -> tuple[SocketClient, ...]:
        return self._clients

    @property
    def addresses(self) -> tuple[Path, ...]:
        """Where the engines listen, for further clients in other processes."""
        return tuple(client.address for client in self._clients)

    @property
    def status(self) -> EngineStatus:
        if self._broken is not None:
            return EngineStatus(state="dead", error=self._broken.message)
        found = self._summarise()
        if found.state == "ready" and not self._prepares:
            return EngineStatus(state="loading", stage="processor", error=found.error)
        return found

    def _summarise(self) -> EngineStatus:
        lost = [number for number, client in enumerate(self._clients) if client.is_lost]
        return summarise([client.status for client in self._clients], complete=self._complete, lost=lost)

    @property
    def failure(self) -> LsvError | None:
        """Why they are dead: the error that one of them reported, where it could."""
        if self._broken is not None or self.status.state != "dead":
            return self._broken
        return next((client.failure for client in self._clients if client.failure is not None), None)

    @property
    def stats(self) -> Stats:
        return add_stats([client.stats for client in self._clients])

    @property
    def fit(self) -> Fit | None:
        """That of the replica that takes the shortest requests: each must be able to run what is admitted."""
        fits = [client.fit for client in self._clients if client.fit is not None]
        return min(fits, key=lambda fit: fit.max_model_len, default=None)

    @property
    def admission(self) -> Admission:
        return Admission.of(self.config, self.fit, self.tokenizer)

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """Those of all replicas, one for each name."""
        named = {one.name: one for replica in self._replicas for one in replica.client.adapters}
        return tuple(named.values())

    def on_finished(self, callback: Callable[[RequestRecord], None]) -> None:
        for client in self._clients:
            client.on_finished(callback)

    def take_timings(self) -> list[Timings]:
        return [timings for client in self._clients for timings in client.take_timings()]

    # Requests

    async def generate(self, request: RequestSpec) -> AsyncGenerator[Chunk, None]:
        request, chains = self._read(request)
        refused: set[Replica] = set()
        while True:
            replica = self._choose(request, chains, refused)
            with replica.visit(request, chains) as visit:
                retried = partial(self._is_retried, visit, replica, refused)
                try:
                    async with aclosing(replica.client.generate(request, retried=retried)) as chunks:
                        async for chunk in chunks:
                            if chunk.grows:
                                visit.begin()
                            yield chunk
                    return
                except LsvError as error:
                    if not retried(error):
                        raise

    async def encode(self, request: RequestSpec) -> list[Vector]:
        request, chains = self._read(request)
        refused: set[Replica] = set()
        while True:
            replica = self._choose(request, chains, refused)
            with replica.visit(request, chains) as visit:
                retried = partial(self._is_retried, visit, replica, refused)
                try:
                    return await replica.client.encode(request, retried=retried)
                except LsvError as error:
                    if not retried(error):
                        raise

    def _read(self, request: RequestSpec) -> tuple[RequestSpec, tuple[Chain, ...]]:
        """The request as it will run, and what its prompts may have in common with others. Raises ``BadRequest``."""
        admitted = self.admission.admit(request)
        return admitted, name_blocks(admitted, self.config.block_size) if self.config.prefix_caching else ()

    def _choose(self, request: RequestSpec, chains: Sequence[Chain], refused: Collection[Replica]) -> Replica:
        """Choose the replica for a request: one that is ready and has, or can load, its adapter.

        Replicas that miss heartbeats are chosen last.

        Raises ``EngineDied`` or ``Unavailable`` if there is none.
        """
        ready = [replica for replica in self._replicas if replica.is_ready and replica not in refused]
        if request.adapter and not self._finds(request.adapter):
            ready = [replica for replica in ready if replica.serves(request.adapter)] or ready
        ready = [replica for replica in ready if not replica.client.status.silent] or ready
        if not ready:
            status = self.status
            if status.state == "dead":
                raise EngineDied(f"the engines are gone: {status.error}")
            raise Unavailable(f"the engines take no requests now: {status.state} {status.stage}".rstrip())
        return self._replicas[self._router.choose({replica.number: replica.load(chains) for replica in ready})]

    def _finds(self, adapter: str) -> bool:
        """Whether any replica loads the adapter when it is asked for."""
        options = self.config.adapters
        return options is not None and resolve(options, adapter) is not None

    def _is_retried(self, visit: Visit, replica: Replica, refused: set[Replica], error: LsvError) -> bool:
        """Whether a request is to be tried elsewhere: ``replica`` has refused it, and not all others have, too. To be
        asked twice, by the client, which then does not report it as over.
        """
        refusal = isinstance(error, Unavailable | Overloaded) and not isinstance(error, EngineDied)
        if visit.has_begun or not refusal:
            return False
        replica.note_refusal(error)
        refused.add(replica)
        return any(other.is_ready and other not in refused for other in self._replicas)

    # Orders

    async def order(self, order: Order) -> None:
        """Have all replicas of the order's audience carry it out. Raises the first error, once all have answered."""
        special = self._special.get(type(order))
        await (special(order) if special is not None else _give_all(order, self._find_audience(order)))

    async def _reset_prefix_cache(self, order: ResetPrefixCache) -> None:
        await _give_all(order, self._find_audience(order))
        for replica in self._replicas:
            replica.forget()

    async def _load_adapter(self, order: LoadAdapter) -> None:
        """Load the adapter on all replicas or none."""
        loaded: list[tuple[SocketClient, str | None]] = []

        async def load(client: SocketClient) -> None:
            before = next((one.path for one in client.adapters if one.name == order.name), None)
            await client.order(order)
            loaded.append((client, before))

        async def take_back(client: SocketClient, before: str | None) -> None:
            if before is None or before == order.path:  # what was there before is not to be had any more
                await client.order(UnloadAdapter(order.name))
            else:
                await client.order(LoadAdapter(order.name, before, replace=True))

        try:
            await _ask_all(load, self._find_audience(order))
        except LsvError:
            await asyncio.gather(*(take_back(*one) for one in loaded), return_exceptions=True)
            raise

    async def _unload_adapter(self, order: UnloadAdapter) -> None:
        """Unload the adapter where it is loaded."""
        ready = self._find_audience(order)
        await _give_all(order, [replica for replica in ready if replica.serves(order.name)] or ready)

    def _find_audience(self, order: Order) -> list[Replica]:
        """The replicas that get an order."""
        if order.audience == "ready":
            return self._ready()
        return [one for one in self._replicas if one.client.status.state in ("ready", "sleeping")]

    def _ready(self) -> list[Replica]:
        """Those that take orders. Raises ``Unavailable`` where there is none."""
        ready = [replica for replica in self._replicas if replica.is_ready]
        if not ready:
            raise Unavailable("no engine is ready: try again later")
        return ready

    async def close(self, *, drain: float = 0.0) -> None:
        """Leave the engines, which their supervisors stop; open requests get at most ``drain`` seconds to end."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        closing = (client.close(drain=drain) for client in self._clients)
        await asyncio.gather(*self._tasks, *closing, return_exceptions=True)
        if self.media is not None:
            await self.media.close()

    # Replicas that come and go

    def _follow(self, replica: Replica) -> None:
        """A replica's status has changed."""
        self._complete |= self._summarise().state == "ready"
        if replica.client.status.state != "ready":
            replica.renew()
        elif not self._closing:
            self._spawn(self._bring_up_to_date(replica))
            if self.media is not None:
                near = [client for client in self._clients if client.config.topology.is_local]
                self.media.keep_off(frozenset().union(*(client.fit.cores for client in near if client.fit)))
        self._settle()

    def _settle(self) -> None:
        if self.status.state == "loading":
            self._settled.clear()
        else:
            self._settled.set()

    async def _bring_up_to_date(self, replica: Replica) -> None:
        """Have a replica that is back serve the adapters that the others do, and none of another folder meanwhile."""
        others = [one for one in self._replicas if one is not replica and one.is_ready]
        served = {adapter.name: adapter for one in others for adapter in one.client.adapters}
        own = {adapter.name: adapter.digest for adapter in replica.client.adapters}
        same = {name for name, adapter in served.items() if own.get(name) == adapter.digest}
        try:
            for name in [name for name in own if others and name not in same]:
                await replica.client.order(UnloadAdapter(name))
            for name in [name for name in served if name not in same]:
                await replica.client.order(LoadAdapter(name, served[name].path))
        except LsvError as error:  # another process has been quicker, or the files are gone
            log.warning("replica %d does not serve the adapters of the others: %s", replica.number, error.message)
        finally:
            replica.is_current = True

    async def _await_processor(self, media: MediaService) -> None:
        try:
            await media.ready()
        except Exception as cause:
            self._broken = cause if isinstance(cause, LsvError) else EngineDied(f"no media can be prepared: {cause!r}")
        self._prepares = True
        self._settle()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _give_all(order: Order, replicas: Sequence[Replica]) -> None:
    """Have all replicas carry out an order. Raises the first error, once all have answered."""
    await _ask_all(lambda client: client.order(order), replicas)


async def _ask_all(ask: Callable[[SocketClient], Awaitable[None]], replicas: Sequence[Replica]) -> None:
    answers = await asyncio.gather(*(ask(replica.client) for replica in replicas), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
