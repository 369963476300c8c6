"""How much of the JSON Schema Test Suite the default back end of structured output follows, and whether it is right.

    git clone https://github.com/json-schema-org/JSON-Schema-Test-Suite
    python tools/schema_suite.py JSON-Schema-Test-Suite/tests/draft2020-12

The folder's schemas, its ``optional`` and its ``optional/format`` are counted separately. A schema is followed or
refused. Each instance of a followed schema is written in several spellings, and each spelling walks through the
grammar byte by byte, through the masks that a model's tokens would meet.

An invalid instance that gets through in any spelling is wrong: the program lists it and exits with status 1. A valid
instance that gets through in no spelling is narrower: properties in another order, numbers in another notation.
``--narrower`` and ``--refused`` list these, too; ``--only WORD`` takes the files whose names have the word.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lsv.grammars.grammar import Grammar
from lsv.request.structured import StructuredOutputsParams
from lsv_base.errors import BadRequest
from lsv_guidance.backend import GuidanceBackend
from lsv_testing.grammars.walk import BYTES, follows

PARTS = {"draft": "*.json", "optional": "optional/*.json", "formats": "optional/format/*.json"}


@dataclass
class Count:
    """Results for some schemas."""

    followed: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Refused schemas by reason."""
    let_through: int = 0
    kept_out: int = 0
    narrower: list[str] = field(default_factory=list)
    """Valid instances that were rejected."""
    wrong: list[str] = field(default_factory=list)
    """Invalid instances that were accepted."""
    reasons: list[str] = field(default_factory=list)
    """Each refused schema with the whole message."""

    def __str__(self) -> str:
        schemas = self.followed + self.refused.total()
        return (
            f"{self.followed} of {schemas} schemas followed, {self.refused.total()} refused; instances: "
            f"{self.let_through} let through rightly, {self.kept_out} kept out rightly, "
            f"{len(self.narrower)} narrower, {len(self.wrong)} wrong"
        )

    def __add__(self, other: Count) -> Count:
        return Count(
            self.followed + other.followed,
            self.refused + other.refused,
            self.let_through + other.let_through,
            self.kept_out + other.kept_out,
            self.narrower + other.narrower,
            self.wrong + other.wrong,
            self.reasons + other.reasons,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="tests/draft2020-12 of a checkout of the suite")
    parser.add_argument("--only", default="", help="files whose names have this word")
    parser.add_argument("--refused", action="store_true", help="list the refused schemas with their messages")
    parser.add_argument("--narrower", action="store_true", help="list the valid instances that are kept out")
    options = parser.parse_args()
    total = Count()
    for name, pattern in PARTS.items():
        files = [file for file in sorted(options.folder.glob(pattern)) if options.only in file.name]
        count = sum((count_file(file) for file in files), Count())
        print(f"{name}: {count}")
        total += count
    print(f"all: {total}")
    if not total.followed + total.refused.total():
        sys.exit(f"{options.folder} has no tests: name tests/draft2020-12 of a checkout of the suite")
    report(total, refused=options.refused, narrower=options.narrower)
    sys.exit(1 if total.wrong else 0)


def report(total: Count, *, refused: bool, narrower: bool) -> None:
    print("refused for: " + ", ".join(f"{name} {count}" for name, count in total.refused.most_common()))
    for title, lines in (
        ("refused", total.reasons if refused else []),
        ("narrower", total.narrower if narrower else []),
        ("WRONG", total.wrong),
    ):
        for line in lines:
            print(f"{title}: {line}")


def count_file(file: Path) -> Count:
    count, backend = Count(), GuidanceBackend(BYTES)
    for group in json.loads(file.read_text()):
        name = f"{file.stem}: {group['description']}"
        try:
            grammar = backend.compile(StructuredOutputsParams(json=json.dumps(group["schema"])))
        except BadRequest as error:
            count.refused[_keyword_of(error.message)] += 1
            count.reasons.append(f"{name}: {error.message}")
            continue
        count.followed += 1
        for test in group["tests"]:
            count_instance(count, grammar, f"{name}: {test['description']}: ", test["data"], valid=test["valid"])
    return count


def count_instance(count: Count, grammar: Grammar, name: str, value: Any, *, valid: bool) -> None:
    through = next((text for text in spell(value) if follows(grammar, text)), None)
    if not valid and through is not None:
        count.wrong.append(name + through)
    elif not valid:
        count.kept_out += 1
    elif through is None:
        count.narrower.append(name + json.dumps(value))
    else:
        count.let_through += 1


def spell(value: Any) -> Iterator[str]:
    """An instance as JSON: compact, with spaces, in ASCII, and with every letter of its texts escaped."""
    for separators in ((",", ":"), (", ", ": ")):
        text = json.dumps(value, ensure_ascii=False, separators=separators)
        if _encodes(text):
            yield text
    ascii_only = json.dumps(value)
    yield ascii_only
    yield re.sub(r'"((?:[^"\\]|\\.)*)"', lambda found: f'"{_escape(json.loads(found[0]))}"', ascii_only)


def _escape(text: str) -> str:
    units = text.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _keyword_of(message: str) -> str:
    """The reason of a refusal: the first keyword of the message."""
    why = message.split("can't be followed: ", 1)[-1]
    found = re.search(r"Unimplemented keys: \[\"([^\"]+)|Unknown (format)|^(\$?[a-zA-Z]+) at ", why)
    return next(filter(None, found.groups())) if found else why[:40]


if __name__ == "__main__":
    main()
