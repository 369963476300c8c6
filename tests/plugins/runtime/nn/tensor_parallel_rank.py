"""One of several gloo ranks: runs checkpoints over its share of the weights and saves the logits.

Arguments: rank, size, folder. The folder holds checkpoints ``<case>/<offer>``; results go to ``<case>.<rank>``.
"""

import sys
from pathlib import Path

import torch

from lsv_models import plugin
from lsv_runtime.devices.collectives import BackendCommunicator, gloo
from lsv_runtime.devices.communicator import Group
from lsv_runtime.worker.load.declared import declare
from lsv_runtime.worker.load.loaded import fill, open_source
from lsv_testing.catalog import catalog_of
from lsv_testing.model import Sequences, engine_config


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
    group = Group("tp", tuple(range(size)), rank, str(folder / "meeting"))
    communicator = BackendCommunicator(group, gloo, torch.device("cpu"))
    for checkpoint in sorted(folder.glob("*/*")):
        torch.save(run(checkpoint, communicator), f"{checkpoint.parent}.{rank}")
    communicator.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
