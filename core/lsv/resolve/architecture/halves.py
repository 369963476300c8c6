"""The language model of a checkpoint that holds more, by its config.json.

Models that take media are published with a config.json in two halves: what is about the language model stands in an
object of its own, and towers have theirs. Served for text alone, the language model's half takes the place of the
whole, so that everything that reads config.json finds an ordinary language model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsv.resolve.architecture.families import Families
from lsv.resolve.locate import language_of
from lsv.resolve.overrides import OF_THE_WHOLE


def has_half(checkpoint: Mapping[str, Any]) -> bool:
    """Whether config.json describes a language model in an object of its own."""
    return bool(language_of(checkpoint)[1])


def architectures_of(checkpoint: Mapping[str, Any], families: Families) -> list[str]:
    """What the language model may be called, the most telling name first."""
    text, kind = language_of(checkpoint)[1], half_type(checkpoint, families)
    wrapper = families.wrappers.get(str(checkpoint.get("model_type")))
    if wrapper is not None and not wrapper.half:
        return []
    named = text.get("architectures")
    own = [str(named[0])] if isinstance(named, list) and named else []
    known = families.architectures.get(kind)
    return [*own, *([known] if known else [])]


def half_type(checkpoint: Mapping[str, Any], families: Families) -> str:
    """The ``model_type`` of the language model; empty where neither config.json nor a library says it."""
    named = language_of(checkpoint)[1].get("model_type")
    wrapper = families.wrappers.get(str(checkpoint.get("model_type")))
    return str(named) if named else "" if wrapper is None else wrapper.half


def read_half(checkpoint: Mapping[str, Any], architecture: str, families: Families) -> dict[str, Any]:
    """The config.json of the language model alone, with what its half leaves out."""
    text, kind = language_of(checkpoint)[1], half_type(checkpoint, families)
    wrapper = families.wrappers.get(str(checkpoint.get("model_type")))
    defaults = dict(families.defaults.get(kind, {}))
    if wrapper is not None and wrapper.half == kind:
        defaults |= wrapper.defaults
    rope = defaults.pop("rope_parameters", {})
    whole = {key: checkpoint[key] for key in OF_THE_WHOLE if checkpoint.get(key) is not None}
    named = {"model_type": kind, "architectures": [architecture]}
    half = {**defaults, **_complete_rope(text, rope), **text, **whole, **named}
    tied = (checkpoint.get("tie_word_embeddings"), None if wrapper is None else wrapper.ties)
    found = next((one for one in tied if one is not None), half.get("tie_word_embeddings"))
    return half if found is None else {**half, "tie_word_embeddings": found}


def _complete_rope(text: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """What a language model's half leaves out of its rope rule, in the layout that the half has."""
    rules = [text.get(key) for key in ("rope_parameters", "rope_scaling")]
    given = [rule for rule in rules if isinstance(rule, Mapping)]
    if not given and text.get("rope_theta") is None:
        return {"rope_parameters": usual} if usual else {}
    theta = usual.get("rope_theta")
    if theta is None or any("rope_theta" in rule for rule in (text, *given)):
        return {}
    return {"rope_theta": theta}
