"""A checkpoint whose text is right, and what a run with it finds."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lsv import LLM
from lsv.config import EngineConfig
from lsv.plugins.catalog import Catalog
from lsv_doctor.models.orders import Cell, Order
from lsv_doctor.models.prompts import ENCODED, draw
from lsv_doctor.models.reference import Reference

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Finding(NamedTuple):
    """A cell, and the reason where it is not ``yes``."""

    cell: Cell
    why: str = ""


class Unable(Exception):
    """The check has no means to try the column on this class; the message says which is missing."""


@dataclass
class Subject:
    """A tiny checkpoint in ``folder``, with transformers' model of it."""

    order: Order
    folder: Path
    model: PreTrainedModel
    asked: PreTrainedModel
    """The module that answers texts: the model itself or, of some wrappers, the language model inside."""
    reference: Reference
    encodes: bool
    stops: frozenset[int]
    """The tokens that the reference takes for padding, or for places of media."""
    config: EngineConfig = field(init=False)
    """The engine's configuration when the text was compared."""
    catalog: Catalog = field(init=False)

    @property
    def read(self) -> list[int]:
        """What the encoder reads; empty without one."""
        return draw(ENCODED[0], 99) if self.encodes else []

    @property
    def inputs(self) -> tuple[str, ...]:
        """What the class takes, in transformers' words: ``text``, ``image``, ``audio``, ``video``.

        A class of a text half has the words of the whole, but no configuration of a tower.
        """
        whole = json.dumps(self.model.config.to_dict(), default=str)
        if not self.order.wraps and "vision_config" not in whole and "audio_config" not in whole:
            return ("text",)
        found: Any = getattr(self.model, "input_modalities", None) or ("text",)
        return (found,) if isinstance(found, str) else tuple(found)

    def open(self, **options: Any) -> LLM:
        """The checkpoint in an engine with more options, or others."""
        usual = {
            "skip_tokenizer_init": True, "dtype": "float32", "max_model_len": 128, "max_logprobs": -1,
            "num_gpu_blocks_override": 144,
        }  # fmt: skip
        return LLM(str(self.folder), **{**usual, **options})
