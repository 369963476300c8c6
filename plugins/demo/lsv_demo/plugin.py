"""``lsv-demo``: the model that is served when none is named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lsv import hookimpl
from lsv.offers import ModelAlias

api = 1


def locate() -> str:
    return str(Path(__file__).parent / "checkpoint")


def held_out(questions: int, seed: int) -> tuple[Sequence[Mapping[str, Any]], str]:
    """So many questions that were not trained on, and a text of as many conversations."""
    from lsv_demo import held_out

    return held_out.questions(questions, seed), held_out.text(questions, seed)


@hookimpl
def lsv_model_aliases() -> Iterable[ModelAlias]:
    yield ModelAlias("lsv-demo", locate, default=True, held_out=held_out)
