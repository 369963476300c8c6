"""Regular expressions of schemas, compared with Python's re, and their form for llguidance."""

from __future__ import annotations

import random
import re

import pytest

from lsv_guidance.patterns.automaton import Language
from lsv_guidance.patterns.nondeterministic import TooComplex
from lsv_guidance.patterns.pattern import pattern_of
from lsv_guidance.patterns.syntax import UnreadablePattern, read_pattern
from lsv_guidance.patterns.text import write_language, write_other_texts, write_search

PATTERNS = [
    "^a|b$", "^ab", "b", "yz$", "^[0-9]{3}-[0-9]{2}$", "^(yes|no)$", r"\bca\b", "^[^a]$", "(?i)^Ab+$", "a*", "a+b|c",
    "^$", "", "^(a|b)*abb$", r"[^\\\"]", r"\Bx", "x{2,4}$", "^(?:[a-z]+,)*[a-z]+$", "(^a$)|(?P<name>b)", r"^\-[-x]$",
    "^(?=.*1)(?!a).{2,}$", "^(?!ab$)", "(?s)^.$", r"^[\x61-c\u{78}]$", r"a{2}b?c{1,}",
]  # fmt: skip


def draw_texts(count: int = 300) -> list[str]:
    draw = random.Random(0)
    return ["".join(draw.choices('abcxyz-01, \n"A\\', k=draw.randint(0, 6))) for _ in range(count)]


def python_of(pattern: str) -> str:
    """An ECMA pattern in Python's syntax."""
    found = pattern.replace(r"\u{78}", "x")
    return re.sub(r"(?<!\\)\$", r"\\Z", found)


def is_all(pattern: str, text: str) -> bool:
    """Whether a written pattern matches the whole text."""
    return bool(
        re.fullmatch(re.sub(r"\\x\{([0-9A-F]+)\}", lambda hit: f"\\U{int(hit[1], 16):08x}", pattern)[1:-1], text)
    )


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_language_has_the_texts_in_which_the_pattern_is_found(pattern: str):
    language = pattern_of(pattern).language
    for text in draw_texts():
        assert (text in language) is bool(re.search(python_of(pattern), text)), text


@pytest.mark.parametrize("pattern", PATTERNS)
def test_written_patterns_are_the_whole_text(pattern: str):
    language, written = pattern_of(pattern).language, pattern_of(pattern).write()
    rest = Language.any() - language
    others = None if rest.is_empty else write_language(rest)
    for text in draw_texts():
        assert is_all(written, text) is is_all(write_language(language), text) is (text in language), text
        assert others is None or is_all(others, text) is not (text in language), text


def test_languages_join_as_sets_do():
    one, two = pattern_of("^a").language, pattern_of("b$").language
    for text in draw_texts():
        assert (text in one & two) is (text in one and text in two)
        assert (text in one | two) is (text in one or text in two)
        assert (text in one - two) is (text in one and text not in two)
    assert (one - one).is_empty
    assert not (one - two).is_empty
    assert (pattern_of("^(ab|c)$").language - Language.of_texts(["ab", "c"])).is_empty


def test_other_texts_are_all_but_some():
    pattern = write_other_texts(["a", "ab", "xyz", "", "é"])
    assert [text for text in ("", "a", "ab", "b", "abc", "x", "xyz", "é", "ée", 'x"') if is_all(pattern, text)] == [
        "b", "abc", "x", "ée", 'x"',
    ]  # fmt: skip
    assert not is_all(pattern, "\n")


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        (r"^\s$", ["\ufeff", "\u2003", "\u2028"]),
        (r"^\cA$", ["\x01"]),
        (r"^\d$", ["7"]),
        (r"^\p{Lu}$", ["Ä"]),
        (r"^\p{Letter}$", ["ö"]),
        (r"^\ud83d\udc32$", ["\U0001f432"]),
        (r"^\/$", ["/"]),
    ],
)
def test_escapes_are_those_of_ecma(pattern: str, texts: list[str]):
    assert all(text in pattern_of(pattern).language for text in texts)
    assert "٣" not in pattern_of(pattern).language
    assert "aa" not in pattern_of(pattern).language


@pytest.mark.parametrize(
    "pattern",
    [
        "(a",
        "a)",
        "[a",
        "*",
        "a**",
        "a{3,2}",
        "[b-a]",
        r"(a)\1",
        "(?<=a)b",
        r"\Z",
        r"\p{Nope}",
        "a\\",
        "(?m)a",
        r"[\d-z]",
    ],
)
def test_what_is_no_pattern_here_is_told(pattern: str):
    with pytest.raises(UnreadablePattern):
        read_pattern(pattern)


@pytest.mark.parametrize("pattern", ["(a{1,1000}){1,1000}", "^(a|b)*a(a|b){24}$", "a(?=b)"])
def test_a_pattern_that_needs_too_much_is_told(pattern: str):
    with pytest.raises(TooComplex):
        pattern_of(pattern).language  # noqa: B018 - it is computed when it is read


def test_an_empty_class_has_no_character_and_its_complement_all():
    assert "\n" in pattern_of("^[^]$").language
    assert pattern_of("[]").language.is_empty


def test_a_class_with_control_characters_has_no_way_around_its_quotes():
    assert write_search(read_pattern('^[^"]$')) == r"^(?:[\x{1}-\x{21}\x{23}-\x{D7FF}\x{E000}-\x{10FFFF}])$"
