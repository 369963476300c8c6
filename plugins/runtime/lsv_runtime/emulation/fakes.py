"""Standing in for a vendor's library: a fake that knows its calls, remembers them, and refuses all others."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lsv_runtime.emulation.streams import FakeStream, FakeStreams

if TYPE_CHECKING:
    import torch

    from lsv_runtime.emulation.placement.device import Placement
    from lsv_runtime.emulation.recording import Method


class UnknownCall(Exception):
    """A platform called something that its vendor's library does not have, or that the fake does not know."""


class StrictFake:
    """Base of fakes: public methods of a subclass are the calls it answers.

    ``calls`` counts them by name, ``log`` has them in order with their arguments. A call that the subclass does not
    have raises ``UnknownCall``, so that a platform proved against it uses nothing that is not there. With ``computes``
    they are kernels of the device: they take its tensors, and none of the host (``lsv_runtime.emulation.placement``).
    """

    library: str = "the vendor's library"
    computes: bool = False

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if cls.computes:
            from lsv_runtime.emulation.placement.device import as_kernel

            for name, call in vars(cls).items():
                if inspect.isfunction(call) and not name.startswith("_"):
                    setattr(cls, name, as_kernel(call))

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.log: list[tuple[str, tuple[Any, ...]]] = []

    def record(self, name: str, *arguments: Any) -> None:
        """Remember a call; methods of a subclass begin with it."""
        self.calls[name] += 1
        self.log.append((name, arguments))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnknownCall(f"the fake of {self.library} has no {name}")


def emulated_device(index: int) -> torch.device:
    """Where tensors of emulated device ``index`` lie; the host where they can't be placed."""
    import torch

    placed = _placement()
    return torch.device("cpu") if placed is None else placed.torch_device(index)


class FakeRuntime(StrictFake):
    """Answers what ``lsv_runtime.devices.accelerator.Runtime`` asks, for one process with one current device of
    ``count``.

    Each has ``total`` bytes, of which tensors of ``emulated_device`` take some; a subclass may say what else does, by
    ``_taken``. Where tensors can't be placed (``lsv_runtime.emulation.placement``), that device is the host and they
    take none.
    """

    def __init__(self, count: int, total: int) -> None:
        super().__init__()
        self._count, self._total = count, total
        self._device: int | None = None
        self._taken = 0

    def device_count(self) -> int:
        self.record("device_count")
        return self._count

    def set_device(self, index: int, /) -> None:
        self._check("set_device", index)
        self._device = index
        if placed := _placement():
            placed.set_device(index)

    def mem_get_info(self, index: int, /) -> tuple[int, int]:
        self._check("mem_get_info", index)
        return max(0, self._total - self._taken - self._held(index)), self._total

    def memory_allocated(self, index: int, /) -> int:
        self._check("memory_allocated", index)
        return self._held(index)

    def memory_reserved(self, index: int, /) -> int:
        self._check("memory_reserved", index)
        return self._held(index)

    def max_memory_allocated(self, index: int, /) -> int:
        self._check("max_memory_allocated", index)
        placed = _placement()
        return 0 if placed is None else placed.peak(index)

    def reset_peak_memory_stats(self, index: int, /) -> None:
        self._check("reset_peak_memory_stats", index)
        if placed := _placement():
            placed.reset_peak(index)

    def empty_cache(self) -> None:
        self._wait("empty_cache")

    def synchronize(self, index: int, /) -> None:
        self._check("synchronize", index)
        self._wait("synchronize")
        if placed := _placement():
            placed.finish()

    def Event(self) -> FakeEvent:
        self.record("Event")
        return FakeEvent(self)

    def _where(self) -> tuple[object, int]:
        """The current stream, and the number of the capture under way, 0 for none."""
        return None, 0

    def _held(self, index: int) -> int:
        placed = _placement()
        return 0 if placed is None else placed.held(index)

    def _check(self, call: str, *indices: int) -> None:
        self.record(call, *indices)
        for index in indices:
            if not 0 <= index < self._count:
                raise RuntimeError(f"{call}: there is no device {index} of {self._count}")

    def _wait(self, call: str) -> None:
        """Record a call that waits for the device."""
        self.record(call)


class FakeCapturing(FakeStreams, FakeRuntime):
    """A runtime that captures graphs.

    While a graph is captured, calls that wait for the device raise ``RuntimeError``, and so does work that can't be
    captured (``lsv_runtime.emulation.recording``).
    """

    def __init__(self, count: int, total: int) -> None:
        super().__init__(count, total)
        self._capturing = False
        self._captures = 0
        self._beside: list[FakeStream] = []
        self._pools: set[int] = set()

    def Stream(self, device: torch.device, /) -> FakeStream:
        self.record("Stream", device.index)
        made = FakeStream()
        self._beside.append(made)
        return made

    @contextmanager
    def stream(self, stream: FakeStream, /) -> Iterator[None]:
        """What is copied inside is given to the stream."""
        self.record("stream")
        with self._on(stream):
            yield

    def synchronize(self, index: int, /) -> None:
        super().synchronize(index)
        for stream in self._beside:
            stream.make()

    @contextmanager
    def graph(self, graph: FakeGraph, /, *, pool: int | None = None) -> Iterator[None]:
        """Captures what is computed inside; a graph holds one capture."""
        self.record("graph", pool)  # the log must not hold what was captured
        if self._device is None:
            raise RuntimeError("a graph is captured before set_device has chosen a device")
        if self._capturing:
            raise RuntimeError("a capture is under way already: one at a time")
        if pool is not None and pool not in self._pools:
            raise RuntimeError(f"{pool!r} is not the pool of any graph")
        if graph.recording is not None:
            raise RuntimeError("this graph has been captured already: make another")
        from lsv_runtime.emulation.recording import Recording

        recording = Recording(outside=self._outside())
        self._capturing = True
        self._captures += 1
        try:
            with self._side_stream(), recording.capture():
                yield
        finally:
            self._capturing = False
        if any(stream.pending for stream in self._beside):
            raise RuntimeError("a stream has joined the capture, and nothing in it waits for the stream's last copy")
        graph.finish(recording, pool)
        self._pools.add(graph.pool())

    def _where(self) -> tuple[object, int]:
        return self._stream, self._captures if self._capturing else 0

    def _outside(self) -> Sequence[Method]:
        """Methods that compute without torch, to be remembered as a whole."""
        return ()

    def _wait(self, call: str) -> None:
        super()._wait(call)
        if self._capturing:
            raise RuntimeError(f"{call}: operation not permitted when stream is capturing")


class FakeEvent:
    """Waiting for an event that was never recorded is an error here, and in a capture one for what was recorded
    outside of it.
    """

    def __init__(self, runtime: FakeRuntime) -> None:
        self._runtime, self._recorded = runtime, False
        self._mark = self._capture = 0
        self._copies: tuple[FakeStream, int] | None = None

    def record(self) -> None:
        self._runtime.record("Event.record")
        self._recorded = True
        stream, self._capture = self._runtime._where()
        self._copies = (stream, stream.given) if isinstance(stream, FakeStream) else None
        if placed := _placement():
            self._mark = placed.mark()

    def wait(self) -> None:
        """Have the current stream wait."""
        self._runtime.record("Event.wait")
        self._check()
        _, capture = self._runtime._where()
        if capture and self._capture != capture:
            raise RuntimeError("what is captured waits for an event from outside the capture")
        if self._copies is not None:
            stream, given = self._copies
            stream.make(given)

    def _check(self) -> None:
        if not self._recorded:
            raise RuntimeError("an event is waited for that was never recorded")

    def synchronize(self) -> None:
        self._runtime._wait("Event.synchronize")
        self._check()
        if placed := _placement():
            placed.finish(self._mark)


def _placement() -> Placement | None:
    from lsv_runtime.emulation.placement.device import placement

    return placement()


class FakeGraph:
    """Replays by carrying out again what was captured, on the same memory and nothing else."""

    def __init__(self, runtime: FakeCapturing) -> None:
        self._runtime = runtime
        self._pool: int | None = None
        self.recording: Any = None

    def finish(self, recording: Any, pool: int | None) -> None:
        """What was captured, and the pool it shares; None for one of its own."""
        self.recording, self._pool = recording, id(self) if pool is None else pool

    def pool(self) -> int:
        if self._pool is None:
            raise RuntimeError("a graph has no pool before it is captured")
        return self._pool

    def replay(self) -> None:
        self._runtime.record("Graph.replay")
        if self.recording is None:
            raise RuntimeError("a graph is replayed that was never captured")
        if self._runtime._capturing:
            raise RuntimeError("a graph is replayed inside a capture")
        self.recording.replay()
