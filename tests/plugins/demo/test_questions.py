"""The question maker: the same seed gives the same questions, and nothing held out is trained on."""

from itertools import islice
from random import Random

import pytest

from demo_training.facts import FACTS
from demo_training.question import correct, split_of
from demo_training.questions import questions, stream
from demo_training.skills import SKILLS


def test_same_seed_gives_same_questions() -> None:
    assert questions("test", 300, 7) == questions("test", 300, 7)
    assert questions("test", 300, 7) != questions("test", 300, 8)


def test_held_out_set_is_large_distinct_and_covers_every_skill() -> None:
    held_out = questions("test", 600, 0)
    assert len({question.key for question in held_out}) == 600
    assert {question.skill for question in held_out} == set(SKILLS)


def test_splits_share_no_key() -> None:
    trained = {question.key for question in islice(stream("train", Random(0)), 20_000)}
    held_out = {question.key for question in islice(stream("test", Random(0)), 5_000)}
    assert not trained & held_out


@pytest.mark.parametrize("skill", ["people", "add", "translate", "repeat"])
def test_splits_share_no_wording(skill: str) -> None:
    """What the user says last, not only its key, is on one side for single questions."""
    trained = [question for question in islice(stream("train", Random(1)), 20_000) if question.skill == skill]
    held_out = [question for question in islice(stream("test", Random(1)), 5_000) if question.skill == skill]
    said = {question.messages[-1]["content"] for question in trained}
    assert not said & {question.messages[-1]["content"] for question in held_out}


def test_sums_are_held_out_in_both_orders() -> None:
    for question in questions("test", 900, 0):
        if question.skill == "add":
            low, high = sorted(map(int, question.key.split("|")[1].split()))
            assert split_of(f"add|{low} {high}") == "test"


def test_every_fact_is_trained_in_some_phrasing() -> None:
    for fact in FACTS:
        assert any(split_of(fact.key(ask)) == "train" for ask in fact.asks), fact


def test_answers_are_settled_by_their_questions() -> None:
    answers: dict[str, str] = {}
    for question in islice(stream("train", Random(2)), 20_000):
        asked = "\n".join(f"{message['role']}: {message['content']}" for message in question.messages)
        assert answers.setdefault(asked, question.answer) == question.answer, asked


def test_every_conversation_ends_with_the_user() -> None:
    for question in questions("test", 600, 3):
        roles = [message["role"] for message in question.messages]
        assert roles[-1] == "user"
        assert "system" not in roles[1:]


def test_correct_is_exact_but_for_space_around() -> None:
    assert correct("Mira lives in Lorn.", " Mira lives in Lorn.\n")
    assert not correct("Mira lives in Lorn.", "Mira lives in Pell.")
    assert not correct("Mira lives in Lorn.", "Mira lives in Lorn. She")
