"""Requests whose answers are known: lsv-demo's own at temperature 0, asked one by one before there is any load."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import httpx2

from demo_training.senses.held_out import questions as media_questions
from lsv_demo.held_out import draw

_CLEAR = 0.5
"""Nats between the best and the second best token from which rounding can't swap them: a batch may round otherwise
than a request alone.
"""
_LONGEST = 48
_LONG_PROMPTS = (300, 900, 2400, 4000, 5200)
"""Characters; the last is close to the model's whole context."""


@dataclass(frozen=True)
class Known:
    """A request at temperature 0, without ``stream``, and the one text that answers it."""

    path: str
    body: dict[str, Any]
    text: str

    @property
    def chat(self) -> bool:
        return self.path.endswith("chat/completions")


async def learn_answers(http: httpx2.AsyncClient, each: int, seed: int) -> list[Known]:
    """``each`` text questions, ``each`` continuations of texts of all lengths, and two questions a skill about media.

    What is not answered clearly is left out, and answers end before their first unclear token.
    """
    known = [await _learn(http, path, body) for path, body in _requests(each, seed)]
    return [one for one in known if one is not None]


def _requests(each: int, seed: int) -> list[tuple[str, dict[str, Any]]]:
    asked, text = draw(each, seed)
    rng = Random(seed)
    chats = [one["messages"] for one in asked] + [one.messages for one in media_questions(2, seed)]
    prompts = []
    for number in range(each):
        length = _LONG_PROMPTS[number % len(_LONG_PROMPTS)]
        start = rng.randrange(max(1, len(text) - length))
        prompts.append(text[start : start + length])
    return [
        *(("/v1/chat/completions", {"messages": messages, "logprobs": True, "top_logprobs": 2}) for messages in chats),
        *(("/v1/completions", {"prompt": prompt, "logprobs": 2}) for prompt in prompts),
    ]


async def _learn(http: httpx2.AsyncClient, path: str, body: dict[str, Any]) -> Known | None:
    """None where the answer is empty, or unclear from its first token on."""
    reply = await http.post(path, json={**body, "temperature": 0, "max_tokens": _LONGEST})
    if reply.status_code == 400:
        return None  # a text that is longer than the model's context
    choice = reply.raise_for_status().json()["choices"][0]
    clear = 0
    for margin in _margins(choice["logprobs"]):
        if margin < _CLEAR:
            break
        clear += 1
    if clear == 0:
        return None
    asked = {name: value for name, value in body.items() if "logprobs" not in name}
    asked |= {"temperature": 0, "max_tokens": clear}
    text = text_of((await http.post(path, json=asked)).raise_for_status().json()["choices"][0])
    return Known(path, asked, text) if text else None


def _margins(logprobs: dict[str, Any]) -> list[float]:
    """How much likelier than the next best each token was."""
    if "content" in logprobs:
        tops = [[one["logprob"] for one in token["top_logprobs"]] for token in logprobs["content"]]
    else:
        tops = [list(position.values()) for position in logprobs["top_logprobs"]]
    return [best[0] - best[1] if len(best) > 1 else 0.0 for best in (sorted(top, reverse=True) for top in tops)]


def text_of(choice: dict[str, Any]) -> str:
    """A choice's text, of a chat or a completion."""
    return str(choice["message"]["content"] if "message" in choice else choice["text"])
