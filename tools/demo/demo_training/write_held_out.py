"""Writes what `lsv eval lsv-demo` measures on: `PYTHONPATH=tools/demo python -m demo_training.write_held_out`.

Questions that were not trained on, and conversations for the perplexity, go into lsv-demo's package as JSON lines.
"""

import argparse
import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from demo_training.chat import dress
from demo_training.corpus import answered, chat_document
from demo_training.questions import as_record, stream
from demo_training.questions import questions as draw_questions
from demo_training.template import END_OF_TEXT
from lsv_demo.held_out import CONVERSATIONS, QUESTIONS

COUNT = 1000
"""Questions, and as many conversations."""


def questions(count: int) -> list[dict[str, Any]]:
    """`count` held-out questions, every skill in turn, as `lsv eval` reads them."""
    return [as_record(question) for question in draw_questions("test", count, seed=0)]


def conversations(count: int) -> list[str]:
    """`count` held-out conversations with their answers, each in the form that training text has."""
    rng = Random("held-out text 0")
    documents = (chat_document(answered(dress(question, rng))) for question in stream("test", rng, late=True))
    return ["".join(piece for piece, _ in document) + END_OF_TEXT for document in islice(documents, count)]


def as_lines(entries: Iterable[object]) -> str:
    return "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)


def contents() -> dict[Path, str]:
    """What is to be in each of the files."""
    return {QUESTIONS: as_lines(questions(COUNT)), CONVERSATIONS: as_lines(conversations(COUNT))}


def main() -> None:
    """Write the held-out questions and conversations into lsv-demo's package."""
    argparse.ArgumentParser(prog="python -m demo_training.write_held_out", description=main.__doc__).parse_args()
    for path, text in contents().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
