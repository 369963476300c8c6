"""lsv-demo sees, hears and watches through the server: held-out pictures, sounds and clips, a file in each chat."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from openai import AsyncOpenAI

from demo_training.question import correct
from demo_training.senses.held_out import questions

pytestmark = pytest.mark.xdist_group("server")


@pytest.mark.timeout(1200)  # emulated devices are slow
@pytest.mark.parametrize("each", [20, pytest.param(40, marks=pytest.mark.slow)])
async def test_nine_in_ten_held_out_questions_of_each_skill_are_right(server, each):
    asked = questions(each, seed=0)
    gate = asyncio.Semaphore(8)
    async with AsyncOpenAI(base_url=server.url + "/v1", api_key="EMPTY", max_retries=0) as client:

        async def right(question) -> tuple[str, bool]:
            async with gate:
                answer = await client.chat.completions.create(
                    model="lsv-demo", messages=question.messages, temperature=0, max_tokens=48
                )
            return question.skill, correct(question.answer, answer.choices[0].message.content)

        marks = await asyncio.gather(*(right(question) for question in asked))
    table = Counter(skill for skill, mark in marks if mark)
    print(", ".join(f"{skill} {count} of {each}" for skill, count in sorted(table.items())))
    assert {skill: table[skill] / each >= 0.9 for skill, _ in marks} == {skill: True for skill, _ in marks}
