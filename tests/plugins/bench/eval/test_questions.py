"""Question files: every form that is taken, and what is said of the ones that are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lsv_base.errors import ConfigError
from lsv_bench.datasets import Conversation
from lsv_bench.eval.questions import digest, make_questions, read_questions


def test_every_form_of_questions(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text(
        '{"prompt": "1 + 1 =", "answer": 2, "stop": ["\\n"], "max_tokens": 4, "id": 7}\n'
        "\n"
        '{"messages": [{"role": "user", "content": "Hi"}], "answers": ["Hello", "Hi"], "category": "talk"}\n'
        '{"prompt": "The sky is", "choices": ["red", "blue"], "answer": 1}\n'
        '{"prompt": "The sky is", "choices": ["red", "blue", "azure"], "answers": ["blue", 2]}\n',
        encoding="utf-8",
    )
    first, talk, sky, skies = read_questions(str(file))
    assert (first.place, first.prompt, first.answers) == (f"{file}:1", "1 + 1 =", ("2",))
    assert (first.stop, first.max_tokens) == (("\n",), 4)
    assert (talk.place, talk.answers, talk.category) == (f"{file}:3", ("Hello", "Hi"), "talk")
    assert isinstance(talk.prompt, Conversation)
    assert (sky.choices, sky.correct, sky.answers) == (("red", "blue"), (1,), ())
    assert skies.correct == (1, 2)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "truncated"),
        ("[1]", "Expected `object`"),
        ('{"prompt": 3, "answer": "x"}', r"\$.prompt"),
        ('{"answer": "x"}', "either prompt or messages"),
        ('{"prompt": "x", "messages": [], "answer": "x"}', "either prompt or messages"),
        ('{"prompt": "", "answer": "x"}', "prompt must not be empty"),
        ('{"messages": [], "answer": "x"}', "messages must be a list"),
        ('{"messages": [{"content": "x"}], "answer": "x"}', "messages must be a list"),
        ('{"prompt": "x"}', "either an answer or a list of answers"),
        ('{"prompt": "x", "answers": []}', "either an answer or a list of answers"),
        ('{"prompt": "x", "answer": "y", "answers": ["y"]}', "either an answer or a list of answers"),
        ('{"prompt": "x", "answer": "y", "choices": ["y"]}', "two texts or more"),
        ('{"prompt": "x", "answer": "y", "choices": ["y", ""]}', "two texts or more"),
        ('{"prompt": "x", "answer": "z", "choices": ["x", "y"]}', "one of the choices or its index"),
        ('{"prompt": "x", "answer": 2, "choices": ["x", "y"]}', "one of the choices or its index"),
        ('{"prompt": "x", "answer": "y", "max_tokens": 0}', "max_tokens must be at least 1"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, why: str) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text('{"prompt": "x", "answer": "y"}\n' + line + "\n")
    with pytest.raises(ConfigError, match=rf"question {file}:2 can't be used: .*{why}"):
        read_questions(str(file))


def test_empty_and_missing_files(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n\n")
    with pytest.raises(ConfigError, match="it holds no line"):
        read_questions(str(tmp_path / "empty"))
    with pytest.raises(ConfigError, match=r"missing can't be read: .*No such file"):
        read_questions(str(tmp_path / "missing"))


def test_a_digest_names_the_questions_not_their_file(tmp_path: Path) -> None:
    entries: list[dict[str, Any]] = [{"prompt": "x", "answer": "y"}, {"prompt": "z", "answer": "y"}]
    file = tmp_path / "q.jsonl"
    file.write_text("\n".join(map(json.dumps, entries)))
    made = make_questions(entries, "made")
    assert digest(read_questions(str(file))) == digest(made)
    assert digest(made[:1]) != digest(made)
    assert digest(make_questions([{**entries[0], "stop": ["."]}, entries[1]], "made")) != digest(made)
