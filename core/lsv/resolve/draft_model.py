"""The checkpoint that drafts: what it is, and whether it can draft for the model that answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from lsv.config import Choices, DraftModel
from lsv.offers import DrafterOffer
from lsv.plugins.catalog import Catalog
from lsv.resolve.architecture.choice import choose_model
from lsv.resolve.files import hub_of
from lsv.resolve.lengths import own_length
from lsv.resolve.locate import language_of, locate_model, read_config
from lsv.settings import Settings
from lsv_base.errors import CheckpointError, ConfigError
from lsv_base.untrusted.files import read_regular

_NAME = "speculative_config"
_SIZE = "vocab_size"


@dataclass(frozen=True, slots=True)
class Target:
    """The model that answers."""

    checkpoint: Mapping[str, Any]
    """Its config.json."""
    tokenizer: Path
    longest: int
    cached: bool
    """Whether it gives answers."""


ChooseQuantizer = Callable[[str | None, Mapping[str, Any], Catalog, Choices], str | None]
"""The name of a checkpoint's quantiser, given the one that is asked for and its config.json."""


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint that drafts."""

    model: DraftModel
    checkpoint: Mapping[str, Any]
    places: int | None
    """The most tokens that heads draft; None for a language model."""


def find_checkpoint(name: str, revision: Any, settings: Settings, catalog: Catalog) -> Path:
    """Its folder, which may have to be fetched."""
    if not isinstance(revision, str | None):
        raise ConfigError(f"{_NAME}: revision must be a name, got {revision!r:.100}", param=_NAME)
    return locate_model(name, catalog, hub_of(settings, revision))


def recognise(folder: Path, method: str, catalog: Catalog) -> str:
    """The method that a checkpoint is made for, where ``method`` is only that of checkpoints at large."""
    if method != "draft_model":
        return method
    checkpoint = read_config(folder, {})
    kind, named = checkpoint.get("model_type"), checkpoint.get("architectures") or ()
    for offer in catalog.offers(DrafterOffer):
        if kind in offer.model_types or not set(named).isdisjoint(offer.architectures):
            return offer.name
    return method


def read_draft_model(
    folder: Path,
    offer: DrafterOffer,
    asked: Mapping[str, Any],
    target: Target,
    choose_quantizer: ChooseQuantizer,
    catalog: Catalog,
) -> Found:
    """Raises ``ConfigError`` or ``CheckpointError`` for a checkpoint that can't draft so."""
    checkpoint, longest = read_config(folder, {}), read_longest(asked)
    names = checkpoint.get("architectures")
    named = str(names[0]) if isinstance(names, list) and names else ""
    if offer.needs == "heads":
        length = target.longest if longest is None else min(longest, target.longest)
        kept = choose_quantizer(asked.get("quantization"), checkpoint, catalog, Choices()) if not offer.places else None
        model = DraftModel(folder=str(folder), architecture=named, quantization=kept, max_model_len=length)
        if not offer.places:
            return Found(model, checkpoint, None)
        places = next((checkpoint[key] for key in offer.places if key in checkpoint), None)
        if not isinstance(places, int) or isinstance(places, bool) or places < 1:
            keys = " or ".join(offer.places)
            raise CheckpointError(f"{folder}/config.json: {keys} must say how many tokens are drafted")
        return Found(model, checkpoint, places)
    if not named:
        raise ConfigError(f"{_NAME}: {folder}/config.json names no architecture", param=_NAME)
    served = choose_model(checkpoint, folder, catalog, Choices())
    serving, checkpoint = served.model, read_config(folder, served.overrides)
    if serving.encodes or not serving.causal:
        raise ConfigError(f"{_NAME}: {named} is not a generative model: choose another one", param=_NAME)
    length = own_length(checkpoint, serving, target.longest)
    model = DraftModel(
        folder=str(folder),
        architecture=served.architecture,
        wrapper=served.wrapper,
        offer=serving.name,
        quantization=choose_quantizer(asked.get("quantization"), checkpoint, catalog, Choices()),
        max_model_len=length if longest is None else min(length, longest),
        overrides=served.overrides,
    )
    return Found(model, checkpoint, None)


def check_fit(found: Found, offer: DrafterOffer, target: Target) -> None:
    """Raises ``ConfigError`` where the numbers of tokens do not mean the same in both models."""
    own, theirs = _vocabulary_size(found.checkpoint), _vocabulary_size(target.checkpoint)
    folder = Path(found.model.folder)
    if offer.needs == "heads":
        if own is not None and own != theirs:  # else what holds the heads tells
            raise ConfigError(
                f"{_NAME}: {folder} drafts {own} tokens, and the model has {theirs}: it was made for another model",
                param=_NAME,
            )
        return
    tokens, others = _vocabulary(folder), _vocabulary(target.tokenizer)
    if tokens is None or others is None:
        if own != theirs:
            raise ConfigError(
                f"{_NAME}: the draft model has {own} tokens, and the model {theirs}: they must share a tokenizer",
                param=_NAME,
            )
    elif odd := next((token for token, id in others.items() if tokens.get(token, id) != id), None):
        raise ConfigError(
            f"{_NAME}: token {odd!r:.60} is number {tokens[odd]} of the draft model {folder} and {others[odd]} of the "
            "model: they must share a tokenizer",
            param=_NAME,
        )
    elif not _mostly(tokens, others):
        raise ConfigError(
            f"{_NAME}: the tokenizer of the draft model {folder} has other tokens than the model's: both must be one",
            param=_NAME,
        )


def _mostly(tokens: Mapping[str, int], others: Mapping[str, int]) -> bool:
    """Whether nearly all tokens are shared: relatives may differ in a few special ones."""
    return len(tokens.keys() & others.keys()) >= 0.99 * len(others)


def _vocabulary_size(checkpoint: Mapping[str, Any]) -> int | None:
    size = checkpoint.get(_SIZE, language_of(checkpoint)[1].get(_SIZE))
    return size if isinstance(size, int) else None


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]] = {}


class _Added(msgspec.Struct):
    id: int
    content: str


class _Tokenizer(msgspec.Struct):
    """What is needed of a tokenizer.json."""

    model: _Model
    added_tokens: list[_Added] = []


def _vocabulary(folder: Path) -> dict[str, int] | None:
    """The numbers of the tokens by tokenizer.json; None where there is none that says."""
    try:
        read = msgspec.json.decode(read_regular(folder / "tokenizer.json"), type=_Tokenizer)
    except (OSError, msgspec.DecodeError):
        return None
    own = read.model.vocab
    found = own if isinstance(own, dict) else {token: place for place, (token, _) in enumerate(own)}
    return {**found, **{token.content: token.id for token in read.added_tokens}}


def read_longest(asked: Mapping[str, Any]) -> int | None:
    """The most tokens of a sequence that is drafted for, where that is asked for."""
    longest = asked.get("max_model_len")
    if longest is not None and (not isinstance(longest, int) or isinstance(longest, bool) or longest < 1):
        raise ConfigError(f"{_NAME}: max_model_len must be a whole number from 1 on, got {longest!r:.100}", param=_NAME)
    return longest
