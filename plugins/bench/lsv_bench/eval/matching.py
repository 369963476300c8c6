"""When a generated answer counts as right: as a text, or as the number it ends in."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence

import msgspec

_FINAL = re.compile(r"#### (-?[0-9.,]+)")
"""A worked solution's last line in the form of GSM8K."""
_NUMBER = re.compile(r"-?[$0-9.,]{2,}|-?[0-9]+")
_BEFORE_FINAL = re.compile(r".*#### ", re.DOTALL)


class Verdict(msgspec.Struct, frozen=True):
    """``text`` is the answer as it was compared; ``flexible`` judges its last number, None where texts are matched."""

    text: str
    right: bool
    flexible: bool | None = None


Match = Callable[[str, Sequence[str]], Verdict]
"""A generated text, and the answers of which any is right."""


def normalise(text: str, *, loose: bool = False) -> str:
    """Unicode in composed form (NFC), each run of white space as one space, none at the ends.

    ``loose`` also drops punctuation and the difference of capitals.
    """
    text = unicodedata.normalize("NFC", text)
    if loose:
        text = "".join(c for c in text if not unicodedata.category(c).startswith("P")).casefold()
    return " ".join(text.split())


def match_text(text: str, answers: Sequence[str], *, loose: bool = False) -> Verdict:
    """All of the answer, normalised."""
    text = normalise(text, loose=loose)
    return Verdict(text, any(text == normalise(answer, loose=loose) for answer in answers))


def match_loosely(text: str, answers: Sequence[str]) -> Verdict:
    """All of the answer, but for punctuation and capitals."""
    return match_text(text, answers, loose=True)


def match_number(text: str, answers: Sequence[str]) -> Verdict:
    """The first number behind ``####``, and flexibly the last number anywhere, against those of the answers.

    Numbers are compared as they are written, without commas, dollar signs and a full stop at the end: 18.00 is not 18.
    These are the strict and the flexible rule of lm_eval's task gsm8k, version 3.
    """
    final, anywhere = _FINAL.findall(text), _NUMBER.findall(text)
    right = {_bare_number(answer) for answer in answers}
    strict, flexible = (
        _bare_number(found) if found else None for found in ("".join(final[:1]), "".join(anywhere[-1:]))
    )
    return Verdict(normalise(text), strict in right, flexible in right)


def _bare_number(text: str) -> str:
    return _BEFORE_FINAL.sub("", text.replace(",", "").replace("$", "")).removesuffix(".").strip().lower()


MATCHES: Mapping[str, Match] = {"exact": match_text, "loose": match_loosely, "number": match_number}
