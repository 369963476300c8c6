"""Beam search over HTTP: its fields reach the engine, and what it can't do is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

FIELDS = {"use_beam_search": True, "n": 2, "best_of": 4, "length_penalty": 0.5, "early_stopping": "never"}


@pytest.mark.row("F-134")
@pytest.mark.row("F-138")
@pytest.mark.row("F-139")
@pytest.mark.parametrize("route", ["chat", "complete"])
async def test_fields_reach_the_engine(site: Any, route: str) -> None:
    site.engine.answers = {0: "best", 1: "good"}
    body = (await getattr(site, route)(**FIELDS, temperature=0)).json()
    texts = [choice["text"] if route == "complete" else choice["message"]["content"] for choice in body["choices"]]
    assert texts == ["best", "good"]
    params = site.engine.requests[0].sampling
    assert (params.use_beam_search, params.length_penalty, params.early_stopping) == (True, 0.5, "never")
    assert (params.n, params.beam_width, params.candidates) == (2, 4, 2)


async def test_what_a_checkpoint_recommends_for_drawing_is_left_out(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    recommended = {"temperature": 0.6, "top_p": 0.9, "top_k": 20}
    monkeypatch.setattr(type(site.engine.tokenizer), "sampling_defaults", recommended)
    assert (await site.complete(use_beam_search=True, n=2)).status_code == 200
    params = site.engine.requests[0].sampling
    assert (params.temperature, params.top_p, params.top_k) == (1.0, 1.0, -1)


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"stream": True}, "use_beam_search"),
        ({"temperature": 0.7}, "temperature"),
        ({"top_p": 0.5}, "top_p"),
        ({"logit_bias": {"1": 5}}, "logit_bias"),
        ({"allowed_token_ids": [1]}, "allowed_token_ids"),
        ({"bad_words": ["x"]}, "bad_words"),
        ({"guided_regex": "a+"}, "guided_regex"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"early_stopping": "soon"}, "early_stopping"),
        ({"length_penalty": 1e9}, "length_penalty"),
        ({"n": 4, "best_of": 2}, "best_of"),
        ({"use_beam_search": False, "length_penalty": 2}, "length_penalty"),
    ],
)
async def test_what_does_not_go_with_it_is_refused(site: Any, given: dict[str, Any], param: str) -> None:
    reply = await site.complete(**{"use_beam_search": True, **given})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
