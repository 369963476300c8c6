"""What ``lsv eval lsv-demo`` measures on: the same each time, and nothing that was trained on."""

from itertools import islice
from random import Random

from lsv_bench.eval.questions import make_questions
from lsv_demo import held_out
from lsv_demo.plugin import lsv_model_aliases
from lsv_demo.questions import stream
from lsv_demo.skills import SKILLS
from lsv_demo.template import END_OF_TEXT


def test_the_alias_offers_questions_of_every_skill_and_a_text() -> None:
    (alias,) = lsv_model_aliases()
    assert alias.held_out is not None
    entries, text = alias.held_out(600, 0)
    questions = make_questions(entries, alias.name)
    assert len(questions) == 600
    assert {question.category for question in questions} == set(SKILLS)
    assert text.count(END_OF_TEXT) == 600


def test_a_seed_gives_the_same_again() -> None:
    assert (held_out.questions(40, 3), held_out.text(40, 3)) == (held_out.questions(40, 3), held_out.text(40, 3))
    assert held_out.questions(40, 3) != held_out.questions(40, 4)
    assert held_out.text(40, 3) != held_out.text(40, 4)


def test_no_question_was_trained_on() -> None:
    trained = {question.key for question in islice(stream("train", Random(0)), 20_000)}
    assert not trained & {entry["key"] for entry in held_out.questions(600, 0)}
