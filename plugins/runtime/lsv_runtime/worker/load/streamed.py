"""Layers whose weights lie in the host's memory and are brought to the device while those before them compute.

The device has two places at fixed addresses, each as large as the largest of these layers, which take turns: while one
is computed with, the other is filled. So steps can be captured as ever. Copies go beside the work: into a place once
the layer that was there has been computed, and a layer waits for its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from lsv.config import EngineConfig, Reason
from lsv_base.errors import ConfigError
from lsv_runtime.devices.device import Device, Fetcher
from lsv_runtime.nn.model import Model
from lsv_runtime.worker.load.hosted import HostedLayer, OwnWeights, PinnedMemory

PLACES = 2
_GIB = 1 << 30


class StreamedLayers(nn.ModuleList):
    """A model's layers, computed in the order in which they are handed out: going through them gives the device its
    copies. ``own`` are the weights of those that are streamed, by their numbers.

    ``move`` takes each layer when it is filled, ``settle`` makes them ready.
    """

    def __init__(
        self, layers: nn.ModuleList, own: Mapping[int, OwnWeights], fetcher: Fetcher, device: torch.device
    ) -> None:
        super().__init__(layers)
        self._own, self._fetcher, self._device = own, fetcher, device
        self._numbers = {id(layers[number]): number for number in own}
        self._memory = PinnedMemory()
        self._hosted: dict[int, HostedLayer] = {}
        self._turns: dict[int, int] = {}
        self._copies: list[list[tuple[Tensor, Tensor]]] = []

    @property
    def sizes(self) -> list[int]:
        """Bytes of the layers that are streamed: as declared, and once they have been moved as they are."""
        hosted = self._hosted
        return [hosted[number].size if number in hosted else own.nbytes for number, own in self._own.items()]

    @property
    def saved(self) -> int:
        """Bytes less on the device than if no layer were streamed."""
        return saved(self.sizes)

    @torch.inference_mode()
    def move(self, module: nn.Module) -> None:
        """Move a filled module's weights to the host if it is one of the streamed layers; the device has their memory
        back. Raises ``ConfigError`` where an earlier layer has one of them as well.
        """
        number = self._numbers.get(id(module))
        if number is None:
            return
        assert number not in self._hosted, "streamed layers are filled once"
        moved = {id(tensor) for hosted in self._hosted.values() for tensor in hosted.tensors}
        if any(id(tensor) in moved for tensor in self._own[number].tensors()):
            raise _refuse(f"layer {number} of the model shares a weight with an earlier one: leave it out")
        self._hosted[number] = HostedLayer(module, self._own[number], self._memory, self._device)

    @torch.inference_mode()
    def settle(self) -> None:
        """Take the places on the device, of which all streamed layers' weights are views from now on."""
        room = torch.zeros((PLACES, max(self.sizes)), dtype=torch.uint8, device=self._device)
        self._turns = {number: turn for turn, number in enumerate(sorted(self._hosted))}
        self._copies = [self._hosted[number].place(room[turn % PLACES]) for number, turn in self._turns.items()]

    def __iter__(self) -> Iterator[nn.Module]:
        for turn in range(min(PLACES, len(self._copies))):
            self._fetch(turn)
        for number, layer in enumerate(super().__iter__()):
            turn = self._turns.get(number, -1)
            if turn < 0:
                yield layer
                continue
            self._fetcher.expect(turn % PLACES)
            yield layer
            self._fetch(turn + PLACES)

    def _fetch(self, turn: int) -> None:
        """Bring a layer to its place when all work given so far is done, such as that with the layer there."""
        if turn < len(self._copies):
            self._fetcher.fetch(turn % PLACES, self._copies[turn])


def stream_layers(model: Model, config: EngineConfig, device: Device) -> StreamedLayers | None:
    """Have as many layers of a declared model streamed as come to ``offload_bytes`` at most, spread evenly; None where
    that is nothing, or the device computes from the host's memory.

    Comes when the model has been cut to its stage, before anything is filled. Raises ``ConfigError`` where the device,
    the model or the size don't allow it.
    """
    if not config.offload_bytes or torch.empty(0, device=device.torch_device).is_cpu:
        return None
    fetcher = device.fetcher(PLACES)
    if fetcher is None:
        raise _refuse(f"platform {config.platform} can't copy from the host in the background: leave it out")
    if not model.staged:
        raise _refuse(f"layers of {config.architecture} need more than the last one's output: leave it out")
    if any(layer.source is not None for layer in model.attention_layers()):
        raise _refuse(f"layers of {config.architecture} also work on media, out of their order: leave it out")
    own = own_weights(model)
    sizes = [weights.nbytes for weights in own]
    chosen = choose(sizes, config.offload_bytes)
    if saved([sizes[number] for number in chosen]) <= 0:
        raise _refuse(_too_few(sizes, chosen))
    streamed = {number: own[number] for number in chosen}
    model.layers = layers = StreamedLayers(model.layers, streamed, fetcher, device.torch_device)
    return layers


def describe_streaming(layers: StreamedLayers | None, config: EngineConfig) -> tuple[Reason, ...]:
    """What is said of it at the start, if anything was asked for."""
    if not config.offload_bytes:
        return ()
    if layers is None:
        why = f"has no effect: platform {config.platform} computes with weights where they are, in the host's memory"
        return (Reason("cpu_offload_gb", f"{config.offload_bytes / _GIB:.3g}", why),)
    sizes = layers.sizes
    why = (
        f"{len(sizes)} of {len(layers)} layers lie in pinned memory of the host and come through {PLACES} places of "
        f"{max(sizes) / _GIB:.3g} GiB: {layers.saved / _GIB:.3g} GiB less on the device"
    )
    return (Reason("cpu_offload_gb", f"{sum(sizes) / _GIB:.3g}", why),)


def _refuse(why: str) -> ConfigError:
    return ConfigError(f"cpu_offload_gb: {why}", param="cpu_offload_gb")


def _too_few(sizes: Sequence[int], chosen: Sequence[int]) -> str:
    found = f"it comes to {len(chosen)} of {len(sizes)} layers here, and {PLACES} places for layers take no less memory"
    enough = [sum(some) for some in _spread_all(sizes) if saved(some) > 0]
    if not enough:
        return f"{found}; there are too few layers to gain any: leave it out"
    return f"{found}: give {min(enough) / _GIB * 1.01:.3g} or more, or leave it out"


def own_weights(model: Model) -> list[OwnWeights]:
    """What each of a model's layers has for itself: no other layer, nor the rest of the model, has it as well."""
    layers = [set(layer.modules()) for layer in model.layers]
    rest = {module for name, child in model.named_children() if name != "layers" for module in child.modules()}
    holders = Counter(module for unit in (*layers, rest) for module in unit)
    ties = Counter(id(parameter) for module in holders for parameter in module.parameters(recurse=False))
    return [_own(layer, holders, ties) for layer in model.layers]


def _own(layer: nn.Module, holders: Mapping[nn.Module, int], ties: Mapping[int, int]) -> OwnWeights:
    modules = tuple(module for module in layer.modules() if holders[module] == 1)
    shared = (
        (id(module), name)
        for module in modules
        for name, parameter in module.named_parameters(recurse=False)
        if ties[id(parameter)] > 1
    )
    return OwnWeights(modules, frozenset(shared))


def choose(sizes: Sequence[int], most: int) -> tuple[int, ...]:
    """The most layers that come to ``most`` bytes, spread evenly among those that have any."""
    found = [number for number, size in enumerate(sizes) if size]
    for count in range(len(found), 0, -1):
        chosen = tuple(found[place] for place in spread(len(found), count))
        if sum(sizes[number] for number in chosen) <= most:
            return chosen
    return ()


def _spread_all(sizes: Sequence[int]) -> list[list[int]]:
    """The sizes of what would be chosen, for any number of layers."""
    found = [size for size in sizes if size]
    return [[found[place] for place in spread(len(found), count)] for count in range(1, len(found) + 1)]


def spread(total: int, count: int) -> list[int]:
    """``count`` of ``total`` places, the gaps before them alike: that is the time which copies have."""
    return [(place + 1) * total // count - 1 for place in range(count)]


def saved(sizes: Sequence[int]) -> int:
    """Bytes less on the device when layers of these sizes are streamed."""
    return sum(sizes) - PLACES * max(sizes, default=0)
