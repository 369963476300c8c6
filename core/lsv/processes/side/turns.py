"""Turns: who of those that wait for a few places is next, so that the work of one client does not hold up others'."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable

import msgspec


class Owner(msgspec.Struct, frozen=True):
    """Whose work it is."""

    tenant: str = ""
    """The account. Accounts share the places fairly."""

    weight: float = 1.0
    """How large the account's share is beside those of the others."""

    request: str = ""
    """The request. Requests of one account take turns as well."""


NOBODY = Owner()
"""The owner of work that no request asks for."""


class Place:
    """A place that has been taken, since ``began``."""

    __slots__ = ("began", "request", "tenant")

    def __init__(self, tenant: _Tenant, request: _Request, began: float) -> None:
        self.tenant = tenant
        self.request = request
        self.began = began


class Turns:
    """Places that pieces of work take one after the other. One event loop uses it.

    The tenant that holds the fewest places for its weight is next, of these the one that has held places for the least
    time; within a tenant the same holds for its requests, and a request's own work goes in the order it came.
    Places are not taken away: who is next waits until a piece of work ends.
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
        """Wait for a place, which is to be given back."""
        tenant = self._tenants.get(owner.tenant)
        if tenant is None:
            tenant = self._tenants[owner.tenant] = _Tenant(owner.tenant, _least(self._tenants.values()))
        tenant.weight = owner.weight
        request = tenant.request(owner.request)
        if self._free:  # so nothing waits
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
        """The work has ended: the next one begins."""
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
        """Work that waited is not wanted any more."""
        if ticket in request.line:
            request.line.remove(ticket)
            tenant.waiting -= 1
            self._forget(tenant, request)

    def _occupy(self, tenant: _Tenant, request: _Request) -> Place:
        tenant.running += 1
        request.running += 1
        return Place(tenant, request, self._now())

    def _forget(self, tenant: _Tenant, request: _Request) -> None:
        """Keep nothing of a request and a tenant that have no work here."""
        if not (request.running or request.line):
            tenant.requests.pop(request.name, None)
        if not tenant.requests:
            self._tenants.pop(tenant.name, None)


class _Share:
    """What a tenant or a request has had. ``served`` is in seconds for its weight.

    A new one starts level with the one that has had the least: idle time saves up nothing.
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
