"""``python -m lsv_xpu.trial AXIS RANKS ADDRESS RANK DEVICE PARENT``: one rank's part in trying the devices' links."""

from __future__ import annotations

import sys

import torch

from lsv_base.errors import ConfigError
from lsv_base.processes.lifeline import die_with
from lsv_runtime.devices.collectives import BackendCommunicator
from lsv_runtime.devices.communicator import Communicator, Group
from lsv_xpu.runtime import TorchXpu

_LARGE = 1 << 20
"""Elements of a large message: libraries send it another way than a small one."""


def main(group: Group, index: int) -> int:
    """0 where every collective gave the right values; else the reason is the last line of stderr."""
    try:
        vendor = TorchXpu()
        vendor.runtime.set_device(index)
        where = vendor.torch_device(index)
        communicator = BackendCommunicator(group, vendor.make_collectives, where)
        check_links(communicator, where)
    except ConfigError as wrong:
        print(wrong.message, file=sys.stderr)
        return 1
    communicator.close()
    return 0


def check_links(communicator: Communicator, device: torch.device) -> None:
    """Every collective on small and on large known values. Raises ``ConfigError`` naming the one that lied, when the
    others have come through all of them, too.
    """
    group = communicator.group
    pattern = torch.arange(_LARGE, dtype=torch.int32, device=device)
    every = communicator.all_gather(pattern * (group.rank + 1), dim=0).view(group.size, -1)
    communicator.self_test()
    for rank in range(group.size):
        if not torch.equal(every[rank], pattern * (rank + 1)):
            wrong = int((every[rank] != pattern * (rank + 1)).sum())
            raise ConfigError(f"all_gather of {4 * _LARGE >> 20} MiB gave {wrong} wrong values from rank {rank}")


if __name__ == "__main__":
    axis, ranks, address, rank, index, parent = sys.argv[1:]
    die_with(int(parent))
    sys.exit(main(Group(axis, tuple(map(int, ranks.split(","))), int(rank), address), int(index)))
