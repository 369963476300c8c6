"""What fakes of vendors' libraries look at in the arguments they get."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class BadCall(Exception):
    """A call that the real library would refuse, or would answer with nonsense."""


def require(holds: bool, what: str) -> None:
    if not holds:
        raise BadCall(what)


def check_tensor(
    name: str,
    x: torch.Tensor,
    dtypes: Sequence[torch.dtype],
    shape: Sequence[int | None],
    *,
    dense: bool = True,
) -> None:
    """That ``x`` is of one of the dtypes and of the shape (None for any size) and, where ``dense``, in one piece."""
    require(isinstance(x, torch.Tensor), f"{name} is {type(x).__name__}, not a tensor")
    require(x.dtype in dtypes, f"{name} is {x.dtype}, expected {', '.join(map(str, dtypes))}")
    fits = len(x.shape) == len(shape) and all(want in (None, got) for want, got in zip(shape, x.shape, strict=True))
    require(fits, f"{name} has shape {list(x.shape)}, expected {list(shape)}")
    require(not dense or x.is_contiguous(), f"{name} has strides {x.stride()}: it is not in one piece")


def check_devices(**tensors: torch.Tensor | None) -> None:
    """That all tensors are on one device."""
    found = {name: x.device for name, x in tensors.items() if x is not None}
    require(len(set(found.values())) <= 1, f"tensors on several devices: {found}")


def numbers(x: torch.Tensor) -> list[int]:
    """The values of x [n], read one by one: a capture under emulation refuses to hand over a tensor as a whole."""
    return [int(number) for number in x]
