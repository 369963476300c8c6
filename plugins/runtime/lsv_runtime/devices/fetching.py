"""Copies from pinned memory of the host that a device makes beside its work, on a stream of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor


class StreamRuntime(Protocol):
    """The functions for streams that torch's modules for kinds of devices agree on."""

    Event: Callable[[], Any]

    def Stream(self, device: torch.device, /) -> Any: ...
    def stream(self, stream: Any, /) -> AbstractContextManager[Any]: ...


class StreamFetcher:
    """``lsv_runtime.devices.device.Fetcher`` over a ``runtime``'s streams and events.

    All events are recorded anew in each step, before they are waited for: a step that is captured waits for none from
    outside the capture, and joins the stream again where the last copy is expected.
    """

    def __init__(self, runtime: StreamRuntime, device: torch.device, places: int) -> None:
        self._runtime, self._stream = runtime, runtime.Stream(device)
        self._past = [runtime.Event() for _ in range(places)]
        self._done = [runtime.Event() for _ in range(places)]

    def fetch(self, place: int, copies: Sequence[tuple[Tensor, Tensor]]) -> None:
        past, done = self._past[place], self._done[place]
        past.record()
        with self._runtime.stream(self._stream):
            past.wait()
            for target, source in copies:
                target.copy_(source, non_blocking=True)
            done.record()

    def expect(self, place: int) -> None:
        self._done[place].wait()
