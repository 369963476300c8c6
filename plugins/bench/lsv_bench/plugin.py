"""Manifest: commands that measure an engine or a server, and those that talk to one."""

from __future__ import annotations

from collections.abc import Iterable

from lsv import hookimpl
from lsv.offers import CommandOffer

api = 2


@hookimpl
def lsv_commands() -> Iterable[CommandOffer]:
    yield CommandOffer("chat", "lsv_bench.commands.chat:run", "talk to a running server")
    yield CommandOffer("complete", "lsv_bench.commands.chat:run_complete", "let a running server complete text")
    yield CommandOffer("bench", "lsv_bench.commands:run", "measure latency, throughput or a server")
    yield CommandOffer("trace", "lsv_bench.commands.trace:run", "show what a few requests do, step by step")
    yield CommandOffer(
        "eval", "lsv_bench.commands.eval:run", "measure quality, of one weight format or of several side by side"
    )
