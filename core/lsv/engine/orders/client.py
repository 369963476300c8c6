"""The orders of a client, as it sends them to an engine in another process."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence

from lsv.engine.client import EngineStatus
from lsv.engine.client_base import ClientBase


class OrderingClient(ClientBase, abc.ABC):
    """What of a client is orders. Each returns once it is carried out, and raises what it is refused with."""

    @abc.abstractmethod
    def _check_ready(self) -> None:
        """Raises ``Unavailable`` where the engine takes no requests."""

    @abc.abstractmethod
    def _check_alive(self) -> None:
        """Whether there is an engine that takes orders, be it asleep."""

    @abc.abstractmethod
    def _set_status(self, status: EngineStatus) -> None:
        """Tell all who watch."""

    @abc.abstractmethod
    async def _send_order(self, order: str, arguments: Mapping[str, str] = {}) -> None:
        """Have the engine carry out an order; raises the error it was refused with, or ``EngineDied``."""

    async def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes of the engine."""
        self._check_ready()
        await self._send_order("reset_prefix_cache")

    async def load_adapter(self, name: str, path: str, *, replace: bool = False) -> None:
        """Serve an adapter by a name. Raises ``BadRequest`` for one that can't be served, and for a taken name."""
        self._check_ready()
        await self._send_order("load_adapter", {"name": name, "path": path} | ({"replace": "yes"} if replace else {}))

    async def unload_adapter(self, name: str) -> None:
        """Serve an adapter no more, except to requests that have begun. Raises ``ModelNotFound``."""
        self._check_ready()
        await self._send_order("unload_adapter", {"name": name})

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Have the engine give memory back, see ``lsv.engine.client.Client``."""
        self._check_alive()
        await self._send_order("sleep", {"level": str(level), "mode": mode})

    async def wake_up(self, tags: Sequence[str] = ()) -> None:
        """Have the engine take memory again, see ``lsv.engine.client.Client``."""
        self._check_alive()
        await self._send_order("wake_up", {"tags": ",".join(tags)})

    async def drain(self) -> None:
        """Have the engine refuse new requests, and wait until it has ended all others. It takes none ever again."""
        self._check_ready()
        self._set_status(EngineStatus(state="draining"))
        await self._send_order("drain")

    async def profile(self, *, start: bool) -> None:
        """Have the engine record a profile, or write down what it has recorded."""
        self._check_ready()
        await self._send_order("start_profile" if start else "stop_profile")
