"""How ranks exchange data: in each other's memory (P2P) where that works, else through the host's memory (USM)."""

from __future__ import annotations

import logging
import socket
import uuid
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import msgspec

from lsv.config import OptionValue
from lsv.settings import environment_with, export
from lsv_base.errors import ConfigError
from lsv_runtime.devices.collectives import SERVED
from lsv_runtime.devices.communicator import Group
from lsv_xpu import oneccl
from lsv_xpu.runtime import Vendor

log = logging.getLogger(__name__)

_CHOICES = ("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR")
"""Variables that choose which devices a process sees."""


class Links:
    """Decides once for a group, at start, and tells oneCCL. All ranks decide alike: what one can't do, none does.

    ``xpu.ccl_p2p_access`` auto tries P2P: every rank asks its driver, then all run a trial that checks every collective
    by value. Without P2P there is a trial, too: a library that hangs is told of instead of waited for. oneCCL reads its
    variables once, so trials run apart from the worker (``Vendor.try_links``).
    """

    def __init__(self, vendor: Vendor, index: int, group: Group, options: Mapping[str, OptionValue]) -> None:
        self._vendor, self._index, self._group, self._options = vendor, index, group, options

    def connect(self, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        """The backend of the group; ``store`` is shared by its ranks.

        Raises ``ConfigError`` where P2P is asked for and does not work, or nothing does.
        """
        variables = oneccl.variables(self._options, peer_access=self._choose_peer_access(store))
        export(variables, replace=True)
        log.info("oneCCL: %s", " ".join(f"{name}={value}" for name, value in sorted(variables.items())))
        return self._vendor.make_collectives(store, rank, size, timeout)

    def _choose_peer_access(self, store: Any) -> bool:
        asked = str(self._options.get(oneccl.PEER_ACCESS) or "auto")
        if asked != "0":
            why = self._agree(store, "access", self._ask_driver) or self._agree(store, "peer", self._try)
            if why is None:
                return True
            if asked == "1":
                raise ConfigError(
                    f"{oneccl.PEER_ACCESS}=1, but P2P between the devices does not work: {why}; "
                    "auto or 0 goes through the host's memory",
                    param=oneccl.PEER_ACCESS,
                )
            log.warning("ranks exchange data through the host's memory (USM), not P2P: %s", why)
        why = self._agree(store, "host", self._try)
        if why is not None:
            raise ConfigError(
                f"the ranks can't exchange data, not even through the host's memory: {why}; what has helped others: "
                "--xpu-ccl-allgatherv ring, --xpu-ccl-ipc-exchange sockets, or torch with another oneCCL",
                param="tensor_parallel_size",
            )
        return False

    def _agree(self, store: Any, question: str, answer: Callable[[Any, str], str | None]) -> str | None:
        """The first rank's objection, the same for all ranks; None where no rank has one."""
        store.set(f"links/{question}/{self._group.rank}", answer(store, question) or "")
        for rank in range(self._group.size):
            objection = store.get(f"links/{question}/{rank}").decode()
            if objection:
                return f"rank {rank}: {objection}"
        return None

    def _ask_driver(self, store: Any, question: str) -> str | None:
        """Asks of ranks that number devices as this one does; those of other machines are left to the trial."""
        store.set(f"links/place/{self._group.rank}", f"{self._index} {_numbering()}")
        for rank in range(self._group.size):
            number, _, numbering = store.get(f"links/place/{rank}").decode().partition(" ")
            peer = int(number)
            if numbering != _numbering() or peer == self._index:
                continue
            if not self._vendor.runtime.can_device_access_peer(self._index, peer):
                return f"device {self._index} can't reach the memory of device {peer}"
        return None

    def _try(self, store: Any, question: str) -> str | None:
        """Run the trial, whose ranks meet as a group of their own; the question tells between peer and host."""
        seconds = float(self._options.get(oneccl.TRIAL_SECONDS) or 60)
        variables = oneccl.variables(self._options, peer_access=question == "peer")
        trial = msgspec.structs.replace(
            self._group, axis=f"{self._group.axis}-{question}", address=_beside(self._group.address, question)
        )
        return self._vendor.try_links(trial, self._index, variables, seconds)


def _numbering() -> str:
    """What the numbers of devices mean: a machine, and which of its devices are seen."""
    environment = environment_with({})
    seen = (environment.get(name, "") for name in _CHOICES)
    return " ".join((socket.gethostname(), f"{uuid.getnode():x}", *seen))


def _beside(address: str, question: str) -> str:
    """Where another group of the same ranks meets: in a file of its own, or in the store that serves this group."""
    if address.startswith("/"):
        return f"{address}-{question}"
    return address if address.startswith(SERVED) else f"{SERVED}{address}"
