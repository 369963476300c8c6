"""What adapters add to a linear layer, natively: the arithmetic is that of native/adapters.cpp."""

from __future__ import annotations

import ctypes

import torch

from lsv.offers import OpSpec
from lsv_cpu import arena, native
from lsv_cpu.kernels import selected_library, why_not_native
from lsv_runtime.adapters.slots import AdapterSlots
from lsv_runtime.nn.step import TokenAdapters
from lsv_runtime.ops import Kernel


class AdaptersRecord(ctypes.Structure):
    """``Adapters`` of native/adapters.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("dtype", "rank", "sources", "parts")),
        *((name, ctypes.c_int64) for name in ("inputs", "outputs")),
        *((name, ctypes.c_void_p) for name in ("a", "b", "ranks", "runs", "rescaled", "rescale")),
    ]


class TokensRecord(ctypes.Structure):
    """``AdapterTokens`` of native/adapters.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("slots", "tiles", "tile_slots")),
        *((name, ctypes.c_int64) for name in ("count", "width")),
    ]


class NativeAdapters(Kernel):
    """``lsv_runtime.adapters.slots.AdapterSlots``: adds to y in place."""

    def __init__(self, module: AdapterSlots, spec: OpSpec) -> None:
        self._module, self._library = module, selected_library()
        self._runs = torch.tensor(list(module.parts), dtype=torch.int64)
        self.record = AdaptersRecord(
            native.DTYPES[module.layer.dtype], module.rank, len(module.sources), len(self._runs),
            module.layer.inputs, module.layer.width, runs=self._runs.data_ptr(),
        )  # fmt: skip

    def pack(self) -> None:
        """Move the slots onto huge pages, once they have memory, and for good."""
        module, record = self._module, self.record
        rescale = module._buffers["rescale"]
        if rescale is not None:
            record.rescale, (record.rescaled, _) = rescale.data_ptr(), module.rescaled.buffer_info()
        if record.a or module.get_buffer("a").is_meta:
            return
        for name in ("a", "b"):
            held = module.release(name)
            room = arena.weights.take(held.nbytes).view(held.dtype).view(held.shape)
            setattr(record, name, module.keep(name, room.copy_(held)).data_ptr())
        record.ranks, _ = module.ranks.buffer_info()

    def forward(self, y: torch.Tensor, x: torch.Tensor, tokens: TokenAdapters) -> torch.Tensor:
        x, y = x.contiguous(), y.contiguous()
        status = self._library.lsv_add_adapters(
            ctypes.byref(self.record),
            ctypes.byref(describe_tokens(tokens)),
            x.data_ptr(),
            y.data_ptr(),
            len(tokens.slots),
        )
        if status:
            raise native.refusal(status)
        return y


def describe_tokens(tokens: TokenAdapters) -> TokensRecord:
    """The record is good for as long as ``tokens`` is."""
    places = (tensor.data_ptr() for tensor in (tokens.slots, tokens.tiles, tokens.tile_slots))
    return TokensRecord(*places, *tokens.tiles.shape)


def why_not_adapters(spec: OpSpec) -> str | None:
    """None, or why a layer's adapters can't be added natively."""
    return "has adapters of another dtype than the model's" if "cast" in spec.flags else why_not_native(spec)
