"""The conversion of a plain checkpoint: its layers are observed, rounded and written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from lsv.config import EngineConfig
from lsv.offers import KernelOffer
from lsv.plugins.catalog import Catalog
from lsv.resolve.locate import read_config
from lsv.text.tokenizer import open_tokenizer
from lsv_base.errors import CheckpointError, ConfigError
from lsv_quant.conversion.compensation import CompensatedInt4
from lsv_quant.conversion.folder import FolderWriter, fresh_folder
from lsv_quant.conversion.observation import Reader, Report, cut_text, depths, observe
from lsv_quant.conversion.plain import Layer, PlainModel, alone, find_layers, open_plain
from lsv_quant.conversion.schemes import Scheme, describe, scheme_of, stored_tensors
from lsv_quant.online.int4 import Int4Linear
from lsv_runtime import ops
from lsv_runtime.weights.checkpoint import read_region
from lsv_runtime.weights.quantizer import Linear, Quantizer, TableQuantizer
from lsv_runtime.worker.load.declared import make_quantizer

Say = Callable[[str], None]
"""Takes a line about what is done next."""

_PAUSE = 10.0
"""Seconds between two lines about what is done."""
_MOMENT_BYTES = 4 << 30
"""Most memory for second moments. If all layers need more, the model reads the text once for each group of layers.
The layers before a group are rounded by then.
"""


class Written(msgspec.Struct, frozen=True):
    """``layers`` were rounded, ``calibrated`` of them for a text of ``tokens``; their tensors and all others take
    ``bytes``.
    """

    layers: int
    calibrated: int
    tokens: int
    bytes: int


@torch.inference_mode()
def convert(config: EngineConfig, catalog: Catalog, target: Path, text: str | None, say: Say) -> Written:
    """Write the folder ``target``: the configuration's checkpoint in its weight format, for ``text`` if there is one.

    Raises ``ConfigError`` for a format that has no such form or can't be calibrated, and for a folder that is there;
    ``CheckpointError`` for weights that do not fit the model.
    """
    if config.parts:
        raise ConfigError("the model's weights lie in several checkpoints, and only one can be written", param="model")
    config = alone(config)
    json = read_config(Path(config.model), config.overrides)
    _check_plain(config, json)
    layers = tuple(find_layers(config, catalog))
    schemes = {layer: scheme_of(layer.form, config.quantization or "") for layer in layers}
    _check(config, schemes, text)
    with fresh_folder(target) as folder, open_plain(config, catalog) as plain:
        kernels = partial(ops.bind, offers=_kernels(config, catalog), platform=config.platform, load=catalog.load)
        conversion = _Conversion(plain, make_quantizer(config, json, catalog), kernels, FolderWriter(folder))
        tokens = 0
        if text is not None:
            windows = cut_text(text, open_tokenizer(config, skip=False), config.max_model_len - 1)
            reader = Reader(plain.bound, config, plain.device, windows)
            conversion.calibrate(layers, reader, say)
            tokens = reader.tokens
        say("writing the folder")
        conversion.round_others(layers)
        conversion.copy_others()
        stored = read_config(Path(config.model), {})
        described = describe(_by_name(schemes, plain))
        conversion.writer.finish(Path(config.model), {**stored, "quantization_config": described})
        return Written(len(layers), conversion.calibrated, tokens, conversion.writer.bytes)


def _kernels(config: EngineConfig, catalog: Catalog) -> list[KernelOffer]:
    """Those that would serve the format, whose rounding may differ from the reference's in a scale's last bit."""
    offers = () if config.reference_ops else catalog.offers(KernelOffer)
    return [offer for offer in offers if offer.unwanted is None or offer.unwanted(config) is None]


def _check_plain(config: EngineConfig, json: Mapping[str, Any]) -> None:
    if json.get("quantization_config"):
        raise ConfigError(
            f"{config.model} is quantised already, as {config.quantization}: name the plain model that it was made of",
            param="model",
        )


def _check(config: EngineConfig, schemes: Mapping[Layer, Scheme], text: str | None) -> None:
    if not schemes:
        raise ConfigError(f"{config.quantization} quantises no layer of this model", param="quantization")
    if any(layer.transposed and not scheme.packed for layer, scheme in schemes.items()):
        raise ConfigError(
            f"{config.quantization} can't be written for {config.architecture}, whose files hold weights as [inputs, "
            "outputs]: only formats of four bits can, sym_int4, its forms and mxfp4",
            param="quantization",
        )
    if text is not None and not any(isinstance(layer.form, Int4Linear) for layer in schemes):
        raise ConfigError(
            f"{config.quantization} can't be fitted to a text, only sym_int4 and its forms can: leave the text out",
            param="quantization_calibration",
        )


def _by_name(schemes: Mapping[Layer, Scheme], plain: PlainModel) -> dict[str, Scheme]:
    return {plain.described_layer(part): scheme for layer, scheme in schemes.items() for part in layer.parts}


class _Conversion:
    """Rounds the layers of a plain model and writes them; each is written once."""

    def __init__(
        self, plain: PlainModel, quantizer: Quantizer, bind: Callable[[nn.Module], object], writer: FolderWriter
    ) -> None:
        """``bind`` gives a layer the kernels that it is rounded by."""
        self._plain, self._quantizer, self._bind, self.writer = plain, quantizer, bind, writer
        self._done: set[Layer] = set()
        self.calibrated = 0

    def calibrate(self, layers: Sequence[Layer], reader: Reader, say: Say) -> None:
        """Round the decoder layers' for what they are given in the text."""
        model = self._plain.declared.model
        found = depths(model)
        within = [layer for layer in layers if layer.place in found and isinstance(layer.form, Int4Linear)]
        for first, last, group in _in_rounds(within, found, len(model.layers)):
            say(f"fitting layers {first} to {last - 1} of {len(model.layers)} to {reader.tokens:,} tokens")
            watched = {layer.place: model.get_submodule(layer.place) for layer in group}
            moments = observe(reader, watched, last, _now_and_then(say, "read {:,} of {:,} tokens"))
            report = _now_and_then(say, "rounded {} of {} linear layers")
            for number, layer in enumerate(group, start=1):
                moment = moments.pop(layer.place, None)
                _check_finite(layer, moment)
                self._round(layer, moment)
                report(number, len(group))

    def round_others(self, layers: Sequence[Layer]) -> None:
        """Those that no text was given to."""
        for layer in layers:
            if layer not in self._done:
                self._round(layer, None)

    def _round(self, layer: Layer, moment: torch.Tensor | None) -> None:
        """Round a layer and write it; the plain model goes on with what it has become."""
        weight = self._plain.weight(layer)
        made = self._build(layer, weight.clone())
        self._bind(made)
        if moment is not None and isinstance(made, Int4Linear):
            made.round = CompensatedInt4(made.layer.dtype, made.group, moment)
            self.calibrated += 1
        made.filled()
        tensors = stored_tensors(made)
        bases = [self._plain.stored_layer(part) for part in layer.parts]
        self.writer.put_layer(made.layer, bases, tensors)
        rounded = made.dequantise()
        assert rounded is not None, "formats that are written say what their weights are"
        weight.copy_(rounded)
        self._done.add(layer)

    def _build(self, layer: Layer, weight: torch.Tensor) -> Linear:
        quantizer = self._quantizer
        if layer.is_table and isinstance(quantizer, TableQuantizer):
            quantizer = quantizer.table(layer.form.layer) or quantizer
        return quantizer.build(layer.form.layer, {"weight": nn.Parameter(weight, requires_grad=False)})

    def copy_others(self) -> None:
        """All tensors that no layer is made of."""
        rounded = {f"{part}.weight" for layer in self._done for part in layer.parts}
        rounded |= {tie.head for tie in self._plain.declared.ties}
        for name, info in self._plain.source.tensors().items():
            if name not in rounded:
                region = tuple(slice(0, size) for size in info.shape)
                self.writer.put(self._plain.stored_name(name), read_region(self._plain.source, name, region).clone())


def _check_finite(layer: Layer, moment: torch.Tensor | None) -> None:
    if moment is not None and not bool(moment.isfinite().all()):
        raise CheckpointError(
            f"{layer.parts[0]}: what the layer is given while the model reads the text is not finite; try another "
            "--dtype, and see whether the plain model answers at all",
            param="quantization_calibration",
        )


def _now_and_then(say: Say, form: str) -> Report:
    """Says how much is done, some seconds apart."""
    last = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > _PAUSE:
            last = time.monotonic()
            say(form.format(done, total))

    return report


def _in_rounds(layers: Sequence[Layer], depth: Mapping[str, int], count: int) -> Iterator[tuple[int, int, list[Layer]]]:
    """The layers in groups of consecutive decoder layers, with the first of these and the one after the last."""
    first, size, group = 0, 0, list[Layer]()
    for number in range(count):
        here = [layer for layer in layers if depth[layer.place] == number]
        taken = sum(4 * layer.form.layer.inputs**2 for layer in here)
        if group and size + taken > _MOMENT_BYTES:
            yield first, number, group
            first, size, group = number, 0, []
        group += here
        size += taken
    if group:
        yield first, count, group
