"""The manifest of the offline API: ``LLM`` and its kin, and the command that answers without a server."""

from __future__ import annotations

from collections.abc import Iterable

from lsv.hooks import hookimpl
from lsv.offers import CommandOffer, LogitsProcessorOffer
from lsv.plugins.logits_processors import BATCHED
from lsv.request.params import CALLABLES

api = 2


@hookimpl
def lsv_commands() -> Iterable[CommandOffer]:
    yield CommandOffer("run", "lsv_offline.run:run", "answer in this process, without a server")


@hookimpl
def lsv_logits_processors() -> Iterable[LogitsProcessorOffer]:
    yield LogitsProcessorOffer(
        BATCHED, "lsv_offline.batched.adapter:Batched", arguments="lsv.request.params:SamplingParams"
    )
    yield LogitsProcessorOffer(CALLABLES, "lsv_offline.batched.callables:Callables")
