"""The table of families is what the installed transformers has, and its other names mean what lsv serves."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from lsv.offers import ModelOffer
from lsv.plugins import load
from lsv_models.families import read_families, read_table

ROOT = Path(__file__).resolve().parents[2]


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("families", ROOT / "tools" / "families.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_is_what_transformers_has() -> None:
    assert read_table() == load_tool().read_installed(), "run python tools/families.py --write"


def test_other_names_mean_architectures_that_are_known() -> None:
    known = read_families()
    offers = load(["core", "models"]).catalog.offers(ModelOffer)
    native = {name for offer in offers for name in offer.architectures}
    wrappers = {wrapper.architecture for wrapper in known.wrappers.values()}
    assert set(known.aliases.values()) <= native | set(known.architectures.values()) | wrappers
    assert not known.aliases.keys() & native
