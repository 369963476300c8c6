"""GSM8K: word problems whose answer is a number, asked as lm_eval asks them, behind a few worked ones."""

from __future__ import annotations

import msgspec

from lsv_base.errors import ConfigError
from lsv_bench.eval.questions import Question, read_entries, refuse_line

MATCH = "number"
"""How its answers are compared."""
SHOTS = 5
"""Worked examples before each problem, unless told otherwise."""
_STOP = ("Question:", "</s>", "<|im_end|>")


class Problem(msgspec.Struct, frozen=True):
    """A line of the published files (train.jsonl, test.jsonl): ``answer`` is worked, its last line is ``#### N``."""

    question: str
    answer: str


OWN_SHOTS = (
    Problem(
        "A gardener plants 4 rows of 12 tulips. Frost kills 9 of them. How many tulips are left?",
        "The gardener plants 4 * 12 = 48 tulips.\nOf these, 48 - 9 = 39 tulips are left.\n#### 39",
    ),
    Problem(
        "A ticket costs $15 for an adult and a third of that for a child. What do 2 adults and 3 children pay?",
        "A child's ticket costs 15 / 3 = 5 dollars.\nThe adults pay 2 * 15 = 30 dollars.\n"
        "The children pay 3 * 5 = 15 dollars.\nTogether they pay 30 + 15 = 45 dollars.\n#### 45",
    ),
    Problem(
        "Mira reads 20 pages a day on weekdays and twice as many on each day of the weekend. "
        "How many days do 360 pages take her, if she begins on a Monday?",
        "On weekdays she reads 5 * 20 = 100 pages a week.\nAt the weekend she reads 2 * 40 = 80 pages.\n"
        "In a week she reads 100 + 80 = 180 pages.\n"
        "360 pages are 360 / 180 = 2 weeks, which is 2 * 7 = 14 days.\n#### 14",
    ),
    Problem(
        "A tank holds 1,500 litres and is 40% full. A pump adds 75 litres a minute. In how many minutes is it full?",
        "The tank holds 1500 * 40 / 100 = 600 litres now.\n1500 - 600 = 900 litres are missing.\n"
        "The pump takes 900 / 75 = 12 minutes.\n#### 12",
    ),
    Problem(
        "Tobin is 3 times as old as Lena. In 6 years they will be 44 years old together. How old is Tobin now?",
        "Now they are 44 - 2 * 6 = 32 years old together.\nThat is 1 + 3 = 4 times Lena's age, so she is 32 / 4 = 8.\n"
        "Tobin is 3 * 8 = 24 years old.\n#### 24",
    ),
)  # fmt: skip
"""Stand-ins for lines of the training set, written for lsv."""


def read_problems(path: str, what: str) -> list[tuple[str, Problem]]:
    """Problems and where each stands. Raises ``ConfigError`` for a file or a line in another form."""
    found = read_entries(path, what, Problem)
    for place, problem in found:
        if "#### " not in problem.answer:
            raise refuse_line(place, "its answer must end in #### and a number", what)
    return found


def ask_problems(path: str, shots: int, shots_from: str | None) -> list[Question]:
    """The file's problems, each behind the first ``shots`` of ``shots_from``, or of lsv's own.

    All prompts begin with the same text, which the engine's prefix cache computes once. Raises ``ConfigError``.
    """
    worked = [problem for _, problem in read_problems(shots_from, "shots_from")] if shots_from else list(OWN_SHOTS)
    if shots > len(worked):
        wanted = "" if shots_from else "; --shots-from FILE gives more, such as GSM8K's train.jsonl"
        raise ConfigError(f"shots={shots}: there are {len(worked)}{wanted}", param="shots")
    head = "".join(f"{_asked(problem)} {problem.answer}\n\n" for problem in worked[:shots])
    return [
        Question(place=place, prompt=head + _asked(problem), answers=(problem.answer,), stop=_STOP)
        for place, problem in read_problems(path, "gsm8k")
    ]


def _asked(problem: Problem) -> str:
    return f"Question: {problem.question}\nAnswer:"
