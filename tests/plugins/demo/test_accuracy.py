"""The shipped checkpoint answers held-out questions right, run by transformers."""

from collections.abc import Iterator

import pytest
import torch
import transformers

from demo_training.evaluate import accuracy, answers, score, show
from demo_training.questions import questions
from lsv_demo import CHECKPOINT


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("two_threads")
def test_nine_of_ten_held_out_questions_are_answered() -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.bfloat16).eval()
    asked = questions("test", 600, 0)
    table = score(asked, answers(model, transformers.AutoTokenizer.from_pretrained(CHECKPOINT), asked))
    assert accuracy(table) >= 0.90, show(table)
