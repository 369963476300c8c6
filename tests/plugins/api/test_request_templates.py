"""Chat templates of requests: rendered as the tokenizer's own are, within limits, in a process without torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from lsv.text.chat_template import ChatTemplates
from lsv_api.request_templates import RequestTemplates, are_flags
from lsv_base.errors import BadRequest

MODULE = pytest.mark.asyncio(loop_scope="module")
USER = [{"role": "user", "content": "Hi"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def templates() -> AsyncIterator[RequestTemplates]:
    found = RequestTemplates(seconds=20, memory=96 << 20)
    yield found
    found.close()


async def render(templates: RequestTemplates, template: str, **changes: Any) -> str:
    given: dict[str, Any] = {
        "special_tokens": {"bos_token": "<s>"}, "add_generation_prompt": True, "documents": None, "kwargs": {},
    }  # fmt: skip
    return await templates.render(template, USER, **{**given, **changes})


@MODULE
async def test_they_are_rendered_as_others_are(templates: RequestTemplates) -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}{{ mood | tojson }}{{ documents }}"
    kwargs, documents = {"mood": ["calm"]}, [{"text": "ä"}]
    own = ChatTemplates({}, {"bos_token": "<s>"})
    expected = own.render(USER, template=template, kwargs=kwargs, documents=documents)
    assert (
        await render(templates, template, kwargs=kwargs, documents=documents)
        == expected
        == "<s>Hi[\"calm\"][{'text': 'ä'}]"
    )


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('no') }}", "the chat template refused the messages: no"),
        ("{% if %}", "the chat template refused the messages"),
        ("{{ 1 / 0 }}", "failed on the messages: ZeroDivisionError"),
        ("{{ messages.__class__() }}", "refused"),
        ("{{ '\\ud800' }}", "invalid Unicode"),
        ("{{ range(999999) }}", "refused|failed"),
        ("(" * 20_000, ""),
        ("{{" + "(" * 20_000, "refused|failed|stopped"),
        ("{% set a = 'a' * 200000000 %}x", "took more than 96 MiB of memory.*--api-template-memory-mb"),
    ],
)
@MODULE
async def test_what_goes_wrong_is_a_refusal(templates: RequestTemplates, template: str, message: str) -> None:
    if not message:
        assert await render(templates, template) == template
        return
    with pytest.raises(BadRequest, match=message):
        await render(templates, template)
    assert await render(templates, "fine") == "fine"


@MODULE
async def test_a_template_without_end_is_stopped() -> None:
    templates = RequestTemplates(seconds=1, memory=96 << 20)
    loops = "{% for i in range(99999) %}" * 3 + "{% endfor %}" * 3
    with pytest.raises(BadRequest, match=r"(took more than 1 s|used up its processor time)") as caught:
        await render(templates, loops)
    assert caught.value.param == "chat_template"
    assert await render(templates, "fine") == "fine"
    templates.close()


@pytest.mark.parametrize(
    ("kwargs", "flags"),
    [
        ({}, True),
        ({"a": True, "b": None, "c": 1, "d": 0.5, "e": "high"}, True),
        ({"a": "x" * 257}, False),
        ({"a": []}, False),
        ({"a": {}}, False),
    ],
)
def test_flags(kwargs: dict[str, Any], flags: bool) -> None:
    assert are_flags(kwargs) is flags


def test_the_process_needs_neither_torch_nor_a_tokenizer() -> None:
    heavy = ("torch", "numpy", "transformers", "tokenizers", "sanic")
    script = f"import sys, lsv_api.request_templates; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
