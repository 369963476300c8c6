"""Tools for models whose chat template has none: the description, and reading back calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lsv.text.chat_template import ChatTemplates
from lsv_api.described_tools import DescribedTools, find_described
from lsv_testing.fakes.client import FakeClient, FakeTokenizer, fake_config
from suite.sites import StartSite

TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern"}}\n</tool_call>'
TURNS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
WITHOUT_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + TURNS
HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "Compare Bern and Basel."},
    {
        "role": "assistant",
        "content": "I look them up.",
        "tool_calls": [
            {"id": str(place), "type": "function", "function": {"name": "get_weather", "arguments": {"city": city}}}
            for place, city in enumerate(("Bern", "Basel"))
        ],
    },
    {"role": "tool", "tool_call_id": "0", "content": "sunny"},
    {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "rainy"}]},
]


def find(template: str) -> DescribedTools | None:
    chat = ChatTemplates({"default": template}, {})
    return find_described(
        lambda messages, tools, prompt: chat.render(messages, tools=tools, add_generation_prompt=prompt)
    )


@pytest.mark.parametrize(
    ("template", "found"),
    [
        (TURNS, DescribedTools(to_system=True)),
        (WITHOUT_SYSTEM, DescribedTools(to_system=False)),
        (TURNS.replace("{{ m.content }}", "{{ m.content if m.role != 'system' }}"), DescribedTools(to_system=False)),
        ("{% if tools %}{{ tools | tojson }}{% endif %}" + TURNS, None),
        ("{{ raise_exception('never') }}", None),
    ],
    ids=["system messages", "no system messages", "system messages left out", "tools", "nothing"],
)
def test_only_a_template_that_ignores_tools_needs_a_description(template: str, found: DescribedTools | None) -> None:
    assert find(template) == found


def test_calls_and_results_become_text() -> None:
    written = DescribedTools(to_system=True).write(HISTORY, ())
    assert [message["role"] for message in written] == ["user", "assistant", "user"]
    assert written[1]["content"] == f"I look them up.\n{CALL}\n{CALL.replace('Bern', 'Basel')}"
    assert written[2]["content"] == (
        "<tool_response>\nsunny\n</tool_response>\n<tool_response>\nrainy\n</tool_response>"
    )
    assert all(message.keys() == {"role", "content"} for message in written)


@pytest.mark.parametrize("arguments", ["", '{"city": "Bern"}', "{cut"])
def test_arguments_that_are_a_text_stay_as_they_are(arguments: str) -> None:
    call = {"id": "0", "type": "function", "function": {"name": "f", "arguments": arguments}}
    (written,) = DescribedTools(to_system=True).write(
        [{"role": "assistant", "content": None, "tool_calls": [call]}], ()
    )
    assert written["content"] == f'<tool_call>\n{{"name": "f", "arguments": {arguments or "{}"}}}\n</tool_call>'


@pytest.mark.parametrize("role", ["system", "developer", None])
def test_the_description_ends_the_first_system_message(role: str | None) -> None:
    first = [{"role": role, "content": "Be brief."}] if role else []
    written = DescribedTools(to_system=True).write([*first, HISTORY[0]], [TOOL])
    assert [message["role"] for message in written] == [role or "system", "user"]
    assert written[0]["content"].startswith("Be brief.\nYou can" if role else "You can call these functions")
    assert json.dumps(TOOL["function"]) in written[0]["content"]
    assert written[1]["content"] == "Compare Bern and Basel."


@pytest.mark.parametrize("content", ["Hello", [{"type": "text", "text": "Hello"}]])
def test_without_system_messages_it_begins_the_first_message_of_the_user(content: Any) -> None:
    (written,) = DescribedTools(to_system=False).write([{"role": "user", "content": content}], [TOOL])
    text = written["content"] if isinstance(content, str) else "\n".join(part["text"] for part in written["content"])
    assert text.startswith("You can call")
    assert text.endswith("</tool_call>\nHello")


class Untooled(FakeTokenizer):
    """Its chat template shows no tools, calls or results."""

    def template_source(self, *given: Any, **more: Any) -> str:
        return TURNS

    def render_chat(self, messages: Any, **more: Any) -> str:
        return str(super().render_chat(messages, **{**more, "tools": None}))


def untooled(answer: str) -> FakeClient:
    client = FakeClient(fake_config(max_model_len=4096), answer=answer)
    client.tokenizer = Untooled()
    return client


async def test_a_loop_with_tools(start: StartSite, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "lsv.api")
    site = await start(untooled(CALL))
    assert "tool parser is hermes: the chat template shows no tools, so the server describes them" in caplog.text
    answer = (await site.chat(tools=[TOOL])).json()["choices"][0]
    assert answer["finish_reason"] == "tool_calls"
    assert answer["message"]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": '{"city": "Bern"}'}
    prompt = bytes(site.engine.requests[-1].prompt.ids).decode()
    assert "You can call these functions" in prompt
    assert json.dumps(TOOL["function"]) in prompt

    said = {**answer["message"], "content": None}
    result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "sunny"}
    question = {"role": "user", "content": "How is it?"}
    assert (await site.chat(messages=[question, said, result], tools=[TOOL])).status_code == 200
    prompt = bytes(site.engine.requests[-1].prompt.ids).decode()
    assert f"<assistant>{CALL}\n<user><tool_response>\nsunny\n</tool_response>" in prompt


@pytest.mark.parametrize("options", [{"tool_call_parser": "none"}, {"tool_call_parser": "mistral"}])
async def test_an_operator_s_parser_counts(start: StartSite, options: dict[str, Any]) -> None:
    site = await start(untooled("Hello"), **options)
    reply = await site.chat(tools=[TOOL])
    assert reply.status_code == (400 if options["tool_call_parser"] == "none" else 200)
    if reply.status_code == 200:
        assert "You can call" not in bytes(site.engine.requests[-1].prompt.ids).decode()


async def test_without_tools_nothing_is_described(start: StartSite) -> None:
    site = await start(untooled("Hello"))
    assert (await site.chat()).status_code == 200
    assert "You can call" not in bytes(site.engine.requests[-1].prompt.ids).decode()
