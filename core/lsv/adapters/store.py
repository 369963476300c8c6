"""The adapters of a worker: read beside its steps, kept on the host, and copied into the slots of the layers."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch

from lsv.adapters.checkpoint import Pair, read_adapter
from lsv.adapters.magnitudes import Held, Rescaling, find_rescaling, has_magnitudes
from lsv.adapters.slots import AdapterSlots, Slots
from lsv.config import AdapterOptions
from lsv.errors import CheckpointError, LsvError, NotYet
from lsv.nn.model import Model
from lsv.platform import Communicator
from lsv.weights.checkpoint import some_of

log = logging.getLogger(__name__)

_SOON = 0.005
"""Seconds for which steps wait for an adapter, most of which take no longer to read."""


_HOST = torch.device("cpu")


class Served(NamedTuple):
    """What a store serves, without the matrices: these are in the files."""

    paths: Mapping[int, Path]
    """The folders of adapters by their numbers."""
    slots: Mapping[int, int]
    """Which of them is in which slot."""
    rescaling: frozenset[int] = frozenset()
    """Those that rescale what layers give."""


class AdapterStore:
    """Reads adapters for a model, whose layers have the slots ``places``, and fills slots with them.

    The host keeps ``options.host`` of them; others are read again when they are to enter a slot. The ranks of
    ``communicator`` must have the same adapters enter slots in the same order.
    """

    def __init__(
        self,
        model: Model,
        places: Mapping[str, Slots],
        options: AdapterOptions,
        communicator: Communicator | None = None,
        device: torch.device = _HOST,
    ) -> None:
        self._model, self._places, self._options = model, places, options
        self._communicator, self._device = communicator, device
        self._layers = tuple(dict.fromkeys(places.values()))
        self._paths: dict[int, Path] = {}
        self._held: OrderedDict[int, Held] = OrderedDict()  # the least recently used first
        self._reader = ThreadPoolExecutor(1, "adapters")
        self._reading: dict[int, Future[Held]] = {}
        self._entered: dict[int, int] = {}  # slot -> adapter
        self._rescaling: dict[int, Rescaling | None] = {}  # None until one has entered a slot
        self.faults: dict[int, str] = {}
        """By slot, why the adapter that was to enter it could not be read."""

    def load(self, id: int, path: str) -> None:
        """Read an adapter, which has a number of its own, beside whatever else is done.

        Raises ``NotYet`` until it is there: to be called again then. Raises ``CheckpointError`` for one that does not
        fit.
        """
        if id not in self._reading:
            self._reading[id] = self._reader.submit(self._read, Path(path))
        try:
            held = self._reading[id].result(_SOON)
        except TimeoutError:
            raise NotYet(f"the adapter {path} is being read") from None
        except LsvError:
            del self._reading[id]
            raise
        del self._reading[id]
        self._paths[id] = Path(path)
        if has_magnitudes(held):
            self._rescaling[id] = None
        self._hold(id, held)

    def drop(self, id: int) -> None:
        """Forget an adapter; what is in a slot stays there until another one enters it."""
        self._paths.pop(id, None)
        self._held.pop(id, None)
        self._reading.pop(id, None)
        self._rescaling.pop(id, None)

    def enter(self, slot: int, id: int) -> None:
        """Fill a slot with an adapter that was loaded. What is wrong with it is kept in ``faults``."""
        self.faults.pop(slot, None)
        self._entered[slot] = id
        held: Held | None = None
        try:
            held = self._take(id)
        except LsvError as error:
            self._fail(slot, id, error)
        rescaling: Rescaling | None = {}
        if id in self._rescaling:
            rescaling = self._rescale(slot, id, held)
        if held is None or rescaling is None:
            held, rescaling = {}, {}
        for layer in self._layers:
            if isinstance(layer, AdapterSlots):
                layer.fill(slot, held.get(layer), rescaling.get(layer))
            else:
                layer.fill(slot, held.get(layer), self._device)

    @property
    def served(self) -> Served:
        """What is served, so that another store can serve it."""
        return Served(dict(self._paths), dict(self._entered), frozenset(self._rescaling))

    def serve(self, served: Served) -> None:
        """Serve what a store before this one did, for the model that took the place of that one's."""
        self._paths |= served.paths
        self._rescaling |= dict.fromkeys(served.rescaling)
        for slot, id in served.slots.items():
            self.enter(slot, id)

    def _rescale(self, slot: int, id: int, held: Held | None) -> Rescaling | None:
        """How an adapter rescales what layers give, found when it first enters a slot. None where it can't."""
        found = self._rescaling[id]
        if found is None:
            try:
                found = find_rescaling(held, self._communicator, self._device)
            except LsvError as error:
                self._fail(slot, id, error)
            else:
                if found is None and slot not in self.faults:
                    self.faults[slot] = f"another rank can't read the adapter {self._paths[id]}"
            self._rescaling[id] = found
        return found

    def _fail(self, slot: int, id: int, error: LsvError) -> None:
        log.error("adapter %s can't be served: %s", self._paths.get(id), error.message)
        self.faults[slot] = error.message

    def _take(self, id: int) -> Held:
        """An adapter's host copy, read now unless it was kept."""
        held = self._held.get(id)
        if held is None:
            held = self._read(self._paths[id])
        self._hold(id, held)
        return held

    def _hold(self, id: int, held: Held) -> None:
        self._held[id] = held
        self._held.move_to_end(id)
        while len(self._held) > self._options.host:
            self._held.popitem(last=False)

    @torch.inference_mode()
    def _read(self, path: Path) -> Held:
        return self._cut(path, read_adapter(path, self._options.max_rank))

    def _cut(self, path: Path, pairs: Mapping[str, Pair]) -> Held:
        """This rank's share of an adapter, by layer."""
        by_layer: dict[Slots, dict[str, Pair]] = {}
        strangers: list[str] = []
        for module, pair in pairs.items():
            name = self._model.rename(f"{module}.weight").removesuffix(".weight")
            layer = self._places.get(name)
            if layer is None:
                strangers.append(module)
            else:
                by_layer.setdefault(layer, {})[name] = pair
        if strangers:
            raise CheckpointError(f"{path}: {_refuse(strangers)}")
        try:
            return {layer: layer.cut(own) for layer, own in by_layer.items()}
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error.message}") from error


def _refuse(modules: Iterable[str]) -> str:
    return (
        f"the adapter has weights for {some_of(sorted(modules))}: these are no linear layers of the model that "
        "take adapters (routers, encoders and experts that are spread over ranks take none, nor do embeddings and "
        "heads in transformers' code)"
    )
