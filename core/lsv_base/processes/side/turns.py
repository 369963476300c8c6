"""Fair turns for a few places, so that the work of one client does not delay other clients."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable

import msgspec


class Owner(msgspec.Struct, frozen=True):
    """The account and the request that a piece of work belongs to."""

    tenant: str = ""
    """The account. Accounts share places fairly."""

    weight: float = 1.0
    """The account's share, relative to other accounts."""

    request: str = ""
    """The request. Requests of one account also take turns."""


NOBODY = Owner()
"""The owner of work that belongs to no request."""


class Place:
    """A place in use since ``began``."""

    __slots__ = ("began", "request", "tenant")

    def __init__(self, tenant: _Tenant, request: _Request, began: float) -> None:
        self.tenant = tenant
        self.request = request
        self.began = began


class Turns:
    """A fixed number of places that pieces of work take in turn. One event loop uses them.

    The next place goes to the tenant that uses the fewest places for its weight; ties go to the tenant that has used
    places for the shortest time. The same rule picks a request of the tenant. Work of one request is first come, first
    served. There is no preemption: waiting work starts when other work ends.
    """

    def __init__(self, places: int, now: Callable[[], float] = time.monotonic) -> None:
        self._free = places
        self._now = now
        self._tenants: dict[str, _Tenant] = {}

    def waiting(self, tenant: str) -> int:
        """How many pieces of a tenant's work wait."""
        known = self._tenants.get(tenant)
        return 0 if known is None else known.waiting

    async def take(self, owner: Owner) -> Place:
        """Wait for a place. Return it with ``give_back``."""
        tenant = self._tenants.get(owner.tenant)
        if tenant is None:
            tenant = self._tenants[owner.tenant] = _Tenant(owner.tenant, _least(self._tenants.values()))
        tenant.weight = owner.weight
        request = tenant.request(owner.request)
        if self._free:  # so nothing is waiting
            self._free -= 1
            return self._occupy(tenant, request)
        ticket: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        request.line.append(ticket)
        tenant.waiting += 1
        try:
            return await ticket
        except asyncio.CancelledError:
            if ticket.cancelled():
                self._leave(tenant, request, ticket)
            else:
                self.give_back(ticket.result())
            raise

    def give_back(self, place: Place) -> None:
        """Return a place, and start the next piece of work."""
        tenant, request = place.tenant, place.request
        held = self._now() - place.began
        for one, cost in ((tenant, held / tenant.weight), (request, held)):
            one.running -= 1
            one.served += cost
        self._forget(tenant, request)
        self._free += 1
        while waiting := [known for known in self._tenants.values() if known.waiting]:
            tenant = min(waiting, key=lambda known: (known.running / known.weight, known.served))
            request = tenant.next_request()
            ticket = request.line[0]
            if ticket.cancelled():
                self._leave(tenant, request, ticket)
                continue
            request.line.popleft()
            tenant.waiting -= 1
            self._free -= 1
            ticket.set_result(self._occupy(tenant, request))
            return

    def _leave(self, tenant: _Tenant, request: _Request, ticket: asyncio.Future[Place]) -> None:
        """Remove waiting work that was cancelled."""
        if ticket in request.line:
            request.line.remove(ticket)
            tenant.waiting -= 1
            self._forget(tenant, request)

    def _occupy(self, tenant: _Tenant, request: _Request) -> Place:
        tenant.running += 1
        request.running += 1
        return Place(tenant, request, self._now())

    def _forget(self, tenant: _Tenant, request: _Request) -> None:
        """Forget a request and a tenant once they have no work here."""
        if not (request.running or request.line):
            tenant.requests.pop(request.name, None)
        if not tenant.requests:
            self._tenants.pop(tenant.name, None)


class _Share:
    """How much a tenant or a request has used. ``served`` is in seconds, divided by the weight.

    A new share starts at the least ``served`` of all, so idle time earns no credit.
    """

    __slots__ = ("name", "running", "served")

    def __init__(self, name: str, served: float) -> None:
        self.name = name
        self.served = served
        self.running = 0


class _Request(_Share):
    __slots__ = ("line",)

    def __init__(self, name: str, served: float) -> None:
        super().__init__(name, served)
        self.line: deque[asyncio.Future[Place]] = deque()


class _Tenant(_Share):
    __slots__ = ("requests", "waiting", "weight")

    def __init__(self, name: str, served: float) -> None:
        super().__init__(name, served)
        self.weight = 1.0
        self.waiting = 0
        self.requests: dict[str, _Request] = {}

    def request(self, name: str) -> _Request:
        if name not in self.requests:
            self.requests[name] = _Request(name, _least(self.requests.values()))
        return self.requests[name]

    def next_request(self) -> _Request:
        waiting = (request for request in self.requests.values() if request.line)
        return min(waiting, key=lambda request: (request.running, request.served))


def _least(shares: Iterable[_Share]) -> float:
    return min((share.served for share in shares), default=0.0)
