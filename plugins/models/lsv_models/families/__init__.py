"""What transformers knows of families of models, and other names of architectures. Imports neither torch nor that."""

from __future__ import annotations

from pathlib import Path

import msgspec

from lsv.resolve.architecture.families import Families
from lsv_models.families.aliases import ALIASES, HALVES, WHOLE

FILE = Path(__file__).parent / "transformers.json"
"""Written by ``tools/families.py``."""


class Table(msgspec.Struct, frozen=True):
    """The file."""

    release: str
    """Of transformers, as major.minor."""
    families: Families


def read_table() -> Table:
    return msgspec.json.decode(FILE.read_bytes(), type=Table)


def read_families() -> Families:
    """transformers' families, with ``ALIASES``, ``HALVES`` and ``WHOLE``."""
    known = read_table().families
    whole = {kind: msgspec.structs.replace(known.wrappers[kind], half="") for kind in WHOLE}
    return msgspec.structs.replace(
        known,
        architectures={**known.architectures, **HALVES},
        wrappers={**known.wrappers, **whole},
        aliases=ALIASES,
    )
