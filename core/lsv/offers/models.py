"""Models, and the forms of their weights and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from lsv.config import ModelPart
from lsv.request.media_needs import MediaNeeds
from lsv.request.pooling import PoolingKind


class QuantizerOffer(msgspec.Struct, frozen=True):
    """A weight format."""

    name: str
    load: str
    """A ``lsv_runtime.weights.quantizer.Quantizer``, or what makes one."""
    recognises: Callable[[Mapping[str, Any]], bool] | None = None
    """Whether config.json's ``quantization_config`` is of this format."""
    online: bool = False
    """Whether it quantises a plain checkpoint while it is loaded."""
    experts: bool = False
    """Whether it quantises nothing but experts, so that a model must have some."""
    note: str = ""
    """What those who choose it should know; the log says it."""
    costs: int = 0
    """By how many per cent it raises the perplexity of a small real model that was plain. The log says it."""
    aliases: tuple[str, ...] = ()
    """Other names for what it recognises."""
    file: str = ""
    """The file beside config.json that holds older checkpoints' ``quantization_config``, of this format."""
    calibrate: str = ""
    """``(EngineConfig, path of a text) -> folder``, for ``--quantization-calibration``: writes the model in this
    format, fitted to the text, as a checkpoint that is served instead. Empty where the format can't be fitted.
    """


class ModelOffer(msgspec.Struct, frozen=True):
    """Architectures that one class serves."""

    name: str
    architectures: tuple[str, ...]
    """Names from config.json's ``architectures``."""
    load: str
    tasks: tuple[str, ...] = ("generate",)
    """What it is known to be good for; ``lsv models`` shows it."""
    modalities: tuple[str, ...] = ("text",)
    """What it takes."""
    unstable: Mapping[str, str] = {}
    """Dtypes it can't run in, each with the reason; they are refused."""
    fallback: bool = False
    """Whether it serves architectures that no other model offers."""
    adapts: bool = False
    """Whether it runs another library's code of the architecture."""
    block_size: int | None = None
    """Tokens of a cache block that suit it; None leaves it to the attention backend. A page holds a recurrent layer's
    state or so many tokens, and what the smaller one leaves of it is lost."""
    causal: bool = True
    """Whether a token sees only those before it. Where it sees all, nothing is cached and steps take whole prompts."""
    pooling: PoolingKind = "last"
    """How prompts are pooled where the checkpoint does not say."""
    encodes: bool = False
    """Whether prompts are texts that it encodes, and answers attend to them; see ``lsv.request.encoded``."""
    positions: int | None = None
    """How many positions checkpoints have, rope scaling included, whose config.json leaves that out."""
    length_key: str | None = None
    """The key of config.json that holds the length it was trained for, where ``max_position_embeddings`` holds one that
    it is only stretched to."""
    unused_positions: int = 0
    """How many of ``max_position_embeddings`` no token is ever at."""
    bounded_positions: bool = False
    """Whether positions are rows of a table, so that there are none past its end."""
    stop_tokens: tuple[str, ...] = ()
    """Tokens that end its answers although the checkpoint's files do not say so; those that the tokenizer has."""
    note: str = ""
    """What those who choose it should know; the log says it."""
    parts: tuple[ModelPart, ...] = ()
    """What of it may lie in checkpoints of their own. A tensor that the model's own has, too, is that one's."""
    further: str | None = None
    """Names the ``lsv_runtime.drafts.reader.StateReader`` of layers in the same checkpoint that predict further tokens.
    """
    divisible: bool = True
    """Whether the language model of a model that takes media answers texts alone as the whole does."""
    media_needs: MediaNeeds = MediaNeeds()
    """What its media need; without it the language model is served alone."""
    told_by: Mapping[str, str] = {}
    """Other families' architectures that its checkpoints name, each with the key of config.json that only these have,
    or a value (``a.b=c``); the first of ``architectures`` is meant then."""


class FamilyOffer(msgspec.Struct, frozen=True):
    """What a library knows of families of models by the names in their config.json."""

    name: str
    load: str
    """A light ``() -> lsv.resolve.architecture.families.Families``, called where no model offers an architecture."""


class CheckpointOffer(msgspec.Struct, frozen=True):
    """A checkpoint format."""

    name: str
    recognises: Callable[[str], bool]
    """Whether a local path is of this format."""
    load: str
    """``(path) -> CheckpointSource``."""
    prepare: str | None = None
    """``(path) -> folder``, for a format that is not a folder with config.json and a tokenizer: makes such a folder for
    ``load``."""
    single_files: str = ""
    """A pattern of files that are models by themselves, such as ``*.ggml``: of a hub's repository of many, only the one
    that was named is fetched."""
    beside: str = ""
    """A pattern of files of this form that are no models, but lie beside them."""


class ModelAlias(msgspec.Struct, frozen=True):
    """A short name for a checkpoint that ships inside a package."""

    name: str
    locate: Callable[[], str]
    """Gives its directory."""
    default: bool = False
    """Whether it is served when no model is named."""
    held_out: Callable[[int, int], tuple[Sequence[Mapping[str, Any]], str]] | None = None
    """``(count, seed)`` to as many questions, in the form of ``lsv eval``, and a text; none of them was trained on."""
    adapters: Mapping[str, Callable[[], str]] = {}
    """Give the directories of adapters that ship with it: ``--lora-modules`` finds them as ``<alias>:<name>``."""
