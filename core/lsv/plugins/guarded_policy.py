"""A plugin's scheduling policy, which must not end the engine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from lsv.request.group import RequestGroup
from lsv.scheduler.budget import StepCosts
from lsv.scheduler.policy import Fcfs, Key, Policy

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

_INSTEAD = Fcfs()


class GuardedPolicy:
    """If the policy raises, requests are served in order of arrival, and the log says so once.

    Tenants share the engine fairly under a policy that has no ``key_between_tenants``.
    """

    def __init__(self, policy: Policy, name: str, plugin: str) -> None:
        self._policy, self._what, self._told = policy, f"scheduling policy {name} of plugin {plugin}", False

    def key(self, group: RequestGroup, now: float) -> Key:
        return self._ask("key", lambda: self._policy.key(group, now), _INSTEAD.key(group, now))

    def key_between_tenants(self, group: RequestGroup, now: float) -> Key:
        fair = _INSTEAD.key_between_tenants(group, now)
        if not hasattr(self._policy, "key_between_tenants"):
            return fair
        return self._ask("key_between_tenants", lambda: self._policy.key_between_tenants(group, now), fair)

    def budget(self, running: int, costs: StepCosts) -> int:
        return self._ask("budget", lambda: self._policy.budget(running, costs), _INSTEAD.budget(running, costs))

    def _ask(self, about: str, ask: Callable[[], Answer], instead: Answer) -> Answer:
        try:
            return ask()
        except Exception:
            if not self._told:
                self._told = True
                log.exception("%s failed in %s: where it fails, first come is first served", self._what, about)
            return instead
