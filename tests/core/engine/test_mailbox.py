"""Updates that wait for their owner."""

import msgspec

from lsv.engine.mailbox import merge
from lsv.engine.messages import Update
from lsv.request.request import FinishReason


def test_merged_updates_keep_how_they_ended() -> None:
    ends = Update(id=1, tokens=(6,), finish=FinishReason.STOP, complete=True, preemptions=2)
    assert merge([Update(id=1, tokens=(5,)), ends]) == msgspec.structs.replace(ends, tokens=(5, 6))
