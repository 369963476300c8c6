"""What a capturing device does with a step, on host tensors: it remembers the operations and does them again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from lsv_runtime.devices.collectives import BackendCommunicator

Method = tuple[type, str]
"""A class and the name of a method that computes outside torch, such as the launch of a kernel."""

_COLLECTIVES: tuple[Method, ...] = tuple(
    (BackendCommunicator, name) for name in ("all_reduce", "all_gather", "broadcast")
)
_HOST_READS = (Tensor.tolist, Tensor.numpy, Tensor.cpu, Tensor.item)
_INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
_MASKS = (torch.bool, torch.uint8)


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode hidden from torch's compiler, because torch would otherwise import it, which takes a second."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch lets its compiler skip ``__torch_dispatch__``, for which it imports the compiler."""
        return False


class CaptureError(RuntimeError):
    """Something that a device can't do while it captures, or not without having the host wait for it."""


class Recording:
    """``with recording.capture():`` carries out a step and remembers it; ``replay`` does it again on the same memory.

    While it captures, what a device could not put into a graph raises ``CaptureError``: reading a value on the host,
    results whose shape depends on values, tensors made of host values. Collectives are remembered as a whole, and so
    are the methods ``outside``, which compute without torch.
    """

    def __init__(self, outside: Sequence[Method] = ()) -> None:
        self._outside = (*_COLLECTIVES, *outside)
        self._steps: list[Callable[[], object]] = []

    def __len__(self) -> int:
        return len(self._steps)

    @contextmanager
    def capture(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name in self._outside:
                stack.enter_context(self._watched(owner, name))
            stack.enter_context(_HostReads())
            stack.enter_context(_Operations(self))
            yield

    @torch.inference_mode()
    def replay(self) -> None:
        for step in self._steps:
            step()

    def add(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Remember a torch operation that has given ``result``; what only looks at its inputs needs no repeating."""
        inputs = {tensor.untyped_storage()._cdata for tensor in _tensors((args, kwargs))}
        fresh = [tensor.untyped_storage()._cdata not in inputs for tensor in _tensors(result)]
        if not any(fresh) and not operation._schema.is_mutable:
            return

        def again() -> None:
            for old, new, own in zip(_tensors(result), _tensors(operation(*args, **kwargs)), fresh, strict=True):
                if own:
                    old.copy_(new)

        self._steps.append(again)

    def add_call(self, call: Callable[[], Any], result: Any) -> None:
        """Remember a computation outside torch that has given ``result``."""

        def again() -> None:
            for old, new in zip(_tensors(result), _tensors(call()), strict=True):
                old.copy_(new)

        self._steps.append(again)

    @contextmanager
    def _watched(self, owner: type, name: str) -> Iterator[None]:
        plain = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            with _disable_current_modes(), torch._C.DisableTorchFunction():
                result = plain(*args, **kwargs)
            self.add_call(lambda: plain(*args, **kwargs), result)
            return result

        setattr(owner, name, watched)
        try:
            yield
        finally:
            setattr(owner, name, plain)


@contextmanager
def without_waiting() -> Iterator[None]:
    """Raises ``CaptureError`` where the host would wait for a device: reading values, or shapes that hang on them."""
    with _HostReads(), _Unread():  # type: ignore[no-untyped-call]
        yield


class _Unread(DispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operations that hand values to the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        _refuse_host_reads(func, args)
        return func(*args, **(kwargs or {}))


class _Operations(DispatchMode):  # type: ignore[no-untyped-call]
    """Carries out and remembers the operations that others are composed of."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recording = recording

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        _refuse_host_reads(func, args)
        if func is torch.ops.aten.lift_fresh.default and args[0].ndim:
            raise CaptureError("a tensor is made of host values, whose copy to the device can't be captured")
        with self:
            composed = func.decompose(*args, **kwargs)
        if composed is not NotImplemented:
            return composed
        result = func(*args, **kwargs)
        self._recording.add(func, args, kwargs, result)
        return result


class _HostReads(TorchFunctionMode):
    """Refuses the methods of a tensor that hand its values to the host without an operation of torch."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _HOST_READS:
            raise CaptureError(f"Tensor.{func.__name__} reads a value on the host, which can't be captured")
        return func(*args, **(kwargs or {}))


def _refuse_host_reads(func: Any, args: Any) -> None:
    if torch.Tag.data_dependent_output in func.tags:
        raise CaptureError(f"{func} reads a value on the host, which can't be captured")
    if func._schema.name in _INDEXING:
        if any(index.dtype in _MASKS for index in _tensors(args[1])):
            raise CaptureError(f"{func} with a mask counts on the host what the mask lets through: use torch.where")
    elif torch.Tag.dynamic_output_shape in func.tags:
        raise CaptureError(f"the shape that {func} gives depends on values, which can't be captured")


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
