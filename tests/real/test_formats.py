"""What each weight format loses on real weights: its perplexity as a ratio to plain weights, as last looked at."""

from __future__ import annotations

import json

import pytest

from published.formats import FILE, FITTED, FITTED_FILE, measure_fitted, measure_formats, name_formats
from published.models import Published

KEPT: dict[str, float] = json.loads(FILE.read_text())


def test_every_format_has_a_ratio() -> None:
    assert KEPT.keys() == set(name_formats())


@pytest.mark.parametrize("name", KEPT)
def test_a_format_loses_what_it_did(published: Published, name: str) -> None:
    assert measure_formats(published, [name])[name] == pytest.approx(KEPT[name], rel=0.01)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", FITTED)
def test_a_fitted_format_loses_what_it_did(published: Published, name: str) -> None:
    assert measure_fitted(published, [name])[name] == pytest.approx(json.loads(FITTED_FILE.read_text())[name], rel=0.02)
