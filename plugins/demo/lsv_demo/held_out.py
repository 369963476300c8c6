"""What `lsv eval lsv-demo` measures on: questions that were not trained on, and a text of such conversations."""

from random import Random
from typing import Any

from lsv_demo.chat import dress
from lsv_demo.corpus import answered, chat_document
from lsv_demo.questions import as_record, stream
from lsv_demo.questions import questions as draw_questions
from lsv_demo.template import END_OF_TEXT


def questions(count: int, seed: int) -> list[dict[str, Any]]:
    """`count` held-out questions over all skills."""
    return [as_record(question) for question in draw_questions("test", count, seed)]


def text(conversations: int, seed: int) -> str:
    """Held-out conversations with their answers as the model was trained on others, one after another."""
    rng = Random(f"held-out text {seed}")
    source = stream("test", rng, late=True)
    documents = (chat_document(answered(dress(next(source), rng))) for _ in range(conversations))
    return "".join("".join(piece for piece, _ in document) + END_OF_TEXT for document in documents)
