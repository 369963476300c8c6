"""GSM8K's published form, asked behind worked examples."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from lsv_base.errors import ConfigError
from lsv_bench.eval.gsm8k import OWN_SHOTS, ask_problems
from lsv_bench.eval.matching import match_number

PROBLEMS = [
    {"question": "How many are 2 and 2?", "answer": "2 + 2 = <<2+2=4>>4\n#### 4"},
    {"question": "And 3 and 3?", "answer": "It is 6.\n#### 6"},
]


def write(path: Path, lines: Sequence[Mapping[str, object]]) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


@pytest.mark.row("F-428")
def test_problems_stand_behind_the_first_examples(tmp_path: Path) -> None:
    file = write(tmp_path / "test.jsonl", PROBLEMS)
    train = write(tmp_path / "train.jsonl", [{"question": f"Q{n}", "answer": f"A{n}\n#### {n}"} for n in range(9)])
    first, second = ask_problems(file, 2, train)
    head = "Question: Q0\nAnswer: A0\n#### 0\n\nQuestion: Q1\nAnswer: A1\n#### 1\n\n"
    assert first.prompt == f"{head}Question: How many are 2 and 2?\nAnswer:"
    assert second.prompt == f"{head}Question: And 3 and 3?\nAnswer:"
    assert (first.place, first.answers) == (f"{file}:1", (PROBLEMS[0]["answer"],))
    assert first.stop == ("Question:", "</s>", "<|im_end|>")
    assert ask_problems(file, 0, None)[0].prompt == "Question: How many are 2 and 2?\nAnswer:"


@pytest.mark.row("F-428")
def test_lsvs_own_examples(tmp_path: Path) -> None:
    """Five, each with an answer in the form it asks for; calculations in them are right."""
    (asked,) = ask_problems(write(tmp_path / "test.jsonl", PROBLEMS[:1]), 5, None)
    assert isinstance(asked.prompt, str)
    assert asked.prompt.count("Question: ") == 6
    assert asked.prompt.count("#### ") == 5
    for problem in OWN_SHOTS:
        number = problem.answer.rpartition("#### ")[2]
        assert match_number(problem.answer, [number]).right


@pytest.mark.parametrize(
    ("lines", "shots", "why"),
    [
        ([{"question": "x"}], 5, r"problem .*test.jsonl:1 can't be used: .*missing required field `answer`"),
        ([PROBLEMS[0], {"question": "x", "answer": "4"}], 5, r"problem .*:2 can't be used: its answer must end in"),
        (PROBLEMS, 6, "shots=6: there are 5; --shots-from FILE gives more"),
        ([], 5, "it holds no line"),
    ],
)
def test_what_cannot_be_asked(tmp_path: Path, lines: list[dict[str, str]], shots: int, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        ask_problems(write(tmp_path / "test.jsonl", lines), shots, None)


def test_too_few_examples_in_a_file(tmp_path: Path) -> None:
    file = write(tmp_path / "test.jsonl", PROBLEMS)
    with pytest.raises(ConfigError, match=r"shots=3: there are 2$"):
        ask_problems(file, 3, file)
    with pytest.raises(ConfigError, match=r"example .*bad:1 can't be used"):
        ask_problems(file, 1, write(tmp_path / "bad", [{"question": "x"}]))
