"""Collectives between real processes."""

from __future__ import annotations

import socket
import subprocess
import sys

RANK = """
import sys, torch
from lsv.platform import Group
from lsv_cpu.platform import CpuPlatform

rank, size, port = map(int, sys.argv[1:])
device = CpuPlatform().open(0, {"cpu.threads": 1})
group = device.communicator(Group("tp", tuple(range(size)), rank, f"127.0.0.1:{port}"))
group.self_test()

values = torch.tensor([1.0, 256.0, -256.0], dtype=torch.bfloat16)  # in bfloat16, 1 + 256 is 256
ordered = group.all_reduce(values[rank].repeat(2, 3))
assert ordered.dtype == torch.bfloat16 and torch.equal(ordered, torch.ones(2, 3, dtype=torch.bfloat16)), ordered

x = torch.full((2, 1), rank, dtype=torch.int64)
assert torch.equal(group.all_gather(x), torch.arange(size).repeat(2, 1))
assert torch.equal(group.all_gather(x, dim=0), torch.arange(size).repeat_interleave(2)[:, None])
assert torch.equal(group.broadcast(x, source=1), torch.ones(2, 1, dtype=torch.int64))
assert (x == rank).all(), "broadcast changed its argument"

group.all_reduce = lambda x: x
try:
    group.self_test()
except Exception as lie:
    assert "all_reduce of the tp group gave" in str(lie), lie
else:
    raise SystemExit("the self test believes a collective that lies")
group.close()
print("done")
"""


def test_three_ranks() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = f"import sys; sys.path[:0] = {[path for path in sys.path if path]!r}\n{RANK}"
    command = [sys.executable, "-c", script]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), "3", str(port)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rank in range(3)
    ]
    said = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [text.split()[-1:] for text in said] == [["done"]] * 3, said
