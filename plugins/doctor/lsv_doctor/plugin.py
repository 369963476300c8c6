"""Manifest: commands that show what is here, what would run, and why."""

from __future__ import annotations

from collections.abc import Iterable

from lsv import hookimpl
from lsv.offers import CommandOffer

api = 2


@hookimpl
def lsv_commands() -> Iterable[CommandOffer]:
    yield CommandOffer("plan", "lsv_doctor.plan:run", "show what would run, and why, without loading it")
    yield CommandOffer("models", "lsv_doctor.models.command:run", "list model architectures")
    yield CommandOffer("kernels", "lsv_doctor.kernels:run", "show which kernel serves each op, and why")
    yield CommandOffer("doctor", "lsv_doctor.command:run", "look over this machine and installation")
