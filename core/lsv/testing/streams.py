"""The streams of a fake runtime: which one is current, and what a capture that fails does to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class FakeStreams:
    """Streams of the current device, as ``torch.cuda`` and ``torch.xpu`` have them."""

    _stream: object = "default stream"

    def current_stream(self) -> object:
        return self._stream

    def set_stream(self, stream: object, /) -> None:
        self._stream = stream

    @contextmanager
    def _side_stream(self) -> Iterator[None]:
        """Where graphs are captured. As in torch 2.13, it stays the current one where the capture does not end well."""
        before, self._stream = self._stream, "side stream"
        yield
        self._stream = before
