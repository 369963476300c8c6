"""Whether plans count the bytes that weights take: by platform and weight format, planned and held.

    python benchmarks/weight_memory.py MODEL [--formats none,int8,sym_int4,fp8] [--platforms cpu,xpu,hpu,cuda]

All platforms but the CPU are emulated. *planned* is what ``lsv plan`` says, *held* the bytes of all tensors of the
loaded model, each place in memory once, and *process* what the process has grown by while it loaded.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

FORMATS, PLATFORMS = "none,int8,sym_int4,fp8", "cpu,xpu,hpu,cuda"
_MIB = 1 << 20
_SMALL = ("--max-model-len", "256", "--max-num-batched-tokens", "256", "--max-num-seqs", "4", "--enforce-eager")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--formats", default=FORMATS)
    parser.add_argument("--platforms", default=PLATFORMS)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.model, *given.one)))
        return
    print("| platform | format | planned MiB | held MiB | planned / held | process MiB |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for platform in given.platforms.split(","):
        for name in given.formats.split(","):
            command = [sys.executable, __file__, given.model, "--one", platform, name]
            out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            planned, held, grown = json.loads(out.splitlines()[-1])
            print(
                f"| {platform} | {name} | {planned / _MIB:,.1f} | {held / _MIB:,.1f} | {planned / held:.4f} | "
                f"{grown / _MIB:,.1f} |",
                flush=True,
            )


def measure(model: str, platform: str, name: str) -> tuple[int, int, int]:
    """Bytes of weights planned and held, and by which the process has grown."""
    from lsv.cli.context import CommandContext
    from lsv.resolve import resolve
    from lsv_runtime.worker.load.device import open_device
    from lsv_runtime.worker.load.loaded import load
    from lsv_runtime.worker.load.survey import survey

    arguments = [model, "--platform", platform, *_SMALL, *(() if platform == "cpu" else ("--emulate",))]
    arguments += [] if name == "none" else ["--quantization", name]
    context = CommandContext.open(arguments)
    config, plugins = resolve(context.settings(arguments), context.plugins), context.plugins
    planned = survey(config, plugins.catalog).fit.weight_bytes
    with contextlib.closing(open_device(config, plugins.catalog, rank=0)) as device:
        before = resident()
        loaded = load(config, plugins.catalog, device, None, lambda *done: None)
        return planned, held_bytes(loaded.declared.model), resident() - before


def held_bytes(model: nn.Module) -> int:
    """Bytes of all tensors of a model, each place in memory once: several may be views of one."""
    tensors = [tensor for tensor in (*model.parameters(), *model.buffers()) if not tensor.is_meta]
    places: dict[int, int] = {}
    for tensor in tensors:
        places[tensor.data_ptr()] = max(tensor.nbytes, places.get(tensor.data_ptr(), 0))
    return sum(places.values())


def resident() -> int:
    """Bytes that this process has in memory."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) << 10 if found else 0


if __name__ == "__main__":
    main()
