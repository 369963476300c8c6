"""Speeds up Triton's interpreter by caching objects that it creates for every operation.

Unpatched, it describes the type of each intermediate block, looks up numpy's counterpart of each type, checks integers
for overflow (reported in debug mode only), and patches Triton's language at each function call. Values and errors stay
the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

KNOWN_RELEASES = ("3.7.",)
"""Releases of Triton that this module can patch."""

_patched: set[str] = set()
_blocks: dict[tuple[object, ...], dict[str, Any]] = {}
"""By element and sizes, the attributes of a block type; in ``_shared``, the attributes of its tensors."""
_scalar: dict[str, Any] = {}
"""The attributes of all scalar tensors."""
_counterparts: dict[str, np.dtype[Any]] = {}
_describe_block: Callable[..., None] = core.block_type.__init__
_describe_tensor: Callable[..., None] = core.tensor.__init__
_look_up: Callable[[core.dtype], np.dtype[Any]] = interpreter._get_np_dtype
_broadcast_any: Callable[..., tuple[core.tensor, core.tensor]] = TritonSemantic.broadcast_impl_value
_check_any_overflow: Callable[..., None] = TritonSemantic.binary_op_sanitize_overflow_impl


def quicken() -> None:
    """Patch this process's interpreter. Does nothing for unknown releases of Triton and compiled kernels."""
    interpreter.InterpretedFunction.__call__ = _call
    if triton.knobs.runtime.interpret and triton.__version__.startswith(KNOWN_RELEASES):
        core.block_type.__init__ = _make_block
        core.tensor.__init__ = _make_tensor
        interpreter._get_np_dtype = _find_counterpart
        TritonSemantic.broadcast_impl_value = _broadcast
        TritonSemantic.binary_op_sanitize_overflow_impl = _check_overflow


def _call(function: interpreter.InterpretedFunction, *args: Any, **kwargs: Any) -> Any:
    """Patch Triton's language once a module."""
    if function.fn.__module__ not in _patched:
        _patched.add(function.fn.__module__)
        interpreter._patch_lang(function.fn)
    return function.rewrite()(*args, **kwargs)


def _make_block(self: core.block_type, element_ty: core.dtype, shape: Any) -> None:
    sizes = tuple([getattr(size, "value", size) for size in shape])
    key = element_ty.name, getattr(element_ty, "address_space", None), sizes
    attributes = _blocks.get(key)
    if attributes is None:
        _describe_block(self, element_ty, shape)
        attributes = _blocks[key] = {**self.__dict__, "_shared": {}}
    self.__dict__.update(attributes)


def _make_tensor(self: core.tensor, handle: object, type: core.dtype) -> None:
    shared = type._shared if type.is_block() else _scalar
    if not shared:
        _describe_tensor(self, handle, type)
        shared.update(shape=self.shape, numel=self.numel)
    self.__dict__.update(shared)
    self.handle, self.type, self.dtype = handle, type, type.scalar


def _find_counterpart(type: core.dtype) -> np.dtype[Any]:
    """numpy's dtype of a type's elements."""
    name = type.scalar.name
    found = _counterparts.get(name)
    if found is None:
        found = _counterparts[name] = _look_up(type)
    return found


def _broadcast(self: TritonSemantic, lhs: core.tensor, rhs: core.tensor) -> tuple[core.tensor, core.tensor]:
    """Return two blocks of the same shape, or two scalars, unchanged."""
    blocks = lhs.type.is_block(), rhs.type.is_block()
    if blocks == (False, False) or (blocks == (True, True) and lhs.type.shape.values == rhs.type.shape.values):
        return lhs, rhs
    return _broadcast_any(self, lhs, rhs)


def _check_overflow(self: TritonSemantic, *operands: Any) -> None:
    """Check for overflow only if the result is used."""
    if self.builder.options.debug:
        _check_any_overflow(self, *operands)
