"""Chat templates of invented families, each with another form of calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from lsv.text.chat_template import ChatTemplates
from lsv.text.round_trip import Write, write_answers

_VALUE = "{{ v if v is string else v | tojson }}"
_SAY = "{{ m.content or '' }}"
_EACH = "{% for c in m.tool_calls %}{% set f = c.function %}"
_ITEMS = "{% for k, v in f.arguments.items() %}"
_COMMA = "{{ ', ' if not loop.last else '' }}"
_END = "{% endfor %}"
_GIVEN = "{{ f.arguments | tojson }}"
_NAME = "{{ f.name }}"
_NEXT = "{{ ',' if not loop.last else '' }}"
_JSON = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
_ESCAPED = r"""{{ f.arguments | replace('\\', '\\\\') | replace('"', '\\"') }}"""
_QUOTED = '{{ "\'" ~ v ~ "\'" if v is string else v if v is number or v is boolean else v | tojson }}'


class Form(NamedTuple):
    """The source that writes all calls of an answer."""

    calls: str
    raw: bool = False
    """Whether texts have no quotes."""
    escapes: bool = True
    """Whether any text can be written."""
    grammar: bool = True
    """Whether a grammar can enforce it."""
    opened: bool = True
    """Whether a mark distinguishes calls from text."""


FORMS: Mapping[str, Form] = {
    "an object in marks": Form(f"{_EACH}<call>\n{_JSON}\n</call>\n{_END}"),
    "a list of objects": Form(
        '<calls>[{% for c in m.tool_calls %}{"tool": "{{ c.function.name }}", "input": '
        f"{{{{ c.function.arguments | tojson }}}}}}{_COMMA}{_END}]</calls>"
    ),
    "an object within an object": Form(
        f'{_EACH}<call>{{"type": "function", "id": "{{{{ c.id }}}}", "function": {_JSON}}}</call>{_END}'
    ),
    "an object that holds all calls": Form(f'{{"tool_calls": [{_EACH}{_JSON}{_COMMA}{_END}]}}'),
    "arguments before the name": Form(
        f'{_EACH}<call>{{"input": {_GIVEN}, "tool": "{_NAME}"}}</call>{_END}'
    ),
    "arguments as a text": Form(
        f'{_EACH}<call>{{"name": "{_NAME}", "arguments": "{_ESCAPED}"}}</call>{_END}',
        grammar=False,
    ),
    "the name as a key": Form(f'{_EACH}<call>{{"{_NAME}": {_GIVEN}}}</call>{_END}'),
    "objects without marks": Form(f"{_EACH}{_JSON}{_COMMA}{_END}", opened=False),
    "an object in a fence": Form(f"{_EACH}```call\n{_JSON}\n```\n{_END}"),
    "a name and an object": Form(f"{_EACH}<call>{_NAME}<with>{_GIVEN}</call>{_END}"),
    "a name with a number": Form(
        f"<calls>{_EACH}<call>tools.{_NAME}:{{{{ loop.index0 }}}}<with>{_GIVEN}<end>"
        "{% endfor %}</calls>"
    ),
    "an id before the name": Form(
        f"{_EACH}<call>{{{{ c.id }}}}<name>{_NAME}<with>{_GIVEN}<end>{_END}"
    ),
    "words": Form(
        f"{_EACH}Action: {_NAME}\nAction Input: {_GIVEN}\n{_END}"
    ),
    "tags": Form(
        f'{_EACH}<do name="{_NAME}">{_ITEMS}<put key="{{{{ k }}}}">{_VALUE}</put>{_END}</do>{_END}',
        raw=True,
    ),
    "tags on lines in a group": Form(
        f"<calls>\n{_EACH}<do={_NAME}>\n{_ITEMS}<put={{{{ k }}}}>\n{_VALUE}\n</put>\n{_END}</do>\n"
        "{% endfor %}</calls>",
        raw=True,
    ),
    "tags on lines in marks of their own": Form(
        f"{_EACH}<call>\n<do={_NAME}>\n{_ITEMS}<put={{{{ k }}}}>\n{_VALUE}\n</put>\n{_END}</do>\n"
        "</call>\n{% endfor %}",
        raw=True,
    ),
    "tags for keys and tags for values": Form(
        f"{_EACH}<call>{_NAME}\n{_ITEMS}<key>{{{{ k }}}}</key>\n<value>{_VALUE}</value>\n{_END}</call>"
        "{% endfor %}",
        raw=True,
    ),
    "tags that say what a text is": Form(
        f'{_EACH}<do name="{_NAME}">{_ITEMS}<put key="{{{{ k }}}}" type="'
        "{{ 'text' if v is string else 'json' }}"
        f'">{_VALUE}</put>{_END}</do>{_END}',
        raw=True,
    ),
    "python": Form(
        f"<py>[{_EACH}{_NAME}({_ITEMS}{{{{ k }}}}={_QUOTED}{_COMMA}{_END}){_COMMA}{_END}]</py>",
        escapes=False,
    ),
    "keys without quotes": Form(
        f"{_EACH}<call>call:{{{{ f.name ~ '{{' }}}}{_ITEMS}{{{{ k }}}}:"
        "{{ '<q>' ~ v ~ '<q>' if v is string else v | tojson }}"
        f"{_NEXT}{_END}{{{{ '}}' }}}}</call>{_END}"
    ),
}  # fmt: skip


def template(calls: str, thoughts: str = "") -> str:
    return (
        "{% for m in messages %}<|{{ m.role }}|>"
        + (f"{{% if m.reasoning_content %}}{thoughts}{{% endif %}}" if thoughts else "")
        + _SAY
        + "{% if m.tool_calls %}"
        + calls
        + "{% endif %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )


def writer(source: str) -> Write:
    chat = ChatTemplates({"default": source}, {})

    def render(messages: Any, tools: Any, prompt: bool) -> str:
        return chat.render(messages, tools=tools, add_generation_prompt=prompt)

    return lambda cases, schemas: write_answers(render, cases, schemas)
