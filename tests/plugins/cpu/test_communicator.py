"""Collectives between real processes."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

RANK = """
import sys, torch
from lsv_runtime.devices.communicator import Group
from lsv_cpu.platform import CpuPlatform

rank, size = int(sys.argv[1]), int(sys.argv[2])
device = CpuPlatform().open(0, {"cpu.threads": 2})


def check(address, kind):
    group = device.communicator(Group("tp", tuple(range(size)), rank, address))
    assert type(group).__name__ == kind
    group.self_test()

    draw = torch.Generator().manual_seed(0)
    for dtype in (torch.bfloat16, torch.float32, torch.float16, torch.int64):
        for shape in ((1, 7), (3, 2048), (517, 1031)):
            parts = (torch.randn(size, *shape, generator=draw) * 10).to(dtype)
            wide = parts.float() if dtype.is_floating_point else parts
            total = wide[0]
            for part in wide[1:]:
                total = total + part
            assert torch.equal(group.all_reduce(parts[rank]), total.to(dtype)), (dtype, shape)
            assert torch.equal(group.all_gather(parts[rank], dim=0), parts.flatten(0, 1)), (dtype, shape)

    values = torch.tensor([1.0, 256.0, -256.0], dtype=torch.bfloat16)  # in bfloat16, 1 + 256 is 256
    ordered = group.all_reduce(values[rank].repeat(2, 3))
    assert ordered.dtype == torch.bfloat16 and torch.equal(ordered, torch.ones(2, 3, dtype=torch.bfloat16)), ordered

    x = torch.full((2, 1), rank, dtype=torch.int64)
    assert torch.equal(group.all_gather(x), torch.arange(size).repeat(2, 1))
    assert torch.equal(group.all_gather(x, dim=0), torch.arange(size).repeat_interleave(2)[:, None])
    assert torch.equal(group.broadcast(x, source=1), torch.ones(2, 1, dtype=torch.int64))
    assert (x == rank).all(), "broadcast changed its argument"

    tried = torch.empty(2, 3, device="meta")
    assert (group.all_reduce(tried).shape, group.all_gather(tried).shape) == ((2, 3), (2, 3 * size))

    group.all_reduce = lambda x: x
    try:
        group.self_test()
    except Exception as lie:
        assert "all_reduce of the tp group gave" in str(lie), lie
    else:
        raise SystemExit("the self test believes a collective that lies")
    group.close()
    print("done", kind)


for given in zip(sys.argv[3::2], sys.argv[4::2]):
    check(*given)
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """The lines of three ranks that meet twice: at a port, then over a file."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = f"127.0.0.1:{probe.getsockname()[1]}"
    meetings = [port, "BackendCommunicator", str(tmp_path_factory.mktemp("ranks") / "rendezvous"), "SharedCommunicator"]
    script = f"import sys; sys.path[:0] = {[path for path in sys.path if path]!r}\n{RANK}"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(rank), "3", *meetings],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(3)
    ]  # fmt: skip
    return [rank.communicate(timeout=120)[0].splitlines() for rank in ranks]


def test_three_ranks_share_memory(said: list[list[str]]) -> None:
    assert all("done SharedCommunicator" in lines for lines in said), said


def test_three_ranks_meet_at_a_port(said: list[list[str]]) -> None:
    assert all("done BackendCommunicator" in lines for lines in said), said
