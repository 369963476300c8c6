"""Answers in the form of Pydantic models, by Instructor: through a JSON schema, and through a forced call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import instructor
from options import connect
from pydantic import BaseModel


class Capital(BaseModel):
    """A capital."""

    city: Literal["Lisbon", "Madrid", "Paris"]


class Weather(BaseModel):
    """Get the weather in a city."""

    city: str


def main(arguments: Sequence[str] | None = None) -> None:
    client, model = connect(__doc__, arguments)

    def ask(form: type[BaseModel], mode: instructor.Mode, question: str) -> BaseModel:
        asking = instructor.from_openai(client, mode=mode).chat.completions
        messages = [{"role": "user", "content": question}]
        return asking.create(model=model, messages=messages, response_model=form, temperature=0, max_retries=0)

    print(repr(ask(Capital, instructor.Mode.JSON_SCHEMA, "What is the capital of Spain?")))
    print(repr(ask(Weather, instructor.Mode.TOOLS, "What is the weather in Bern?")))


if __name__ == "__main__":
    main()
