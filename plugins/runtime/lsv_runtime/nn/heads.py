"""Products of attention heads, each with weights of its own."""

from __future__ import annotations

from typing import ClassVar

import torch

from lsv.offers import OpSpec
from lsv_runtime import products
from lsv_runtime.ops import Bindable, dtype_name


class HeadProduct(Bindable):
    """x [T, heads, inputs] -> [T, heads, outputs], by the buffer ``weight`` [heads, outputs, inputs].

    The module around it makes the weights of others that it has read, and hands them to ``fill``.
    """

    op: ClassVar[str] = "linear.heads"

    def __init__(self, heads: int, inputs: int, outputs: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.shape, self.dtype = (heads, outputs, inputs), dtype
        self.keep("weight", torch.empty(self.shape, dtype=dtype, device="meta"))

    def spec(self) -> OpSpec:
        heads, outputs, inputs = self.shape
        return OpSpec(self.op, dtype_name(self.dtype), "plain", {"heads": heads, "inputs": inputs, "outputs": outputs})

    def fill(self, weight: torch.Tensor) -> None:
        """Take the weights, of any strides."""
        self.keep("weight", weight)
        self.pack()

    def pack(self) -> None:
        """Nothing before there are weights: the loader comes here before it comes to the module around."""
        if not self.get_buffer("weight").is_meta:
            super().pack()

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        return products.einsum("thi,hoi->tho", x, self.get_buffer("weight"))
