"""What ``lsv bench offline`` puts into actors: an engine, made once and given batch after batch."""

from __future__ import annotations

import time

import msgspec

from lsv import LLM
from lsv.cli.context import CommandContext
from lsv_bench.commands.settings import BATCHES
from lsv_bench.datasets import Sample
from lsv_bench.offline import answer_batch
from lsv_bench.ray_data import Batch, columns


class Answerer:
    """``arguments`` are those of ``lsv bench offline``, which are the engine's, too."""

    def __init__(self, arguments: list[str]) -> None:
        context = CommandContext.open(arguments)
        self._llm = LLM.from_settings(context.settings(arguments, scope="engine", extra=BATCHES), context.plugins)

    def __call__(self, batch: Batch) -> Batch:
        samples = [msgspec.json.decode(text, type=Sample) for text in batch["sample"]]
        began = time.time()
        answers = answer_batch(self._llm, samples)
        return columns(answers, began, time.time())
