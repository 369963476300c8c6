"""Arguments of chat templates that make a harmless template expensive."""

from __future__ import annotations

import math
import resource

import pytest

from lsv.text.chat_template import ChatTemplates
from lsv_api.request_templates import are_flags
from lsv_testing.fakes.client import FakeClient, FakeTokenizer

TEMPLATES = {
    "repeats": "{{ 'x' * n }}",
    "indents": "{{ messages | tojson(indent=n) }}",
    "pads": "{{ 'x'.center(n) }}",
    "raises": "{{ 10 ** n ** n }}",
}


class Templated(FakeTokenizer):
    """Renders with Jinja, as real tokenizers do."""

    def __init__(self, template: str) -> None:
        self.template = template

    def render_chat(self, messages, *, template=None, **arguments):
        return ChatTemplates({"default": self.template}, {}).render(messages, template=template, **arguments)


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=list(TEMPLATES))
async def test_a_large_number_does_not_make_a_template_expensive(start, template: str) -> None:
    engine = FakeClient()
    engine.tokenizer = Templated(template)  # type: ignore[assignment]
    site = await start(engine, template_timeout=2.0, template_memory=96 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reply = await site.chat(chat_template_kwargs={"n": 400_000_000})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "chat_template")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, "KiB: it was rendered elsewhere"


def test_switches_and_budgets_are_flags_and_large_numbers_are_not() -> None:
    for value in (True, None, "high", "x" * 256, 0, 32768, -1, 0.5):
        assert are_flags({"n": value}), value
    for value in (10**9, -(10**9), 10**4000, 1e308, math.inf, math.nan, "x" * 257, [], {}):
        assert not are_flags({"n": value}), value
