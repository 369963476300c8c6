"""What ``lsv eval lsv-demo`` measures on: the same each time, and nothing that was trained on."""

from itertools import islice
from random import Random

import pytest

from demo_training.question import split_of
from demo_training.questions import stream
from demo_training.skills import SKILLS
from demo_training.template import END_OF_TEXT
from demo_training.write_held_out import contents
from lsv_base.errors import ConfigError
from lsv_bench.eval.questions import make_questions
from lsv_demo.held_out import QUESTIONS, draw, read
from lsv_demo.plugin import lsv_model_aliases


def test_the_alias_offers_questions_of_every_skill_and_a_text() -> None:
    alias, _ = lsv_model_aliases()
    assert alias.held_out is not None
    entries, text = alias.held_out(600, 0)
    questions = make_questions(entries, alias.name)
    assert len(questions) == 600
    assert {question.category for question in questions} == set(SKILLS)
    assert text.count(END_OF_TEXT) == 600


def test_a_seed_gives_the_same_again() -> None:
    assert draw(40, 3) == draw(40, 3)
    for mine, other in zip(draw(40, 3), draw(40, 4), strict=True):
        assert mine != other


@pytest.mark.parametrize("seed", [0, 5])
def test_few_questions_are_of_many_skills(seed: int) -> None:
    entries, _ = draw(len(SKILLS), seed)
    assert {entry["category"] for entry in entries} == set(SKILLS)


@pytest.mark.parametrize("seed", [0, 5])
def test_all_there_is_can_be_drawn_and_no_more(seed: int) -> None:
    entries, text = draw(1000, seed)
    assert len({entry["key"] for entry in entries}) == 1000
    assert text.count(END_OF_TEXT) == 1000
    with pytest.raises(ConfigError, match="lsv-demo has 1000 held-out questions, not 1001: ask for fewer"):
        draw(1001, seed)


def test_every_question_is_on_the_held_out_side_of_the_split() -> None:
    assert {split_of(entry["key"]) for entry in read(QUESTIONS)} == {"test"}


def test_no_question_was_trained_on() -> None:
    trained = {question.key for question in islice(stream("train", Random(0)), 20_000)}
    assert not trained & {entry["key"] for entry in read(QUESTIONS)}


def test_the_files_are_what_the_script_writes() -> None:
    for path, text in contents().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run python -m demo_training.write_held_out"
