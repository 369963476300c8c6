"""The embedding of a model with a tied head: rows are read from the head's panels, so the weights are stored once."""

from __future__ import annotations

import ctypes

import torch

from lsv.nn.embed import Embed
from lsv.nn.step import Step
from lsv.offers import OpSpec
from lsv.ops import Kernel
from lsv_cpu.kernels import selected_library
from lsv_cpu.linear import LinearRecord, PanelLinear, why_not_panels


class PanelEmbed(Kernel):
    """``lsv.nn.embed.Embed`` over the panels of its head: ids int64 [T] -> [T, size]."""

    def __init__(self, module: Embed, spec: OpSpec) -> None:
        assert module.head is not None, "supports() lets only tied embeddings through"
        self._module, self._head, self._library = module, module.head, selected_library()
        self._head.use(PanelLinear(self._head, self._head.spec()))
        self._record: LinearRecord | None = None

    def pack(self) -> None:
        """Called once the head has packed. If another kernel was bound to the head, the embedding keeps its rows."""
        kernel = self._head.kernel
        if isinstance(kernel, PanelLinear):
            self._record = kernel.record
            self._module.release("weight")

    def forward(self, ids: torch.Tensor, step: Step) -> torch.Tensor:
        if self._record is None:
            return self._module.reference(ids, step)
        ids = ids.contiguous()
        out = torch.empty((len(ids), self._head.layer.inputs), dtype=self._head.layer.dtype)
        self._library.lsv_unpack_rows(ctypes.byref(self._record), ids.data_ptr(), len(ids), out.data_ptr())
        return out


def why_not_tied(spec: OpSpec) -> str | None:
    """None, or why an embedding can't read its rows from the panels of the head."""
    if "tied" not in spec.flags:
        return "has rows of its own"
    if "cut" in spec.flags:
        return "is sharded over ranks"
    return why_not_panels(spec)
