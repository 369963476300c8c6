"""Checks classes, one after another: ``python -m lsv_doctor.models.checker FD PARENT`` takes orders, gives verdicts."""

from __future__ import annotations

import logging
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import msgspec
import torch
import transformers

from lsv_base.processes.lifeline import connect
from lsv_doctor.models.check import check
from lsv_doctor.models.orders import Order


def main(descriptor: int, parent: int) -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    output: Any = transformers.logging
    output.set_verbosity_error()
    output.disable_progress_bar()
    torch.set_num_threads(1)
    channel = connect(descriptor, parent, Order)
    while True:
        try:
            order: Order = channel.receive()
        except EOFError:
            return
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="lsv-check-") as folder:
            verdict = check(order, Path(folder))
        channel.send(msgspec.structs.replace(verdict, seconds=round(time.monotonic() - began, 1)))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
