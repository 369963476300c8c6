"""Formats of texts: each is its standard's or narrower, and never wider."""

from __future__ import annotations

import json
import re
from datetime import date, timedelta
from typing import Any

import pytest

from lsv.request.structured import StructuredOutputsParams
from lsv_guidance.backend import GuidanceBackend
from lsv_testing.grammars.walk import BYTES, draw, follows

LABEL = "h" * 63


@pytest.fixture(scope="module")
def backend() -> GuidanceBackend:
    return GuidanceBackend(BYTES)


def lets_through(backend: GuidanceBackend, name: str, text: str, **more: Any) -> bool:
    schema = {"type": "string", "format": name, **more}
    return follows(backend.compile(StructuredOutputsParams(json=schema)), f'"{text}"')


@pytest.mark.parametrize("year", [1, 4, 100, 400, 1900, 1996, 2000, 2023, 2024, 2100, 9996])
def test_29_february_is_in_leap_years_alone(backend: GuidanceBackend, year: int):
    is_leap = (date(year, 3, 1) - timedelta(1)).day == 29
    assert lets_through(backend, "date", f"{year:04}-02-29") is is_leap
    assert lets_through(backend, "date-time", f"{year:04}-02-29T08:00:00Z") is is_leap
    assert lets_through(backend, "date", f"{year:04}-02-28")


@pytest.mark.parametrize("text", ["0000-01-01", "2024-13-01", "2024-04-31", "2024-02-30", "24-01-01", "2024-1-01"])
def test_days_that_no_calendar_has(backend: GuidanceBackend, text: str):
    assert not lets_through(backend, "date", text)


@pytest.mark.parametrize("clock", ["14:05:60", "23:59:60", "23:58:60.5"])
def test_second_60_is_refused(backend: GuidanceBackend, clock: str):
    assert not lets_through(backend, "time", f"{clock}Z")
    assert not lets_through(backend, "date-time", f"2016-12-31T{clock}Z")
    assert lets_through(backend, "time", f"{clock.replace('60', '59')}+01:00")


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (".".join([LABEL] * 3 + ["h" * 61]), True),
        (".".join([LABEL] * 3 + ["h" * 62]), False),
        (LABEL, True),
        (LABEL + "h", False),
        ("example.org", True),
        ("a-b--c.d-", False),
        ("a1-b--c", True),
        ("xn--x", False),
        ("-a", False),
        ("a..b", False),
        ("a", True),
        ("ab", True),
        ("a-b", True),
        ("ab-c", True),
        ("a--b", True),
        ("ab--", False),
    ],
)
def test_a_host_name_has_at_most_253_characters(backend: GuidanceBackend, text: str, right: bool):
    assert lets_through(backend, "hostname", text) is right


def test_a_shorter_bound_of_a_host_name_stays(backend: GuidanceBackend):
    assert lets_through(backend, "hostname", "ab", maxLength=2)
    assert not lets_through(backend, "hostname", "abc", maxLength=2)


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("json-pointer", ["", "/a~1b/0", "/"], ["a", "/~2"]),
        ("relative-json-pointer", ["0", "1/a", "2#"], ["01", "/a", "#"]),
        ("uri-reference", ["", "#a", "a/b?c", "//host:80/x", "http://example.org/%20"], ["a b", "%zz", "//a@b@c"]),
        ("uri-template", ["/a/{id}", "{?x,y*}", "{+p:3}"], ["{", "{a", "{a b}"]),
        ("iri", ["http://example.org/a"], ["a b"]),
        ("idn-email", ["a@example.org"], ["a@", "a"]),
    ],
)
def test_formats_beyond_those_of_the_library(backend: GuidanceBackend, name: str, right: list[str], wrong: list[str]):
    assert all(lets_through(backend, name, text) for text in right)
    assert not any(lets_through(backend, name, text) for text in wrong)


def test_answers_of_the_format_regex_compile(backend: GuidanceBackend):
    grammar = backend.compile(StructuredOutputsParams(json={"type": "string", "format": "regex"}))
    found = [json.loads(answer) for seed in range(150) if (answer := draw(grammar, seed)) is not None]
    assert len(found) > 50
    for pattern in found:
        re.compile(pattern)
    for pattern in ("^[a-z0-9-]+$", r"(\\d{3}-)?\\d+", "(a(b|c)*)+?", "x|y"):
        assert follows(grammar, f'"{pattern}"'), pattern


def test_an_unknown_format_is_an_annotation(backend: GuidanceBackend):
    assert lets_through(backend, "surprise", "anything at all")
