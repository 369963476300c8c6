"""Checkpoints of the families under test, made once a session, and the catalog of the models plugin."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lsv.plugins.catalog import Catalog
from lsv.testing.catalog import catalog_of
from lsv.testing.tiny import tiny
from lsv_models import plugin


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return catalog_of(plugin)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A folder with a tiny checkpoint of a family and shape."""
    made: dict[str, Path] = {}

    def make(family: str, **shape: Any) -> Path:
        key = f"{family}{sorted(shape.items())}"
        if key not in made:
            made[key] = tiny(family, tmp_path_factory.mktemp(family), **shape)
        return made[key]

    return make
