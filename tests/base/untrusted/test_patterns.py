"""Regular expressions from files match like ``re``, and take limited time."""

import re
import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lsv_base.errors import CheckpointError
from lsv_base.untrusted.patterns import LONGEST, Patterns

NAMES = ["model.layers.0.self_attn.q_proj", "model.layers.12.mlp.experts.3.gate_proj", "lm_head", "a\n", "é.x", "K", ""]
PUBLISHED = [
    r".*lm_head", r"(.*\.)?(q_proj)$", r"^(?!.*experts).*$", r".*\.(q|k|v)_proj", r"model\.layers\.\d+\..*",
    r"^model(?=\.).*\.(q_proj|gate_proj)$", r"(?i)MODEL.*", r"\w+$", r"[^]a]b", r"a{,3}", r".*é.*", r"(\w+)\.\1",
    r"(?x) l m", r"[\w.]+", r"(?:.*?(?:language|text).*?(?:self_attn|mlp).*?(?:q_proj|up_proj).*?)",
]  # fmt: skip
"""Patterns of quantised checkpoints and adapters, and some unusual ones."""

SEARCHES = ("match", "fullmatch", "search")


@pytest.mark.parametrize("pattern", PUBLISHED)
@pytest.mark.parametrize("search", SEARCHES)
def test_patterns_mean_what_re_makes_of_them(pattern: str, search: str) -> None:
    ours, theirs = Patterns("a.json").compile(pattern), re.compile(pattern)
    assert [getattr(ours, search)(name) for name in NAMES] == [
        getattr(theirs, search)(name) is not None for name in NAMES
    ]


@given(st.text(r"ab.\[]^$*+?(){}|,1dwsSBi:-", max_size=12), st.text("ab.-1 \n", max_size=8))
def test_random_patterns_mean_what_re_makes_of_them(pattern: str, subject: str) -> None:
    try:
        theirs = re.compile(pattern)
    except re.error:
        return
    assume(subject or r"\B" not in pattern)  # releases of Python disagree; no module has an empty name
    try:
        ours = Patterns("a.json").compile(pattern)
        found = [getattr(ours, search)(subject) for search in SEARCHES]
    except CheckpointError:  # its meaning depends on the reader; some subjects show that only when they are searched
        return
    assert found == [getattr(theirs, search)(subject) is not None for search in SEARCHES]


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("(", "is not a regular expression"),
        ("a**", "is not a regular expression"),
        ("a(?i)b", "is ambiguous"),
        ("[[:alpha:]]", "is ambiguous"),
        ("(?=a)(?:b){e<=2}", "is ambiguous"),
        ("(?=a)((b{1,100}){1,100}){1,100}", "repeats over 1000 times"),
        ("(?=a)" + "(" * 500 + ")" * 500, "is not a regular expression"),
        ("a" * (LONGEST + 1), f"over the limit of {LONGEST}"),
    ],
)
def test_what_is_refused_names_the_file_and_the_key(pattern: str, problem: str) -> None:
    with pytest.raises(CheckpointError, match=r"^a\.json: ignore: the pattern ") as caught:
        Patterns("a.json").compile(pattern, "ignore")
    assert problem in caught.value.message


def test_a_pattern_that_backtracks_is_matched_in_linear_time() -> None:
    pattern = Patterns("a.json").compile(r"(([a-z_.0-9]+)+)+!")
    began = time.monotonic()
    assert not pattern.match("a" * 1000)
    assert time.monotonic() - began < 1


def test_patterns_of_a_file_share_their_time() -> None:
    patterns = Patterns("a.json", seconds=0.2)
    slow, quick = patterns.compile(r"^((a|aa)+)+$(?<!q)"), patterns.compile("a")
    began = time.monotonic()
    with pytest.raises(CheckpointError, match="takes too long to match: avoid nested repetition"):
        slow.search("a" * 100 + "b")
    assert time.monotonic() - began < 5
    with pytest.raises(CheckpointError, match="takes too long"):
        quick.match("a")
