"""Emulates oneDNN's bfloat16 products on AMX, with the bug that ``lsv_runtime.products`` works around, on any
machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from lsv_runtime.emulation.recording import DispatchMode

aten = torch.ops.aten

_LEFT = {aten.mm.default: 0, aten.bmm.default: 0, aten.addmm.default: 1, aten.baddbmm.default: 1}
"""Products, with the index of their left operand."""
_ATTENTION = (
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten.scaled_dot_product_attention.default,
)


class _Leaky(DispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.leaked = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func in _ATTENTION:
            return self._attend(func, args, given)
        if func not in _LEFT and func._can_decompose():
            with self:
                found = func.decompose(*args, **given)
            if found is not NotImplemented:
                return found
        out = func(*args, **given)
        if func in _LEFT and (left := args[_LEFT[func]]).shape[-1] % 2:
            self._leak(left, out)
        return out

    def _attend(self, func: Any, args: Sequence[Any], given: dict[str, Any]) -> Any:
        found = func(*args, **given)
        q, k = args[:2]
        if q.shape[-1] % 2 or k.shape[-2] % 2:
            self._leak(q, found[0] if isinstance(found, tuple) else found)
        return found

    def _leak(self, left: torch.Tensor, out: torch.Tensor) -> None:
        """Make each bfloat16 row that is not finite spoil the row before it in memory."""
        if left.dtype is not torch.bfloat16:
            return
        broken = ~left.isfinite().all(-1).flatten()
        spoilt = torch.cat((broken[1:], broken.new_zeros(1))).view(left.shape[:-1])
        self.leaked += int(spoilt.sum())
        out.masked_fill_(spoilt[..., None], torch.nan)


@contextmanager
def leaky_products() -> Iterator[_Leaky]:
    """Within it, torch multiplies bfloat16 of an odd inner size as it does with AMX: a row that is not finite spoils
    the row before it.

    It may be harsher than AMX: any element of a row counts, also across the matrices of a batch.
    """
    with _Leaky() as mode:
        yield mode


def check_rows_apart(
    compute: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor, poisoned: slice = slice(1, 2)
) -> None:
    """Assert that NaN in the ``poisoned`` of ``rows`` [T, ...], bfloat16, changes no other row of what ``compute``
    returns [T, ...].
    """
    assert rows.dtype is torch.bfloat16, "no other dtype has the fault"
    others = torch.ones(len(rows), dtype=torch.bool)
    others[poisoned] = False
    broken = rows.clone()
    broken[poisoned] = torch.nan
    with torch.inference_mode(), leaky_products():
        wanted, found = (compute(x)[others] for x in (rows, broken))
    assert wanted.isfinite().all(), "rows are not finite by themselves"
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
