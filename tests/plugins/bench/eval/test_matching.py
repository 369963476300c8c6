"""Answers compared as texts and as numbers."""

from __future__ import annotations

import pytest

from lsv_bench.eval.matching import match_number, normalise


def test_normalisation() -> None:
    assert normalise(" a\t b\n\nc ") == "a b c"
    assert normalise("e\u0301") == "\u00e9"
    assert normalise("SNOW.") != normalise("snow")
    assert normalise("“Snow”, he said.", loose=True) == "snow he said"


@pytest.mark.row("F-428")
@pytest.mark.parametrize(
    ("said", "strict", "flexible"),
    [
        ("She has 6 * 3 = 18 eggs.\n#### 18", True, True),
        ("It costs $1,018.\n#### 1,018.", False, False),
        ("So it is #### 18 and not #### 19", True, False),
        ("#### 19 or rather 18", False, True),
        ("The answer is $18.", False, True),
        ("It is 18.00", False, False),
        ("#### $18", False, True),
        ("####18", False, True),
        ("It is -18", False, False),
        ("no idea", False, False),
    ],
)
def test_numbers(said: str, strict: bool, flexible: bool) -> None:
    verdict = match_number(said, ["It is 9 * 2 = <<9*2=18>>18.\n#### 18"])
    assert (verdict.right, verdict.flexible) == (strict, flexible)


def test_numbers_are_compared_without_commas_and_signs_of_money() -> None:
    for answer in ("#### 1,018", "1018", "$1,018."):
        verdict = match_number("That makes 1018 in all.\n#### 1,018.", [answer])
        assert (verdict.right, verdict.flexible) == (True, True)
    assert match_number("#### 7", ["5", "7"]).right
