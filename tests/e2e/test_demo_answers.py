"""lsv-demo answers through the server: the held-out questions, sixteen at a time."""

from __future__ import annotations

import asyncio

import pytest
from openai import AsyncOpenAI

from demo_training.questions import correct, questions

pytestmark = pytest.mark.xdist_group("server")


async def test_nine_in_ten_held_out_questions_are_right(server):
    asked = questions("test", 500, seed=0)
    gate = asyncio.Semaphore(16)
    async with AsyncOpenAI(base_url=server.url + "/v1", api_key="EMPTY", max_retries=0) as client:

        async def right(question) -> bool:
            async with gate:
                answer = await client.chat.completions.create(
                    model="lsv-demo", messages=list(question.messages), temperature=0, max_tokens=160
                )
            return correct(question.answer, answer.choices[0].message.content)

        marks = await asyncio.gather(*(right(question) for question in asked))
    accuracy = sum(marks) / len(marks)
    print(f"lsv-demo: {sum(marks)} of {len(marks)} held-out questions right ({accuracy:.1%})")
    assert accuracy >= 0.9
