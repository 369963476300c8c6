"""Attention that a module writes out itself, recognised by its algebra: softmax(q kᵀ * scale + mask) v.

While a pass runs inside ``Recognised``, the product of queries and keys is not computed but stands for itself as
``Scores``; what is done to it up to the product with the values tells the scale, and masks are left out, for the
backend masks by itself. Whether what was recognised is what the module computes is for the proof to find out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from lsv_models.generic.interface import Pass
from lsv_models.generic.refusal import Refused

_PRODUCTS = (torch.matmul, torch.bmm, torch.Tensor.matmul, torch.Tensor.bmm, torch.Tensor.__matmul__)
_ADDED_PRODUCTS = (torch.baddbmm, torch.Tensor.baddbmm)
_SCALED = (
    torch.mul, torch.Tensor.mul, torch.Tensor.mul_, torch.Tensor.__mul__, torch.Tensor.__rmul__, torch.Tensor.__imul__,
)  # fmt: skip
_DIVIDED = (
    torch.div, torch.true_divide, torch.Tensor.div, torch.Tensor.div_, torch.Tensor.__truediv__,
    torch.Tensor.__itruediv__,
)  # fmt: skip
_SHAPED = (torch.Tensor.view, torch.Tensor.reshape, torch.reshape)
_SOFTENED = (functional.softmax, torch.softmax, torch.Tensor.softmax)
_UNCHANGED = (
    torch.add, torch.Tensor.add, torch.Tensor.add_, torch.Tensor.__add__, torch.Tensor.__radd__, torch.Tensor.__iadd__,
    torch.where, torch.Tensor.where, torch.Tensor.masked_fill, torch.Tensor.masked_fill_, torch.masked_fill,
    torch.max, torch.maximum, torch.Tensor.max, torch.Tensor.to, torch.Tensor.float, torch.Tensor.type,
    torch.Tensor.type_as, torch.Tensor.contiguous, functional.dropout, torch.Tensor.half, torch.Tensor.bfloat16,
)  # fmt: skip


class Scores(torch.Tensor):
    """Stands for queries times keys, [..., T, T]: nothing is computed."""

    query: torch.Tensor
    key: torch.Tensor
    scale: Any
    current: Pass
    soft: bool

    @staticmethod
    def __new__(
        cls,
        current: Pass,
        query: torch.Tensor,
        key: torch.Tensor,
        scale: Any = 1.0,
        shape: Sequence[int] | None = None,
        *,
        soft: bool = False,
    ) -> Scores:
        """``key`` is [..., T, dim] like ``query``. With ``soft`` it stands for the softmax."""
        sizes = (*query.shape[:-1], key.shape[-2]) if shape is None else tuple(shape)
        made: Scores = torch.Tensor._make_wrapper_subclass(cls, sizes, dtype=query.dtype, device=query.device)
        made.query, made.key, made.scale, made.current, made.soft = query, key, scale, current, soft
        return made

    def like(self, scale: Any = None, shape: Sequence[int] | None = None, *, soft: bool | None = None) -> Scores:
        """The same product, otherwise scaled, shaped or softened."""
        return Scores(
            self.current, self.query, self.key, self.scale if scale is None else scale,
            self.shape if shape is None else shape, soft=self.soft if soft is None else soft,
        )  # fmt: skip

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _PRODUCTS:
            return _multiply_values(*args)
        scores = next((given for given in (*args, *(kwargs or {}).values()) if isinstance(given, Scores)), None)
        assert scores is not None
        if func in _SHAPED:
            sizes = args[1:] if not isinstance(args[1], Sequence) else tuple(args[1])
            return scores.like(shape=torch.empty(scores.shape, device="meta").view(sizes).shape)
        if func in _SCALED or func in _DIVIDED:
            return _rescale(scores, args[1] if args[0] is scores else args[0], divide=func in _DIVIDED)
        if func in _SOFTENED:
            return scores.like(soft=True)
        if func in _UNCHANGED:
            return scores
        with torch._C.DisableTorchFunctionSubclass():
            return _look_at(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise Refused(f"its attention does {func} with its scores")


def _look_at(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Sizes, dtypes and devices may be asked for; any other use is none that we know."""
    name = getattr(func, "__name__", str(func))
    if name in ("__get__", "size", "dim", "numel", "is_floating_point", "ndimension", "__len__"):
        return func(*args, **kwargs)
    raise Refused(f"its attention does {name} with its scores")


def _rescale(scores: Scores, by: Any, *, divide: bool) -> Scores:
    """Scores times or over a number; a tensor with axes is a mask."""
    if isinstance(by, torch.Tensor) and by.numel() != 1:
        return scores
    return scores.like(scale=scores.scale / by if divide else scores.scale * by)


def _multiply_values(scores: Any, value: torch.Tensor) -> torch.Tensor:
    """Attend, now that the values [..., T, dim] are known, in their axes."""
    if not isinstance(scores, Scores) or not scores.soft or scores.current.attend is None:
        raise Refused("its attention multiplies its scores by something else than values")
    query, key, values = (_as_heads(each) for each in (scores.query, scores.key, value))
    shared = key.shape[1]
    if query.shape[1] % shared or values.shape[1] != shared:
        raise Refused("its queries, keys and values differ in number")
    out = scores.current.attend(query, key, values, {"scaling": scores.scale})
    return out.transpose(1, 2).reshape(*value.shape[:-2], *out.shape[1:2], value.shape[-1])


def _as_heads(each: torch.Tensor) -> torch.Tensor:
    """[heads, T, dim] or [1, heads, T, dim] -> [1, heads, T, dim]."""
    return each[None] if each.ndim == 3 else each


class Recognised(TorchFunctionMode):
    """Within it, products of queries and keys become ``Scores`` of a pass."""

    def __init__(self, current: Pass) -> None:
        super().__init__()
        self.current = current

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func in _PRODUCTS and _are_queries_and_keys(*args[:2]):
            return Scores(self.current, args[0], args[1].transpose(-1, -2))
        if func in _ADDED_PRODUCTS:
            query, key = given.get("batch1", *args[1:2]), given.get("batch2", *args[2:3])
            if _are_queries_and_keys(query, key):
                return Scores(self.current, query, key.transpose(-1, -2), given.get("alpha", 1.0))
        return func(*args, **given)


def _are_queries_and_keys(a: Any, b: Any = None) -> bool:
    """Whether a is [..., T, dim] and b [..., dim, T], with one axis or two before."""
    if type(a) is not torch.Tensor or type(b) is not torch.Tensor or a.ndim != b.ndim or a.ndim not in (3, 4):
        return False
    wide = a.shape[-1] == b.shape[-2] > 1 and a.shape[-2] == b.shape[-1]
    return wide and math.prod(a.shape[:-3]) == 1 and a.shape[-3] == b.shape[-3]
