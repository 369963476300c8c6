"""What is measured in a run of mode MEASURE, and the scales that follow from it in one of mode QUANTIZE."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from typing import Literal

import torch

from lsv_base.errors import ConfigError
from lsv_hpu.devices import Gaudi
from lsv_hpu.neural_compressor.files import QuantConfig, read_measured, write_measured

_log = logging.getLogger(__name__)

_CACHE_TYPE = frozenset({"VLLMKVCache"})

Stored = Literal["k_cache", "v_cache"]


class Calibration:
    """One rank's measurements; rank 0 of 1 until it has joined others."""

    def __init__(self, config: QuantConfig, gaudi: Gaudi) -> None:
        self.config, self.gaudi = config, gaudi
        self.rank, self.size = 0, 1
        self._peaks: dict[str, torch.Tensor] = {}

    @property
    def measuring(self) -> bool:
        return self.config.mode == "MEASURE"

    def join(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def watch(self, name: str, device: torch.device) -> torch.Tensor:
        """A number float32 [] to keep the largest input of a module in, see ``raise_peak``."""
        return self._peaks.setdefault(name, torch.zeros((), device=device))

    def watch_cache(self, index: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """The same for the keys and the values of a layer."""
        keys, values = (self.watch(cache_name(index, which), device) for which in ("k_cache", "v_cache"))
        return keys, values

    def scale(self, largest: float) -> float:
        """For weights, by their own largest number."""
        return self.config.scale(largest, self.config.scale_params.weight_backoff, self.gaudi)

    def input_scale(self, names: Sequence[str]) -> float:
        """For the input of the module of the first name, or of several that share it. Raises ``ConfigError``."""
        fused, *parts = names
        found = [self._inputs[name] for name in ([fused] if fused in self._inputs else parts) if name in self._inputs]
        if not found:
            raise ConfigError(
                f"{self.config.found(self.rank, self.size)} has no measurement of {fused}: measure the model with "
                "this QUANT_CONFIG's mode set to MEASURE, or put the name into its blocklist",
                param="hpu.quant_config",
            )
        return self.config.scale(max(found), self.config.scale_params.input_backoff, self.gaudi)

    def cache_scale(self, index: int, which: Stored, default: float) -> float:
        """For keys or values of a layer; ``default`` where they were not measured."""
        name = cache_name(index, which)
        found = [largest for key, largest in self._inputs.items() if f".{key}".endswith(f".{name}")]
        if not found or not self.config.covers(name, _CACHE_TYPE):
            return default
        return self.config.scale(max(found), self.config.scale_params.input_backoff, self.gaudi)

    def save(self) -> None:
        """Write what was measured, if anything was."""
        peaks = {name: float(peak) for name, peak in self._peaks.items()}
        if not any(peaks.values()):
            return
        path = self.config.file(self.rank, self.size)
        write_measured(path, peaks, self.gaudi, self.rank)
        _log.info("wrote the largest inputs of %d modules to %s", len(peaks), path)

    @cached_property
    def _inputs(self) -> dict[str, float]:
        return read_measured(self.config.found(self.rank, self.size), self.gaudi)


def raise_peak(peak: torch.Tensor, x: torch.Tensor) -> None:
    """``peak`` becomes the largest absolute number it has met, in place."""
    peak.copy_(torch.maximum(peak, x.abs().amax().float()))


def cache_name(index: int, which: Stored) -> str:
    return f"model.layers.{index}.self_attn.attn.impl.{which}"
