"""``lsv-demo``: the model that is served when none is named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lsv import hookimpl
from lsv.offers import ModelAlias, ModelOffer, ProcessorOffer

api = 2

ARCHITECTURE = "LsvDemoForConditionalGeneration"


def locate() -> str:
    return str(Path(__file__).parent / "checkpoint")


def locate_pirate() -> str:
    return str(Path(__file__).parent / "pirate")


def locate_speculator() -> str:
    return str(Path(__file__).parent / "speculator")


def held_out(questions: int, seed: int) -> tuple[Sequence[Mapping[str, Any]], str]:
    """That many questions that were not trained on, and a text of as many conversations."""
    from lsv_demo.held_out import draw

    return draw(questions, seed)


@hookimpl
def lsv_model_aliases() -> Iterable[ModelAlias]:
    yield ModelAlias("lsv-demo", locate, default=True, held_out=held_out, adapters={"pirate": locate_pirate})
    yield ModelAlias("lsv-demo-speculator", locate_speculator)


@hookimpl
def lsv_models() -> Iterable[ModelOffer]:
    yield ModelOffer(
        "lsv-demo", (ARCHITECTURE,), "lsv_demo.model:LsvDemo", ("generate", "embed"),
        modalities=("text", "image", "audio", "video"),
    )  # fmt: skip


@hookimpl
def lsv_processors() -> Iterable[ProcessorOffer]:
    yield ProcessorOffer(
        "lsv-demo", (ARCHITECTURE,), ("image", "audio", "video"),
        load="lsv_demo.processor:DemoProcessor", place="lsv_demo.processor:DemoPlacement",
    )  # fmt: skip
