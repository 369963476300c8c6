"""Derives how a family marks thoughts from how its chat template writes a known thought."""

from __future__ import annotations

from lsv.text.answer_parser import ModelParser
from lsv.text.round_trip import Write
from lsv_parsers.derived.atoms import common_prefix, split_atoms
from lsv_parsers.derived.probes import FIRST, TEXT, THOUGHT, write_probes
from lsv_parsers.thinking import ThinkingFormat


def derive_parser(write: Write) -> ModelParser | None:
    """The parser of the thoughts that a chat template writes."""
    format = derive_thoughts(write)
    return None if format is None else ModelParser(format, (*format.begins, *format.ends, *format.silent))


def derive_thoughts(write: Write) -> ThinkingFormat | None:
    """The marks around thoughts; None if the template shows no thoughts or no marks."""
    written = write_probes(write)
    if "thought" not in written:
        return None
    shown = written["thought"]
    before, _, rest = shown.answer.partition(THOUGHT)
    between, _, after = rest.partition(TEXT)
    end, answer_begin = between, ""
    if "thought and call" in written:
        other = written["thought and call"].answer.partition(THOUGHT)[2].partition(FIRST[0])[0]
        end, answer_begin, _ = common_prefix(between, other)
    begin, end = before.strip() or _opened_by(shown.prompt), end.strip()
    if not begin or not end or begin == end:
        return None
    silent = tuple(mark for mark in (answer_begin.strip(), _closing(answer_begin, after)) if mark)
    return ThinkingFormat((begin,), (end,), silent=silent)


def _opened_by(prompt: str) -> str:
    """The last mark of a prompt that has opened the thoughts, or its last line."""
    line = prompt.rstrip().rpartition("\n")[2].strip()
    last = split_atoms(line)[-1:]
    return last[0] if last and last[0][0] in "<[" else line


def _closing(mark: str, after: str) -> str:
    """The mark that ends a text which ``mark`` began, recognised by the same word; if there is one."""
    words = {atom for atom in split_atoms(mark.strip().strip("<>|")) if atom.isalnum()}
    first = next(iter(split_atoms(after.lstrip())[:1]), "")
    return first if words and first.startswith("<") and words & set(split_atoms(first.strip("<>|/"))) else ""
