"""Embeddings whose rows are those of a linear layer: they are read from its panels, so the weights are stored once."""

from __future__ import annotations

import ctypes

import torch

from lsv.offers import OpSpec
from lsv_cpu.kernels import selected_library
from lsv_cpu.linear import LinearRecord, PanelLinear, use_panels, why_not_panels
from lsv_runtime.nn.embed import Embed
from lsv_runtime.nn.step import Step
from lsv_runtime.ops import TableKernel


class PanelEmbed(TableKernel):
    """``lsv_runtime.nn.embed.Embed`` over the panels of its table: ids int64 [T] -> [T, size]."""

    def __init__(self, module: Embed, spec: OpSpec) -> None:
        assert module.table is not None, "supports() lets only embeddings with a table through"
        self._module, self._table, self._library = module, module.table, selected_library()
        use_panels(self._table)
        self._record: LinearRecord | None = None

    def pack(self) -> None:
        """Called once the table has packed. With another kernel bound to a plain one, the embedding keeps its rows."""
        kernel = self._table.kernel
        if isinstance(kernel, PanelLinear):
            self._record = kernel.record
            if not self._module.looks_up:
                self._module.release("weight")

    def forward(self, ids: torch.Tensor, step: Step) -> torch.Tensor:
        return self._module.over_ranks(self.look_up, ids)

    def look_up(self, ids: torch.Tensor) -> torch.Tensor:
        if self._record is None:
            return self._module.look_up_plainly(ids)
        ids, layer = ids.contiguous(), self._table.layer
        out = torch.empty((len(ids), layer.inputs), dtype=layer.dtype)
        self._library.lsv_look_up(ctypes.byref(self._record), ids.data_ptr(), len(ids), out.data_ptr())
        return out


def why_not_tied(spec: OpSpec) -> str | None:
    """None, or why an embedding can't read its rows from panels."""
    return why_not_panels(spec) if "tied" in spec.flags else "has rows of its own"
