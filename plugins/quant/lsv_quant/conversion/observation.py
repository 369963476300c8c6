"""What linear layers are given while a model reads a text: the second moments of their inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from lsv.config import EngineConfig
from lsv.kv.spec import KVGroup
from lsv.text.tokenizer import Tokenizer
from lsv_base.errors import ConfigError
from lsv_runtime.attention import BatchLayout
from lsv_runtime.devices.device import Device
from lsv_runtime.devices.shapes import Shape, ShapePolicy
from lsv_runtime.nn.model import Model
from lsv_runtime.worker.inputs import dummy_batch
from lsv_runtime.worker.load.bound import Bound
from lsv_runtime.worker.load.device import batch_limits
from lsv_runtime.worker.runner import ModelRunner

MOST_TOKENS = 1 << 16
"""Of a text; more would only take longer."""
_LEAST_TOKENS = 512
_WINDOW = 512
"""Tokens that are read at once, unless the model takes fewer."""
_EACH = 16
"""The first token of a window counts as if there were one in so many. Its activations are like no other's, and all
tokens attend to it: where it goes wrong, they all do (Sun et al. 2024, https://arxiv.org/abs/2402.17762).
"""

Window = list[int]
"""Token ids of a piece of text."""
Report = Callable[[int, int], None]
"""Called with (done, total)."""


def cut_text(text: str, tokenizer: Tokenizer, longest: int) -> list[Window]:
    """A text's tokens in windows of at most ``longest``, each after the token that begins every prompt, if any.

    Raises ``ConfigError`` for a text that is too short to say anything.
    """
    ids = tokenizer.encode(text)[:MOST_TOKENS]
    begin = ids[:1] if ids and ids[0] in tokenizer.special_ids else []
    rest, step = ids[len(begin) :], min(_WINDOW, longest) - len(begin)
    if len(rest) < _LEAST_TOKENS:
        raise ConfigError(
            f"the text for calibration has {len(rest)} tokens, and at least {_LEAST_TOKENS} are needed; some ten "
            "thousand, like what the model will read and write, are better",
            param="quantization_calibration",
        )
    return [begin + rest[first : first + step] for first in range(0, len(rest), step)]


class Reader:
    """Runs a filled model over windows of text, each from its beginning."""

    def __init__(self, bound: Bound, config: EngineConfig, device: Device, windows: Sequence[Window]) -> None:
        """Raises ``ConfigError`` for a model that reads something besides text."""
        self._groups, self._block_size = bound.declared.groups, config.block_size
        if any(group.kind == "cross" for group in self._groups):
            raise ConfigError(
                f"{config.architecture} needs sound or images beside text: it can't be calibrated on a text alone",
                param="quantization_calibration",
            )
        self.windows = tuple(windows)
        self._pages = -(-max(map(len, windows)) // config.block_size)
        cache = bound.allocate(1 + self._pages * max(1, len(self._groups)), config, device)
        policy = ShapePolicy(batch_limits(config, self._pages))
        self._model = bound.declared.model
        self._runner = ModelRunner(self._model, bound.backend, self._groups, cache, device, policy)

    @property
    def tokens(self) -> int:
        """Of all windows."""
        return sum(map(len, self.windows))

    @contextmanager
    def stopping_at(self, number: int) -> Iterator[None]:
        """Leave out the decoder layers from ``number`` on: nobody watches them yet."""
        layers = self._model.layers
        self._model.layers = layers[:number]
        try:
            yield
        finally:
            self._model.layers = layers

    def read(self, window: Window) -> None:
        """One pass through all layers."""
        shape = Shape("prefill", 1, len(window), self._pages)
        dummy = dummy_batch(shape, self._groups, self._block_size, padded=False, axes=self._runner.axes)
        tables = tuple(self._table(group) for group in self._groups)
        layout = BatchLayout(dummy.layout.query, dummy.layout.context, tables)
        batch = replace(dummy, ids=np.array(window, np.int64), layout=layout)
        self._runner.compute(batch, np.zeros(1, np.int64))

    def _table(self, group: KVGroup) -> Any:
        first = 1 + group.index * self._pages
        return np.arange(first, first + self._pages, dtype=np.int32)[None]


def observe(
    reader: Reader, layers: Mapping[str, nn.Module], until: int, report: Report = lambda done, total: None
) -> dict[str, torch.Tensor]:
    """The second moment of what each layer is given, float32 [inputs, inputs]; none of one that is given nothing.

    No decoder layer from ``until`` on is computed. ``report`` is told of tokens.
    """
    moments: dict[str, torch.Tensor] = {}
    done = 0
    with _watched(layers, moments), reader.stopping_at(until):
        for window in reader.windows:
            reader.read(window)
            done += len(window)
            report(done, reader.tokens)
    return moments


@contextmanager
def _watched(layers: Mapping[str, nn.Module], moments: dict[str, torch.Tensor]) -> Iterator[None]:
    def watch(name: str, layer: nn.Module) -> Any:
        def add(module: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
            rows = _emphasise_first(given[0].flatten(0, -2).float())
            if name in moments:
                moments[name].addmm_(rows.T, rows)
            elif len(rows):
                moments[name] = rows.T @ rows

        return layer.register_forward_pre_hook(add)

    handles = [watch(name, layer) for name, layer in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _emphasise_first(rows: torch.Tensor) -> torch.Tensor:
    """Rows [T, inputs] of a window, or of those of its tokens that an expert is given."""
    if len(rows) <= _EACH:
        return rows
    return torch.cat((rows[:1] * (len(rows) / _EACH) ** 0.5, rows[1:]))


def depths(model: Model) -> dict[str, int]:
    """The number of the decoder layer that each module is in, by the module's name."""
    within = {module: number for number, layer in enumerate(model.layers) for module in layer.modules()}
    return {name: within[module] for name, module in model.named_modules() if module in within}
