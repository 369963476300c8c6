"""Messages get the form that their template reads: texts or parts, objects or JSON text, null or an empty text."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from lsv.text.chat_template import ChatTemplates
from lsv.text.messages import read_arguments, write_arguments
from lsv_base.errors import BadRequest

USER = {"role": "user", "content": "Weather?"}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}

JOINED = (
    "{% for m in messages %}[{{ m['role'] }}]{% if m['tool_calls'] %}{% for t in m['tool_calls'] %}"
    "{{ 'CALL ' + t['function']['name'] + ' ' + t['function']['arguments'] + ';' }}{% endfor %}"
    "{% else %}{{ m['content'] }}{% endif %}{% endfor %}"
)
ITEMS = (
    "{% for m in messages %}[{{ m.role }}]{% for t in m.tool_calls or [] %}CALL {{ t.function.name }}"
    "{% for key, value in t.function.arguments|items %} {{ key }}={{ value }}{% endfor %};{% endfor %}"
    "{{ m.content or '' }}{% endfor %}"
)
DUMPED = (
    "{% for m in messages %}[{{ m.role }}]{% for t in m.tool_calls or [] %}CALL {{ t.function.name }} "
    "{{ t.function.arguments | tojson }};{% endfor %}{{ m.content or '' }}{% endfor %}"
)
PRINTED = DUMPED.replace(" | tojson", "")
BY_NULL = (
    "{% for m in messages %}[{{ m['role'] }}]{% if m['role'] == 'assistant' and m['content'] is none %}"
    "{% for t in m['tool_calls'] %}CALL {{ t.function.name }} {{ t.function.arguments | tojson }};{% endfor %}"
    "{% elif m['content'] is not none %}{{ m['content'] }}{% endif %}{% endfor %}"
)
PRINTS_NULL = DUMPED.replace("m.content or ''", "m.content")
FAILS_ON_NULL = DUMPED.replace("m.content or ''", "'' if '</think>' in m.content else m.content")

SAYS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
ASKS_FOR_A_MARK = (
    "{% for m in messages %}{% if '</think>' in m.content %}{% endif %}{{ '<' + m.role + '>' + m.content }}{% endfor %}"
)
SPLITS = (
    "{% for m in messages %}<{{ m['role'] }}>{% if m['role'] == 'assistant' and '</think>' in m['content'] %}"
    "{% set c = m['content'].split('</think>')[-1] %}{% else %}{% set c = m['content'] %}{% endif %}"
    "{{ c | trim }}{% endfor %}"
)
IN_A_MACRO = (
    "{%- macro show(content) -%}{%- if content is string -%}{{ content }}{%- else -%}"
    "{%- for item in content -%}{{ item.text }}{%- endfor -%}{%- endif -%}{%- endmacro -%}"
    "{% for message in messages %}<{{ message.role }}>{{ show(message.content) }}{% endfor %}"
)
IN_A_LOOP = (
    "{% for message in messages %}<{{ message.role }}>{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for item in message['content'] %}{{ item['text'] }}{% endfor %}{% endif %}{% endfor %}"
)
UNDER_A_NAME = (
    "{% for message in messages %}<{{ message.role }}>{% set parts = message.content %}{% if parts is string %}"
    "{{ parts }}{% else %}{% for part in parts %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}"
)
PARTS_ALONE = "{% for m in messages %}<{{ m.role }}>{% for p in m['content'] %}{{ p['text'] }}{% endfor %}{% endfor %}"
THE_FIRST_PART = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content if m.content is string else m.content[0].text }}{% endfor %}"
)
SYSTEM_IS_TEXT = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'system' or m.content is string %}{{ m.content }}"
    "{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}"
)


def render(template: str, messages: list[dict[str, Any]], **options: Any) -> str:
    return ChatTemplates({"default": template}, {}).render(messages, add_generation_prompt=False, **options)


def call(arguments: Any = '{"city": "Bern"}', **message: Any) -> dict[str, Any]:
    function = {"name": "weather"} | ({} if arguments is ... else {"arguments": arguments})
    calls = [{"id": "call_1", "type": "function", "function": function}]
    return {"role": "assistant", "tool_calls": calls, **({"content": None} | message)}


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (JOINED, 'CALL weather {"city": "Bern"};'),
        (PRINTED, 'CALL weather {"city": "Bern"};'),
        (DUMPED, 'CALL weather {"city": "Bern"};'),
        (ITEMS, "CALL weather city=Bern;"),
    ],
    ids=["joined", "printed", "dumped", "items"],
)
@pytest.mark.parametrize("arguments", ['{"city": "Bern"}', {"city": "Bern"}], ids=["text", "object"])
def test_arguments_have_the_form_that_the_template_reads(template: str, expected: str, arguments: Any):
    assert render(template, [USER, call(arguments), RESULT]) == f"[user]Weather?[assistant]{expected}[tool]sunny"


def test_the_client_s_own_spelling_of_arguments_is_kept_where_the_template_joins_them():
    assert 'weather {"a":1,  "b": 2};' in render(JOINED, [USER, call('{"a":1,  "b": 2}'), RESULT])


@pytest.mark.parametrize("arguments", ["", " ", "null", None, ..., "{}", {}])
@pytest.mark.parametrize(
    ("template", "expected"),
    [(JOINED, "CALL weather {};"), (DUMPED, "CALL weather {};"), (ITEMS, "CALL weather;")],
    ids=["joined", "dumped", "items"],
)
def test_a_call_without_arguments(arguments: Any, template: str, expected: str):
    assert expected in render(template, [USER, call(arguments), RESULT])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ('{"city": "Be', {"city": "Be"}),
        ('{"a": "line\nbreak"}', {"a": "line\nbreak"}),
        ('{"a": 1, "b', {"a": 1}),
        ('{"a": 1, "b": tr', {"a": 1}),
        ('{"a": {"b": [1, {"c": "x\\', {"a": {"b": [1, {"c": "x"}]}}),
        ('{"a": "}", "b": "\\"', {"a": "}", "b": '"'}),
        ("{", {}),
        ('{"a": }', {"arguments": '{"a": }'}),
        ('{"a": 1} and more', {"arguments": '{"a": 1} and more'}),
        ('{"a": "\\ud83d"}', {"arguments": '{"a": "\\ud83d"}'}),
        ("not JSON", {"arguments": "not JSON"}),
        ("[1]", {"arguments": [1]}),
        ("[" * 100_000, {"arguments": "[" * 100_000}),
    ],
)
def test_arguments_that_hold_another_value_than_an_object_are_taken_back(given: str, expected: dict[str, Any]):
    assert read_arguments(given) == expected
    assert write_arguments(given) == given
    assert "CALL weather" in render(ITEMS, [USER, call(given), RESULT])


@pytest.mark.parametrize("template", [BY_NULL, DUMPED, PRINTS_NULL, FAILS_ON_NULL])
@pytest.mark.parametrize("content", [None, "", []])
def test_a_call_without_content_is_shown(template: str, content: Any):
    expected = '[user]Weather?[assistant]CALL weather {"city": "Bern"};[tool]sunny'
    assert render(template, [USER, call(content=content), RESULT]) == expected


def test_a_template_without_calls_goes_on_without_content():
    template = "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}{% endfor %}"
    assert render(template, [USER, call(), RESULT]) == "<user>Weather?<assistant><tool>sunny"


def test_an_empty_list_of_calls_is_none():
    template = "{% for m in messages %}{% if 'tool_calls' in m %}CALLS{% endif %}{{ m.content }}{% endfor %}"
    assert render(template, [USER, {"role": "assistant", "content": "Hi", "tool_calls": []}]) == "Weather?Hi"


@pytest.mark.parametrize("template", [SAYS, ASKS_FOR_A_MARK, SPLITS, IN_A_MACRO, IN_A_LOOP, UNDER_A_NAME, PARTS_ALONE])
def test_a_text_arrives_as_a_text(template: str):
    assert render(template, [{"role": "user", "content": "Hello"}]) == "<user>Hello"


@pytest.mark.parametrize("template", [IN_A_MACRO, IN_A_LOOP, UNDER_A_NAME, PARTS_ALONE])
def test_a_template_joins_parts_itself(template: str):
    messages = [{"role": "user", "content": parts("one", "two")}]
    ((expected,), _) = render_jinja_template([messages], chat_template=template)
    assert render(template, messages) == expected == "<user>onetwo"


@pytest.mark.parametrize("template", [SAYS, ASKS_FOR_A_MARK, SPLITS, THE_FIRST_PART])
def test_a_template_of_texts_gets_all_parts_as_one_text(template: str):
    assert render(template, [{"role": "user", "content": parts("one", "two")}]) == "<user>one\ntwo"


def test_the_form_is_found_for_each_role():
    messages = [{"role": "system", "content": parts("a", "b")}, {"role": "user", "content": parts("c", "d")}]
    assert render(SYSTEM_IS_TEXT, messages) == "<system>a\nb<user>cd"


TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


@pytest.mark.parametrize("begun", ["Sure", "<", "e", "end", "im", "The answer is ", "Item:\n", " ", ""])
@pytest.mark.parametrize("content", ["text", "parts"])
def test_a_prompt_ends_with_the_message_that_it_continues(begun: str, content: str):
    message = {"role": "assistant", "content": begun if content == "text" else parts("First.", begun)}
    found = render(TURNS, [USER, message], continue_final_message=True)
    assert found.endswith(f"<|im_start|>assistant\n{begun}" if content == "text" else f"First.\n{begun}")


def test_blanks_are_left_out_where_the_template_trims():
    template = TURNS.replace("m.content", "m.content | trim")
    message = {"role": "assistant", "content": "The answer is "}
    ((expected,), _) = render_jinja_template([[USER, message]], chat_template=template, continue_final_message=True)
    assert render(template, [USER, message], continue_final_message=True) == expected
    assert expected.endswith("assistant\nThe answer is")


def test_a_message_that_is_not_shown_cannot_be_continued():
    for template, content in (("{{ messages[0].content }}", "Sure"), (TURNS, [{"type": "image"}])):
        with pytest.raises(BadRequest, match="continue_final_message") as caught:
            render(template, [USER, {"role": "assistant", "content": content}], continue_final_message=True)
        assert caught.value.param == "continue_final_message"


def test_few_templates_stay_compiled():
    templates = ChatTemplates({}, {})
    for number in range(40):
        assert templates.render([USER], template=f"{number} {{{{ messages[0].content }}}}") == f"{number} Weather?"
    assert len(templates._loaded) < 20
