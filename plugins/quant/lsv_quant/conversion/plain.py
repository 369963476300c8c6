"""A plain model beside the form in which a weight format would hold it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import torch

from lsv.config import EngineConfig, Topology
from lsv.plugins.catalog import Catalog
from lsv_runtime.devices.device import Device
from lsv_runtime.nn.embed import Embed
from lsv_runtime.weights.checkpoint import CheckpointSource, RenamedSource
from lsv_runtime.weights.quantizer import Linear, PlainLinear
from lsv_runtime.weights.stacks import UnfoldedSource
from lsv_runtime.weights.ties import TiedSource
from lsv_runtime.worker.load.bound import Bound, bind
from lsv_runtime.worker.load.declared import Declared
from lsv_runtime.worker.load.device import open_device
from lsv_runtime.worker.load.loaded import declare_stored, fill, open_source


@dataclass(frozen=True, slots=True)
class Layer:
    """A linear layer that a format quantises."""

    place: str
    """The module's name in the model."""
    form: Linear
    """As the format would hold it, on meta."""
    parts: tuple[str, ...]
    """What the model calls the tensors that it is made of: those of q, k and v, say, or the embedding."""
    transposed: bool = False
    """Whether files hold its plain weights as [inputs, outputs]."""

    @property
    def is_table(self) -> bool:
        """Whether its rows are embeddings."""
        return self.form.layer.looked_up


def alone(config: EngineConfig) -> EngineConfig:
    """The same model on one device, without anything that is added to it."""
    return msgspec.structs.replace(config, topology=Topology(), kv_dtype="auto", adapters=None, drafts=None)


def find_layers(config: EngineConfig, catalog: Catalog) -> Iterator[Layer]:
    """The layers that the configuration's format quantises."""
    declared = declare_stored(config, catalog)
    across = {piece.name for slot in declared.slots for piece in slot.pieces if piece.transposed}
    tied = {_place(tie.head): _place(tie.embedding) for tie in declared.ties}
    for place, module in declared.model.named_modules():
        if isinstance(module, Linear) and module.made_while_loading:
            layer = module.layer
            parts = (tied.get(layer.name, layer.name),) if layer.looked_up else layer.part_names
            yield Layer(place, module, parts, any(f"{part}.weight" in across for part in parts))


def _place(tensor: str) -> str:
    return tensor.rpartition(".")[0]


class PlainModel:
    """A filled model, each of whose ops is computed by its plain-torch reference, or in float32."""

    def __init__(self, bound: Bound, source: CheckpointSource, device: Device) -> None:
        self.bound, self.device = bound, device
        self._renamed = TiedSource(RenamedSource(source, self.declared.rename), self.declared.ties)
        self.source = UnfoldedSource(self._renamed, self.declared.model.stacks)
        """Its tensors, by the names under which the model declared them."""

    @property
    def declared(self) -> Declared:
        return self.bound.declared

    def stored_name(self, tensor: str) -> str:
        """What files call a tensor of ``source``. A part of another has its own name, but in a checkpoint that holds
        more it begins as the language model's tensors do.
        """
        half = self.declared.half
        if half is None or tensor in self._renamed.tensors():
            return self._renamed.stored_name(tensor)
        return half.restore(tensor)

    def stored_layer(self, part: str) -> str:
        """What files call a part of a layer."""
        return self.stored_name(f"{part}.weight").removesuffix(".weight")

    def described_layer(self, part: str) -> str:
        """What config.json calls a part of a layer: its own name, but in a checkpoint that holds more the file's."""
        return part if self.declared.half is None else self.stored_layer(part)

    def weight(self, layer: Layer) -> torch.Tensor:
        """The weight of a layer [outputs, inputs]."""
        model = self.declared.model
        if layer.is_table:
            tables = (module for module in model.modules() if isinstance(module, Embed))
            found = next(table.weight for table in tables if table.name == layer.parts[0])
        else:
            linear = model.get_submodule(layer.place)
            assert isinstance(linear, PlainLinear), "the plain model has plain layers"
            found = linear.weight
        assert found is not None, "a plain embedding has a weight"
        return found.data


@contextmanager
def open_plain(config: EngineConfig, catalog: Catalog) -> Iterator[PlainModel]:
    """The model of a configuration, its weights as they are in files."""
    config = msgspec.structs.replace(config, quantization=None, quantization_ignore=(), reference_ops=True)
    threads = torch.get_num_threads()
    device = open_device(config, catalog, rank=0)
    try:
        torch.set_num_threads(threads)  # a device may leave torch one thread, for kernels that are not used here
        declared = declare_stored(config, catalog, torch_device=device.torch_device)
        bound = bind(declared, config, catalog)
        source = open_source(config, declared, catalog)
        try:
            fill(declared, source)
            yield PlainModel(bound, source, device)
        finally:
            source.close()
    finally:
        device.close()
