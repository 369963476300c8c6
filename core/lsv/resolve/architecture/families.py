"""What libraries know of families of models by the names in their config.json; see ``FamilyOffer``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from lsv.offers import FamilyOffer
from lsv.plugins.catalog import Catalog


class Wrapper(msgspec.Struct, frozen=True):
    """A family whose checkpoints hold a language model beside towers for media."""

    architecture: str
    half: str
    """The ``model_type`` of its language model, where config.json does not say; empty if that can't be served alone."""
    ties: bool | None = None
    """``tie_word_embeddings``, where config.json does not say."""
    defaults: Mapping[str, Any] = {}
    """Keys of its language model that config.json leaves out, where they differ from those of that model's family."""


class Families(msgspec.Struct, frozen=True):
    """What a library knows."""

    architectures: Mapping[str, str] = {}
    """``model_type`` -> the architecture that generates text."""
    wrappers: Mapping[str, Wrapper] = {}
    """By ``model_type``."""
    defaults: Mapping[str, Mapping[str, Any]] = {}
    """``model_type`` of a wrapper's language model -> keys that config.json leaves out."""
    aliases: Mapping[str, str] = {}
    """Other names of architectures -> what they are called here."""


def read_families(catalog: Catalog) -> Families:
    """What all plugins know together; where two know the same, the first one counts."""
    known = [catalog.load(offer)() for offer in catalog.offers(FamilyOffer)]
    fields = {
        name: {key: value for one in reversed(known) for key, value in getattr(one, name).items()}
        for name in Families.__struct_fields__
    }
    return Families(**fields)
