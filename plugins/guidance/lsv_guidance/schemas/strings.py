"""Bounds of texts: whether any text is within them, and their schema for llguidance."""

from __future__ import annotations

from typing import Any

from lsv_guidance.patterns.automaton import Language
from lsv_guidance.patterns.nondeterministic import TooComplex
from lsv_guidance.patterns.pattern import pattern_of
from lsv_guidance.patterns.text import write_language
from lsv_guidance.schemas.branch import Strings
from lsv_guidance.schemas.formats import FORMATS
from lsv_guidance.schemas.merged import language_of
from lsv_guidance.schemas.refusal import NotFollowed

_LONGEST_NAME = 256
"""Limit on lengths that an automaton counts."""


def write_strings(strings: Strings, path: str) -> dict[str, Any] | None:
    """The schema; None if provably no text is within the bounds. Raises ``NotFollowed``."""
    if not has_string(strings):
        return None
    facets = [{"format": name} for name in strings.formats if FORMATS[name] is None]
    if strings.values is not None:
        facets.insert(0, {"enum": [text for text in strings.values if _has(strings, text)]})
        return facets[0] if len(facets) == 1 else _join(facets)
    facets += [{"pattern": _write(text, path)} for text in _patterns(strings)]
    if left_over := _left_over(strings, path):
        facets.append({"pattern": left_over})
    bounds = {"minLength": strings.low} if strings.low else {}
    if strings.high is not None:
        bounds["maxLength"] = strings.high
    if len(facets) < 2:
        return {"type": "string", **bounds, **(facets[0] if facets else {})}
    return _join([bounds, *facets] if bounds else facets)


def _join(facets: list[dict[str, Any]]) -> dict[str, Any]:
    return {"allOf": [facet if "enum" in facet else {"type": "string", **facet} for facet in facets]}


def _patterns(strings: Strings) -> list[str]:
    """The patterns that must match, including patterns of formats."""
    formats = [f"^(?:{FORMATS[name]})$" for name in strings.formats if FORMATS[name] is not None]
    return [*formats, *(text for text, found in strings.patterns if found and text not in ("", "^", "$", ".*"))]


def _write(text: str, path: str) -> str:
    try:
        return pattern_of(text).write()
    except TooComplex as cause:
        raise NotFollowed("pattern", path, f"{text[:100]}: {cause}") from None


def _left_over(strings: Strings, path: str) -> str | None:
    """A pattern of all texts except the excluded ones; None if none is excluded."""
    unwanted = [text for text, found in strings.patterns if not found]
    if not unwanted and not strings.excluded:
        return None
    language = Language.any()
    try:
        for text in unwanted:
            language = language - language_of(text, path)
        if strings.excluded:
            language = language - Language.of_texts(strings.excluded)
        return write_language(language)
    except TooComplex as cause:
        raise NotFollowed("not", path, f"the remaining texts are too complex: {cause}") from None


def has_string(strings: Strings) -> bool:
    """Whether any text is possible; True if that is too expensive to find out."""
    if strings.high is not None and strings.low > strings.high:
        return False
    if strings.values is not None:
        return any(_has(strings, text) for text in strings.values)
    unwanted = sum(not found for _, found in strings.patterns)
    if len(_patterns(strings)) + unwanted + bool(strings.excluded) < 2:
        return True
    try:
        return not _language_without_lengths(strings).is_empty
    except (TooComplex, NotFollowed):
        return True


def _has(strings: Strings, text: str) -> bool:
    """Whether the bounds allow a text, apart from ``values`` and llguidance's own formats."""
    return (
        strings.low <= len(text)
        and (strings.high is None or len(text) <= strings.high)
        and text not in strings.excluded
        and all((text in language_of(pattern)) is found for pattern, found in strings.patterns)
        and all(text in language_of(pattern) for pattern in _patterns(strings))
    )


def language_of_strings(strings: Strings) -> Language:
    """All texts within the bounds, ignoring llguidance's own formats. Raises ``TooComplex``."""
    if strings.values is not None:
        return Language.of_texts(text for text in strings.values if _has(strings, text))
    found = _language_without_lengths(strings)
    if strings.low or strings.high is not None:
        if max(strings.low, strings.high or 0) > _LONGEST_NAME:
            raise TooComplex(f"lengths of names are only supported up to {_LONGEST_NAME}")
        high = "" if strings.high is None else strings.high
        found = found & language_of(f"^(?s:.{{{strings.low},{high}}})$")
    return found


def _language_without_lengths(strings: Strings) -> Language:
    found = Language.any()
    for text in _patterns(strings):
        found = found & language_of(text)
    for text, wanted in strings.patterns:
        if not wanted:
            found = found - language_of(text)
    if strings.excluded:
        found = found - Language.of_texts(strings.excluded)
    return found
