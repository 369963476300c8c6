"""Calls inside unfinished thoughts: the marks that begin them, and a check whether a text is such a call."""

from __future__ import annotations

from lsv.text.answer_parser import AnswerForm, CallBegin
from lsv_parsers.tools import formats
from lsv_parsers.tools.format import ToolFormat

_FORMATS = [one for one in vars(formats).values() if isinstance(one, ToolFormat)]


def _marks(format: ToolFormat) -> set[str]:
    """Marks that other text does not contain, unlike words and code fences."""
    marks = (*format.begins, *format.own, *format.silent)
    return {mark for mark in marks if mark[0] in "<[]" and mark not in format.doubtful}


OPENERS = tuple(sorted(set().union(*map(_marks, _FORMATS))))
"""Marks of calls in any format."""


def holds_call(text: str, form: AnswerForm) -> bool:
    """Whether a text that begins with one of ``OPENERS`` is a call of an offered tool, in any format with that mark."""
    for format in _FORMATS:
        if text.startswith(tuple(_marks(format))):
            reader = format(form)
            parts = (*reader.push(text), *reader.end())
            if any(isinstance(part, CallBegin) and part.name in form.tools for part in parts):
                return True
    return False
