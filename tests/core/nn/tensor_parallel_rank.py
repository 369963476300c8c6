"""One of several gloo ranks: runs checkpoints over its share of the weights and saves the logits.

Arguments: rank, size, folder. The folder holds checkpoints ``<case>/<offer>``; results go to ``<case>.<rank>``.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from lsv.platform import Communicator, Group
from lsv.testing.catalog import catalog_of
from lsv.testing.model import Sequences, engine_config
from lsv.worker.load.declared import declare
from lsv.worker.load.loaded import fill, open_source
from lsv_models import plugin


class Gloo(Communicator):
    def __init__(self, rank, size):
        self.group = Group("tp", tuple(range(size)), rank, "")

    def gather(self, x):
        parts = [torch.empty_like(x) for _ in self.group.ranks]
        dist.all_gather(parts, x.contiguous())
        return parts

    def all_reduce(self, x):
        return sum(self.gather(x))

    def all_gather(self, x, dim=-1):
        return torch.cat(self.gather(x), dim)

    def broadcast(self, x, source=0):
        dist.broadcast(x, source)
        return x

    def self_test(self):
        assert self.all_reduce(torch.ones(1)) == self.group.size


def make_sequences(declared):
    """Two sequences, and what they attend to if the model attends across."""
    sequences = Sequences(declared)
    sequences.add(0, range(20))
    sequences.add(1, range(50, 57))
    if any(group.cross_len is not None for group in declared.groups):
        items = torch.randn(2, 9, 64, generator=torch.Generator().manual_seed(0))
        sequences.attend_to(0, items[0])
        sequences.attend_to(1, items[1, :5])
    return sequences


def run(checkpoint, communicator):
    """The logits of two sequences in two steps, and the bytes of this rank's weights."""
    config, catalog = engine_config(checkpoint, checkpoint.name), catalog_of(plugin)
    declared = declare(config, catalog, communicator=communicator)
    fill(declared, open_source(config, declared, catalog))
    sequences = make_sequences(declared)
    logits = [*sequences.step([(0, 12), (1, 7)]), *sequences.step([(0, 8)])]
    return {"logits": torch.cat(logits), "bytes": declared.weight_bytes}


def main(rank, size, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    for checkpoint in sorted(folder.glob("*/*")):
        torch.save(run(checkpoint, Gloo(rank, size)), f"{checkpoint.parent}.{rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
