"""The streams of a fake runtime: which one is current, what a capture that fails does to it, and copies beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class FakeStream:
    """Copies that are given to it are made when somebody waits for them; until then there is garbage in their place."""

    def __init__(self) -> None:
        self.given = 0
        """How many copies have been asked for."""
        self._pending: list[tuple[Tensor, Tensor]] = []

    @property
    def pending(self) -> int:
        """How many of them nobody has waited for."""
        return len(self._pending)

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Of bytes. Raises ``RuntimeError`` where the device would have the host wait."""
        if not source.is_pinned():
            raise RuntimeError("a copy beside other work is asked for from memory that is not pinned")
        target.fill_(255)  # which is no number in any type of floats
        self.given += 1
        self._pending.append((target, source))

    def make(self, number: int | None = None) -> None:
        """Make the copies up to that number, or all."""
        import torch

        while self._pending and (number is None or self.given - len(self._pending) < number):
            target, source = self._pending.pop(0)
            with torch.inference_mode():
                target.copy_(source, non_blocking=True)


class FakeStreams:
    """Streams of the current device, as ``torch.cuda`` and ``torch.xpu`` have them."""

    _stream: object = "default stream"

    def current_stream(self) -> object:
        return self._stream

    def set_stream(self, stream: object, /) -> None:
        self._stream = stream

    @contextmanager
    def _on(self, stream: FakeStream) -> Iterator[None]:
        """Give copies to a stream. Raises ``RuntimeError`` for anything else, which it does not know how to put off."""
        import torch

        from lsv_runtime.emulation.recording import DispatchMode

        class Copies(DispatchMode):  # type: ignore[no-untyped-call]
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
                if func is not torch.ops.aten.copy_.default:
                    raise RuntimeError(f"{func} is given to a stream that is for copies")
                stream.copy(args[0], args[1])
                return args[0]

        before, self._stream = self._stream, stream
        try:
            with Copies():  # type: ignore[no-untyped-call]
                yield
        finally:
            self._stream = before

    @contextmanager
    def _side_stream(self) -> Iterator[None]:
        """Where graphs are captured. As in torch 2.13, it stays the current one where the capture does not end well."""
        before, self._stream = self._stream, "side stream"
        yield
        self._stream = before
