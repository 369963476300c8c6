"""A worker's adapters: read during steps, cached on the host, and copied into the slots of the layers."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch

from lsv.adapters import peft
from lsv.config import AdapterOptions
from lsv_base.errors import CheckpointError, LsvError, NotYet
from lsv_runtime.adapters.checkpoint import Pair, read_adapter
from lsv_runtime.adapters.magnitudes import Held, Rescaling, agree, find_rescaling, has_magnitudes
from lsv_runtime.adapters.slots import AdapterSlots, Slots
from lsv_runtime.devices.communicator import Communicator
from lsv_runtime.nn.model import Model
from lsv_runtime.weights.checkpoint import some_of

log = logging.getLogger(__name__)

_SOON = 0.005
"""Seconds for which steps wait for an adapter. Most adapters load within this time."""
_READERS = 2
"""Adapters that are read at the same time, so that one with slow files does not delay the next."""
_HOST = torch.device("cpu")
_ELSEWHERE = "another rank can't serve the adapter: its log says why"


class Source(NamedTuple):
    """Where an adapter is read from."""

    folder: Path
    digest: str
    """The hash of its files, in hexadecimal. Answers and cached prefixes are valid for these files only."""


class Served(NamedTuple):
    """What a store serves, without the matrices, which are in the files."""

    sources: Mapping[int, Source]
    """By adapter number."""
    slots: Mapping[int, int]
    """By slot, the number of its adapter."""
    rescaling: frozenset[int] = frozenset()
    """Numbers of adapters that rescale the outputs of layers."""


class AdapterStore:
    """Reads adapters for a model, whose layers have the slots ``places``, and fills slots with them.

    The host caches ``options.host`` adapters; others are read again before they enter a slot. All ranks must enter the
    same adapters in the same order. If one rank can't read an adapter, all ranks leave the slot empty.

    A pipeline stage has only some of the layers in ``places``; the store knows the others by name.
    """

    def __init__(
        self,
        model: Model,
        rename: Callable[[str], str],
        places: Mapping[str, Slots],
        options: AdapterOptions,
        communicator: Communicator | None = None,
        device: torch.device = _HOST,
        every: Communicator | None = None,
        leaves_out: Callable[[str], bool] = lambda module: False,
    ) -> None:
        """``rename`` turns a checkpoint's names into the model's. ``communicator`` connects the ranks that share each
        layer, ``every`` connects all ranks. ``leaves_out`` says of a checkpoint's name whether it is of something that
        is not served, such as a tower beside the language model: no answer depends on an adapter's weights for it.
        """
        self._leaves_out = leaves_out
        self._rename, self._places, self._options = rename, places, options
        self._communicator, self._device, self._every = communicator, device, every or communicator
        held = set(model.modules())
        self._layers = tuple(layer for layer in dict.fromkeys(places.values()) if layer in held)
        self._sources: dict[int, Source] = {}
        self._held: OrderedDict[int, Held] = OrderedDict()  # the least recently used first
        self._reader = ThreadPoolExecutor(_READERS, "adapters")
        self._reading: dict[int, Future[Held]] = {}
        self._entered: dict[int, int] = {}  # slot -> adapter
        self._rescaling: dict[int, Rescaling | None] = {}  # None until one has entered a slot
        self.faults: dict[int, str] = {}
        """By slot, why its adapter could not be read."""

    def load(self, id: int, path: str, digest: str) -> None:
        """Read the adapter with number ``id`` in the background; ``digest`` as in ``Source``.

        Raises ``NotYet`` while the adapter is being read: call again until no rank raises it. Raises
        ``CheckpointError`` if the adapter does not fit the model, or if its files have changed.
        """
        if id in self._sources:  # another rank takes longer
            return
        source = Source(Path(path), digest)
        if id not in self._reading:
            self._reading[id] = self._reader.submit(self._read, source)
        try:
            held = self._reading[id].result(_SOON)
        except TimeoutError:
            raise NotYet(f"the adapter {path} is being read") from None
        except LsvError:
            del self._reading[id]
            raise
        del self._reading[id]
        self._sources[id] = source
        if has_magnitudes(held):
            self._rescaling[id] = None
        self._hold(id, held)

    def drop(self, id: int) -> None:
        """Forget an adapter. Its slot keeps the matrices until another adapter enters."""
        for kept in (self._sources, self._held, self._reading, self._rescaling):
            kept.pop(id, None)
        self._entered = {slot: entered for slot, entered in self._entered.items() if entered != id}

    def enter(self, slot: int, id: int) -> None:
        """Fill a slot with a loaded adapter. If that fails, every rank records the reason in ``faults``."""
        self.faults.pop(slot, None)
        self._entered[slot] = id
        held, rescaling = self._take(slot, id), None
        if held is not None:
            rescaling = self._rescale(slot, id, held) if id in self._rescaling else {}
            if not agree(rescaling is not None, self._every, self._device):  # another stage may have failed
                self.faults.setdefault(slot, _ELSEWHERE)
                rescaling = None
        if held is None or rescaling is None:
            held, rescaling = {}, {}
        try:
            self._fill(slot, held, rescaling)
        except torch.OutOfMemoryError as cause:
            if self._every is not None:  # the other ranks go on with theirs
                raise
            self._fill(slot, {}, {})
            self._fail(slot, id, f"out of device memory ({cause}): lower --gpu-memory-utilization")

    def _fill(self, slot: int, held: Held, rescaling: Rescaling) -> None:
        for layer in self._layers:
            if isinstance(layer, AdapterSlots):
                layer.fill(slot, held.get(layer), rescaling.get(layer))
            else:
                layer.fill(slot, held.get(layer), self._device)

    @property
    def served(self) -> Served:
        """The state that another store needs to serve the same adapters."""
        return Served(dict(self._sources), dict(self._entered), frozenset(self._rescaling))

    def serve(self, served: Served) -> None:
        """Serve the adapters of an earlier store, whose model this store's model replaces."""
        self._sources |= served.sources
        self._rescaling |= dict.fromkeys(served.rescaling)
        for slot, id in served.slots.items():
            self.enter(slot, id)

    def _rescale(self, slot: int, id: int, held: Held) -> Rescaling | None:
        """How an adapter rescales the outputs of layers, computed when it first enters a slot; None on failure."""
        found = self._rescaling[id]
        if found is None:
            try:
                found = self._rescaling[id] = find_rescaling(held, self._communicator, self._device)
            except LsvError as error:
                self._fail(slot, id, error.message)
            else:
                if found is None:
                    self._fail(slot, id, _ELSEWHERE)
        return found

    def _fail(self, slot: int, id: int, why: str) -> None:
        log.error("adapter %s can't be served: %s", self._sources[id].folder, why)
        self.faults[slot] = why

    def _take(self, slot: int, id: int) -> Held | None:
        """An adapter's host copy, read now unless cached; None unless every rank has its copy."""
        held = self._held.get(id)
        try:
            held = self._read(self._sources[id]) if held is None else held
        except LsvError as error:
            self._fail(slot, id, error.message)
        fine = agree(held is not None, self._every, self._device)
        if held is None or not fine:
            self.faults.setdefault(slot, _ELSEWHERE)
            return None
        self._hold(id, held)
        return held

    def _hold(self, id: int, held: Held) -> None:
        self._held[id] = held
        self._held.move_to_end(id)
        while len(self._held) > self._options.host:
            self._held.popitem(last=False)

    @torch.inference_mode()
    def _read(self, source: Source) -> Held:
        folder = source.folder
        with peft.reading(folder):
            found = read_adapter(folder, self._options.max_rank, self._options.confinement)
            held = self._cut(folder, found.pairs)
            if found.digest != bytes.fromhex(source.digest):
                raise CheckpointError(f"the files of the adapter in {folder} have changed: load it again")
        return held

    def _cut(self, path: Path, pairs: Mapping[str, Pair]) -> Held:
        """This rank's share of an adapter, by layer. Other stages check the pairs of their own layers."""
        by_layer: dict[Slots, dict[str, Pair]] = {}
        strangers: list[str] = []
        for module, pair in pairs.items():
            name = self._rename(f"{module}.weight").removesuffix(".weight")
            layer = self._places.get(name)
            if layer is None:
                strangers.append(module)
            elif name in by_layer.setdefault(layer, {}):
                raise CheckpointError(f"{path} has weights for {name} twice, the second time under the name {module}")
            else:
                by_layer[layer][name] = pair
        left_out = [module for module in strangers if by_layer and self._leaves_out(module)]
        if others := [module for module in strangers if module not in left_out]:
            raise CheckpointError(f"{path}: {_refuse(others)}")
        if left_out:
            log.info("%s: only the language model is served; weights for %s are left out", path, some_of(left_out))
        try:
            return {layer: layer.cut(own) for layer, own in by_layer.items() if layer in self._layers}
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error.message}") from error


def _refuse(modules: Iterable[str]) -> str:
    return (
        f"the adapter has weights for {some_of(sorted(modules))}, which are not layers of this model that can have "
        "adapters (routers, encoders, experts that are spread over ranks, and embeddings and heads in transformers' "
        "code can't); train the adapter without these modules"
    )
