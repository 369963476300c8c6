"""Tenants, and how much of the engine each has used."""

from __future__ import annotations


class Tenant:
    """One tenant with requests under way.

    ``served`` is a virtual token counter (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024): the
    tokens computed for the tenant, divided by its weight. Of those that wait, the tenant with the least is next.
    """

    __slots__ = ("arrived", "groups", "name", "running", "served", "weight")

    def __init__(self, name: str, weight: float, served: float) -> None:
        self.name = name
        self.weight = weight
        self.served = served
        self.groups = 0
        """Its request groups that have not ended."""
        self.running = 0
        """Its sequences that hold a slot."""
        self.arrived = 0
        """Groups so far, which is the place in line of the next one."""

    def charge(self, tokens: int) -> None:
        """Charge it for computed tokens."""
        self.served += tokens / self.weight

    def exceeds_share_of(self, other: Tenant) -> bool:
        """Whether it would still hold at least as large a share of the slots as ``other`` if it gave it one."""
        return (self.running - 1) / self.weight >= (other.running + 1) / other.weight


class Tenants:
    """All tenants with requests under way; one is forgotten when its last request ends."""

    def __init__(self) -> None:
        self.several = False
        """Whether there is more than one, so that fairness matters."""
        self._tenants: dict[str, Tenant] = {}

    def __len__(self) -> int:
        return len(self._tenants)

    def enter(self, name: str, weight: float) -> Tenant:
        """The tenant of a new request group.

        A new tenant starts level with the tenant that was served least, so idle time earns no credit.
        """
        tenant = self._tenants.get(name)
        if tenant is None:
            level = min((known.served for known in self._tenants.values()), default=0.0)
            tenant = self._tenants[name] = Tenant(name, weight, level)
            self.several = len(self._tenants) > 1
        tenant.weight = weight
        tenant.groups += 1
        tenant.arrived += 1
        return tenant

    def leave(self, tenant: Tenant) -> None:
        """Forget one of its groups, which has ended."""
        tenant.groups -= 1
        if not tenant.groups:
            del self._tenants[tenant.name]
            self.several = len(self._tenants) > 1
