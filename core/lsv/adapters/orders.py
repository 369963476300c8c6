"""Orders to workers about adapters."""

from __future__ import annotations

from lsv_base.processes.orders import WorkerOrder


class ReadAdapter(WorkerOrder, frozen=True):
    """Read an adapter into host memory. Workers raise ``NotYet`` until a thread of theirs has read it."""

    id: int

    path: str
    """The adapter's folder."""

    digest: str
    """The hash of the adapter's files, in hexadecimal digits; other files are refused."""


class DropAdapter(WorkerOrder, frozen=True):
    """Forget an adapter."""

    id: int
