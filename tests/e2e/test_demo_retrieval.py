"""lsv-demo finds the fact that answers a question it was not trained on, among nine others, by their vectors."""

from collections.abc import Sequence
from random import Random

import pytest

from lsv import LLM
from lsv_demo.held_out import QUESTIONS, read

KINDS = ("people", "towns", "animals", "things", "capitals")


def questions() -> list[tuple[str, str, str]]:
    """Kind, question and fact of the held-out questions that ask for a fact in one turn."""
    return [
        (one["category"], one["messages"][0]["content"], one["answer"])
        for one in read(QUESTIONS)
        if one["category"] in KINDS and len(one["messages"]) == 1
    ]


@pytest.fixture(scope="module")
def vectors() -> dict[str, Sequence[float]]:
    """By text, the vector of each question and fact."""
    texts = sorted({text for _, question, fact in questions() for text in (question, fact)})
    with LLM("lsv-demo", num_gpu_blocks_override=256) as llm:
        outputs = llm.embed(texts, use_tqdm=False)
    return {text: output.checked().outputs.embedding for text, output in zip(texts, outputs, strict=True)}


@pytest.mark.parametrize(("alike", "least"), [(False, 0.95), (True, 0.85)])
def test_a_question_finds_its_fact_among_ten(alike, least, vectors):
    """The nine others are any, or of the same kind as far as there are so many."""
    asked = questions()
    facts = sorted({(kind, fact) for kind, _, fact in asked})
    rng = Random(0)
    right = 0
    for kind, question, fact in asked:
        others = [other for _, other in rng.sample(facts, len(facts)) if other != fact]
        if alike:
            others.sort(key=lambda other: (kind, other) not in facts)
        documents = [fact, *others[:9]]
        scores = [sum(a * b for a, b in zip(vectors[question], vectors[one], strict=True)) for one in documents]
        right += max(range(10), key=scores.__getitem__) == 0
    print(f"{right} of {len(asked)}")
    assert right >= least * len(asked)
    assert len(asked) >= 50
