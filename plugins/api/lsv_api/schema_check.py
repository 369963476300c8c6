"""Finds which of several schemas a grammar back end refuses, without an engine."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from lsv.grammars.grammar import GrammarBackend, Vocabulary
from lsv.plugins.catalog import Catalog
from lsv.plugins.grammars import find_backend
from lsv.request.structured import StructuredOutputsParams
from lsv_base.errors import BadRequest

SECONDS = 2.0
"""Time limit of a check. A schema can take a second to compile, and a request may have hundreds."""
_END = 256
_BYTES = Vocabulary(
    tokens=(*(bytes([byte]) for byte in range(256)), b"</s>"),
    special=frozenset({_END}),
    eos=(_END,),
    encode=lambda text: list(text.encode()),
)
"""A vocabulary of bytes, because whether a schema can be followed does not depend on the model's vocabulary."""


class SchemaCheck:
    """Compiles schemas one by one. The back end is loaded once a request has been refused."""

    def __init__(self, catalog: Catalog, backend: str | None) -> None:
        self._catalog = catalog
        self._name = backend

    def find_refused(self, schemas: Sequence[Mapping[str, Any]]) -> tuple[int, str] | None:
        """The place of the first schema that can't be followed, and the back end's message.

        None if every single one can be followed, or if the check takes too long.
        """
        if self._name is None:
            return None
        backend, until = self._backend, time.monotonic() + SECONDS
        for place, schema in enumerate(schemas):
            if time.monotonic() > until:
                return None
            try:
                backend.compile(StructuredOutputsParams(json=dict(schema)))  # type: ignore[arg-type]
            except BadRequest as error:
                return place, error.message
        return None

    @cached_property
    def _backend(self) -> GrammarBackend:
        backend: GrammarBackend = self._catalog.load(find_backend(self._catalog, None, self._name))(_BYTES)
        return backend
