"""Sums between ranks: their bits, how many bytes a rank receives for them, and how much work they are for a device."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lsv_runtime.devices.collectives import SERVED, BackendCommunicator, open_store, serve_store
from lsv_runtime.devices.communicator import Group
from lsv_runtime.devices.rank_sum import RankSum
from lsv_runtime.ops import Kernel

VIEWS = {"aten::view", "aten::slice", "aten::select", "aten::unbind", "aten::empty", "aten::empty_like",
         "aten::new_empty", "aten::_unsafe_view", "aten::view.dtype", "aten::detach", "aten::alias"}  # fmt: skip
"""What gives a device no work."""


class Wires:
    """Connects ranks that are threads of this process; ``received`` bytes and ``calls`` of the first one."""

    def __init__(self, size: int) -> None:
        self.size, self.received, self.calls = size, 0, 0
        self._barrier, self._given = threading.Barrier(size, timeout=60), [torch.empty(0)] * size

    def connect(self, store: Any, rank: int, size: int, timeout: object) -> Backend:
        return Backend(self, rank)

    def exchange(self, rank: int, mine: torch.Tensor) -> list[torch.Tensor]:
        self._given[rank] = mine
        self._barrier.wait()
        every = list(self._given)
        self._barrier.wait()
        return every


class Backend:
    """What ``BackendCommunicator`` calls of a process group of torch."""

    def __init__(self, wires: Wires, rank: int) -> None:
        self._wires, self._rank = wires, rank

    def _allgather_base(self, output: torch.Tensor, given: torch.Tensor) -> SimpleNamespace:
        assert output.numel() == self._wires.size * given.numel()
        assert output.dtype == given.dtype
        return self._done(output, self._wires.exchange(self._rank, given))

    def alltoall_base(
        self, output: torch.Tensor, given: torch.Tensor, output_sizes: list[int], input_sizes: list[int]
    ) -> SimpleNamespace:
        assert output.shape == given.shape
        assert given.numel() % self._wires.size == 0
        every = self._wires.exchange(self._rank, given)
        return self._done(output, [one.view(self._wires.size, -1)[self._rank] for one in every])

    def _done(self, output: torch.Tensor, parts: list[torch.Tensor]) -> SimpleNamespace:
        if self._rank == 0:
            self._wires.calls += 1
            self._wires.received += sum(part.nbytes for part in parts[1:])
        with torch.utils._python_dispatch._disable_current_modes():
            output.copy_(torch.cat(parts))
        return SimpleNamespace(wait=lambda: None)


class Work(TorchDispatchMode):
    """The operations that a device carries out."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name not in VIEWS:
            self.done.append(func._schema.name)
        return func(*args, **(kwargs or {}))


class OneLaunch(Kernel):
    """A kernel for the sum; counted as one operation."""

    def __init__(self, module: RankSum, work: Callable[[], Work | None]) -> None:
        self._module, self._work = module, work

    def forward(self, parts: torch.Tensor) -> torch.Tensor:
        with torch.utils._python_dispatch._disable_current_modes():
            total = self._module.reference(parts)
        work = self._work()
        if work is not None:
            work.done.append("sum")
        return total


def run(wires: Wires, path: Path, job: Callable[[BackendCommunicator, int], Any]) -> list[Any]:
    """What ``job`` answers on every rank."""

    def one(rank: int) -> Any:
        group = Group("tp", tuple(range(wires.size)), rank, str(path / "store"))
        return job(BackendCommunicator(group, wires.connect, torch.device("cpu")), rank)

    with ThreadPoolExecutor(wires.size) as ranks:
        return list(ranks.map(one, range(wires.size)))


def parts(ranks: int, shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [(torch.randn(shape, generator=generator) * 10).to(dtype) for _ in range(ranks)]


def in_order(every: list[torch.Tensor]) -> torch.Tensor:
    total = every[0].float()
    for part in every[1:]:
        total = total + part
    return total.to(every[0].dtype)


@pytest.mark.parametrize("shape", [(3, 5), (1, 4096), (517, 1031)])
@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_sum_is_made_in_rank_order(dtype: torch.dtype, ranks: int, shape: tuple[int, ...], tmp_path: Path) -> None:
    every = parts(ranks, shape, dtype)
    found = run(Wires(ranks), tmp_path, lambda tp, rank: tp.all_reduce(every[rank]))
    for sums in found:
        assert torch.equal(sums, in_order(every))


def test_whole_numbers_are_summed(tmp_path: Path) -> None:
    found = run(Wires(3), tmp_path, lambda tp, rank: tp.all_reduce(torch.tensor([1 << 40, rank])))
    assert [sums.tolist() for sums in found] == [[3 << 40, 3]] * 3


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_parts_are_joined_along_any_dimension(dim: int, tmp_path: Path) -> None:
    every = parts(3, (2, 5, 4), torch.float16)
    found = run(Wires(3), tmp_path, lambda tp, rank: tp.all_gather(every[rank], dim))
    for joined in found:
        assert torch.equal(joined, torch.cat(every, dim))


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_bytes_received_for_a_prompt(ranks: int, tmp_path: Path) -> None:
    """Of two ranks each needs all of the other's part; of more, a share of every part and of the sums is enough."""
    wires, every = Wires(ranks), parts(ranks, (1024, 4096), torch.bfloat16)
    run(wires, tmp_path, lambda tp, rank: tp.all_reduce(every[rank]))
    assert wires.received == 2 * (ranks - 1) * every[0].nbytes // ranks
    assert wires.calls == (1 if ranks == 2 else 2)


@pytest.mark.parametrize(("shape", "calls"), [((256, 4096), 2), ((16, 4096), 1)])
def test_operations_of_a_sum(shape: tuple[int, ...], calls: int, tmp_path: Path) -> None:
    """One or two collectives and, with a kernel for it, one launch for the sum of any number of ranks."""
    wires, every = Wires(8), parts(8, shape, torch.bfloat16)
    plain, fused = Work(), Work()

    def job(tp: BackendCommunicator, rank: int) -> torch.Tensor:
        if rank == 0:
            with plain:
                tp.all_reduce(every[rank])
        else:
            tp.all_reduce(every[rank])
        (op,) = tp.ops
        assert isinstance(op, RankSum)
        op.use(OneLaunch(op, lambda: fused if rank == 0 else None))
        if rank == 0:
            with fused:
                return tp.all_reduce(every[rank])
        return tp.all_reduce(every[rank])

    run(wires, tmp_path, job)
    assert wires.calls == 2 * calls
    assert fused.done == ["sum"]
    assert plain.done == ["aten::_to_copy", *["aten::add_"] * 7, "aten::_to_copy"]


def test_a_store_is_reached_at_its_address_alone() -> None:
    held, address = serve_store("127.0.0.1")
    theirs = open_store(Group("tp", (0, 1), 1, address))
    open_store(Group("tp", (0, 1), 0, address)).set("from", "rank 0")
    assert theirs.get("from") == b"rank 0"
    port = int(address.rpartition(":")[2])
    assert address == f"{SERVED}127.0.0.1:{port}"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), 5)
    del held
