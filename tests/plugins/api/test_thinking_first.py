"""Forms and budgets of answers that think first: what chat requests ask the engine for, and how answers are read."""

from __future__ import annotations

from typing import Any

import pytest

from lsv.request.thinking import Thinking
from lsv.settings.structured import enable_in_reasoning, grammar_backend
from lsv_base.errors import ConfigError
from lsv_testing.fakes.client import FakeClient, FakeTokenizer

FORM = {"response_format": {"type": "json_object"}}
CLOSED = {"add_generation_prompt": False, "continue_final_message": True}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


class Switched(FakeTokenizer):
    """Its template has a switch for thinking that is on unless a request turns it off."""

    default = True

    def render_chat(self, messages: Any, *, kwargs: Any = None, **options: Any) -> str:
        on = (kwargs or {}).get("enable_thinking", self.default)
        return ("" if on == self.default else "<switched>") + super().render_chat(messages, **options)


class SwitchedOff(Switched):
    """One whose switch is off unless a request turns it on."""

    default = False


async def serve(
    start, answer='<think>\nHm.\n</think>\n\n{"a": 1}', parser="qwen3", template=Switched, **options: Any
) -> Any:
    engine = FakeClient(answer=answer)
    engine.tokenizer = template()
    return await start(engine, reasoning_parser=parser, **options)


def ending(text: str) -> dict[str, Any]:
    """A conversation whose prompt ends like this."""
    return {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": text}], **CLOSED}


@pytest.mark.parametrize(("parser", "open"), [("qwen3", False), ("deepseek_r1", True)])
async def test_a_form_holds_from_the_end_of_the_thoughts_on(start, parser: str, open: bool):
    site = await serve(start, parser=parser)
    message = (await site.chat(**FORM)).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", '{"a": 1}')
    assert site.engine.requests[-1].thinking == Thinking(begins=("<think>",), ends=("</think>",), open=open)
    await site.chat()
    assert site.engine.requests[-1].thinking is None, "without a form nobody needs to know"


async def test_beams_have_no_budget_of_thoughts(start):
    site = await serve(start)
    reply = await site.chat(use_beam_search=True, n=2, thinking_token_budget=3)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "thinking_token_budget")
    assert (await site.chat(use_beam_search=True, n=1)).status_code == 200


async def test_it_holds_at_once_where_the_prompt_has_ended_the_thoughts(start):
    site = await serve(start, answer='{"a": 1}', parser="deepseek_r1")
    message = (await site.chat(**FORM, **ending("<think>\n\n</think>"))).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == (None, '{"a": 1}')
    assert site.engine.requests[-1].thinking is None
    await site.chat(**FORM, **ending("<think>"))
    assert site.engine.requests[-1].thinking.open


ON, OFF = ({"chat_template_kwargs": {"enable_thinking": on}} for on in (True, False))


@pytest.mark.parametrize(
    ("template", "body", "thinks"),
    [
        (Switched, {}, True),
        (Switched, ON, True),
        (Switched, OFF, False),
        (Switched, {"reasoning_effort": "none"}, False),
        (Switched, {"reasoning_effort": "high"}, True),
        (SwitchedOff, {}, False),
        (SwitchedOff, ON, True),
        (SwitchedOff, OFF, False),
        (SwitchedOff, {"reasoning_effort": "high"}, True),
    ],
)
@pytest.mark.parametrize(
    "form", [FORM, {"guided_regex": "a"}, {"tools": [TOOL], "tool_choice": "required"}], ids=["json", "regex", "call"]
)
async def test_a_form_makes_no_answer_think_that_would_not(start, template, body, thinks: bool, form):
    site = await serve(start, template=template)
    assert (await site.chat(**form, **body)).status_code == 200
    assert (site.engine.requests[-1].thinking is not None) is thinks


async def test_an_answer_without_thoughts_is_read_as_one(start):
    site = await serve(start, answer='{"a": "</think>"}', parser="deepseek_r1")
    message = (await site.chat(**FORM, **OFF)).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == (None, '{"a": "</think>"}')


async def test_thoughts_that_the_prompt_has_opened_go_on(start):
    site = await serve(start)
    await site.chat(**FORM, **ending("<think>"), **OFF)
    assert site.engine.requests[-1].thinking.open


async def test_a_model_that_always_thinks_does_so_unless_it_is_told_not_to(start):
    site = await serve(start, template=SwitchedOff, parser="deepseek_r1")
    await site.chat(**FORM)
    assert site.engine.requests[-1].thinking.open
    await site.chat(**FORM, **OFF)
    assert site.engine.requests[-1].thinking is None


async def test_an_operator_lets_it_hold_for_thoughts_too(start):
    site = await serve(start, answer='{"a": 1}', parser="deepseek_r1", enable_in_reasoning=True)
    message = (await site.chat(**FORM)).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == (None, '{"a": 1}')
    assert site.engine.requests[-1].thinking is None


async def test_calls_that_are_required_come_after_the_thoughts(start):
    site = await serve(start, answer='<think>Hm.</think>[{"name": "add", "parameters": {}}]')
    message = (await site.chat(tools=[TOOL], tool_choice="required")).json()["choices"][0]["message"]
    assert message["reasoning_content"] == "Hm."
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["add"]
    site.engine.answer = "<think>Hm.</think>{}"
    named = {"type": "function", "function": {"name": "add"}}
    message = (await site.chat(tools=[TOOL], tool_choice=named)).json()["choices"][0]["message"]
    assert message["reasoning_content"] == "Hm."
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == ["{}"]
    assert site.engine.requests[-1].thinking is not None


@pytest.mark.row("F-132")
async def test_a_budget_of_thoughts_reaches_the_engine(start):
    site = await serve(start)
    await site.chat(thinking_token_budget=7)
    assert site.engine.requests[-1].thinking == Thinking(begins=("<think>",), ends=("</think>",), budget=7)
    await site.chat(thinking_token_budget=7, **ending("<think></think>"))
    assert site.engine.requests[-1].thinking is None, "nothing is thought"
    await site.chat(thinking_token_budget=-1)
    assert site.engine.requests[-1].thinking is None
    refused = await site.chat(thinking_token_budget=-2)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "thinking_token_budget")


async def test_a_budget_needs_a_parser(start, site):
    refused = await site.chat(thinking_token_budget=7)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "thinking_token_budget")
    assert "--reasoning-parser" in refused.json()["error"]["message"]
    assert (await site.complete(thinking_token_budget=7)).status_code == 400


def test_the_option_of_many_parts():
    given = {
        "guided_decoding_backend": "auto",
        "structured_outputs_config": {"backend": "x", "enable_in_reasoning": True},
    }
    assert (grammar_backend(given), enable_in_reasoning(given)) == ("x", True)
    for wrong, why in (
        ({"backend": 3}, "backend must be a name"),
        ({"enable_in_reasoning": "yes"}, "true or false"),
        ({"disable_any_whitespace": True}, "not available"),
        ({"reasoning_parser": "qwen3"}, "--reasoning-parser"),
        ({"surprise": 1}, "unknown key 'surprise'"),
        ([], None),
        ("x", "JSON object"),
    ):
        settings = {"guided_decoding_backend": "guidance", "structured_outputs_config": wrong}
        if why is None:
            assert grammar_backend(settings) == "guidance"
            continue
        with pytest.raises(ConfigError, match=why):
            grammar_backend(settings)
