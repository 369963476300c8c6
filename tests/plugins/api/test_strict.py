"""Grammars of answers that may have strict calls: what they let through, in every form that has one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest
from torch import Tensor

from lsv import LLM, SamplingParams
from lsv.offers import CallForm
from lsv.request.structured import StructuredOutputsParams
from lsv_api.call_grammars import JsonCallGrammar, strict_grammar
from lsv_api.openai.tools import forced_schema
from lsv_base.errors import BadRequest
from lsv_guidance.backend import GuidanceBackend
from lsv_parsers.plugin import lsv_tool_parsers
from lsv_testing.fakes.client import FakeClient
from lsv_testing.grammars.marked import MarkedBytes, allows

POINT = {
    "type": "object",
    "description": 'a ::= "b"\nstart: %json 𝛼',
    "properties": {"at": {"$ref": "#/$defs/at"}},
    "required": ["at"],
    "additionalProperties": False,
    "$defs": {"at": {"type": "integer", "minimum": 0}},
}
FUNCTIONS: dict[str, Mapping[str, Any]] = {"point": POINT, "other": {"type": "object"}}
FORMS = {offer.name: offer.form for offer in lsv_tool_parsers() if offer.form is not None}


def follows(tokenizer: MarkedBytes, asked: StructuredOutputsParams, text: str) -> bool:
    return allows(GuidanceBackend(tokenizer.vocabulary).compile(asked), tokenizer, text)


def written(form: CallForm, name: str, arguments: str) -> str:
    """A call in its form."""
    if form.head:
        head = form.head.replace("{name}", name).replace("{index}", "0")
        return f"{form.open}{head}{arguments}{form.close}"
    call = f'{{"name": "{name}", "{form.arguments}": {arguments}}}'
    return f"{form.open}\n[{call}, {call}]\n{form.close}" if form.listed else f"{form.open}\n{call}\n{form.close}"


@pytest.mark.parametrize("special", [False, True], ids=["text", "special"])
@pytest.mark.parametrize("name", sorted(FORMS))
def test_calls_are_as_their_schemas_say_and_texts_are_free(name: str, special: bool) -> None:
    form = FORMS[name]
    (offer,) = (offer for offer in lsv_tool_parsers() if offer.name == name)
    tokenizer = MarkedBytes(*(offer.marks if special else ()), "<think>")
    grammar = strict_grammar(JsonCallGrammar(form), FUNCTIONS, tokenizer, [*offer.marks, "<think>"])  # type: ignore[arg-type]
    asked = StructuredOutputsParams(grammar=grammar)

    good, wrong = written(form, "point", '{"at": 3}'), written(form, "point", '{"at": -3}')
    for text in (
        "",
        "Hello.\n",
        "<think>so</think",
        good,
        f"<think>Well.\n{good}\n{good} That is it.",
        f"A {form.open[0]}",
    ):
        assert follows(tokenizer, asked, text), text
    assert follows(tokenizer, asked, written(form, "other", '{"any": ["thing"]}'))
    for text in (wrong, f"Hi {wrong}", f"{good}{wrong}", written(form, "nobody", "{}"), form.open, f"{form.open} no"):
        assert not follows(tokenizer, asked, text), text
    assert not follows(tokenizer, asked, written(form, "point", '{"at": 3, "x": 1}'))


def test_mistral_s_calls_have_two_forms() -> None:
    tokenizer = MarkedBytes("[TOOL_CALLS]", "[ARGS]")
    grammar = strict_grammar(JsonCallGrammar(FORMS["mistral"]), FUNCTIONS, tokenizer, ())  # type: ignore[arg-type]
    for arguments, fine in (('{"at": 3}', True), ('{"at": ""}', False)):
        for call in (f"point[ARGS]{arguments}", f'[{{"name": "point", "arguments": {arguments}}}]'):
            assert follows(tokenizer, StructuredOutputsParams(grammar=grammar), f"Hm. [TOOL_CALLS]{call}") == fine


def test_what_a_schema_refers_to_in_itself_is_found_where_calls_are_forced() -> None:
    asked = StructuredOutputsParams(json=json.dumps(forced_schema(FUNCTIONS, None)))
    assert follows(MarkedBytes(), asked, '[{"name": "point", "parameters": {"at": 3}}]')
    assert not follows(MarkedBytes(), asked, '[{"name": "point", "parameters": {"at": -3}}]')


def test_what_no_grammar_can_follow_is_refused() -> None:
    schema = {"type": "object", "properties": {"a": {"uniqueItems": True}}}
    grammar = strict_grammar(JsonCallGrammar(FORMS["hermes"]), {"f": schema}, MarkedBytes(), ())  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match="uniqueItems"):
        GuidanceBackend(MarkedBytes().vocabulary).compile(StructuredOutputsParams(grammar=grammar))


def test_a_model_s_own_calls_follow_their_schemas() -> None:
    """A processor writes what begins a call; all that comes then is the model's, under the grammar."""
    schema = {
        "type": "object",
        "properties": {"at": {"type": "integer"}, "how": {"enum": ["slow", "fast"]}},
        "required": ["at", "how"],
        "additionalProperties": False,
    }
    with LLM("lsv-demo", max_model_len=512) as llm:
        tokenizer = llm.get_tokenizer()
        opening = tokenizer.encode("Well. <tool_call>", add_special_tokens=False)

        def begin(output: list[int], logits: Tensor) -> Tensor:
            if len(output) < len(opening):
                logits[opening[len(output)]] = 1e4
            return logits

        form = StructuredOutputsParams(
            grammar=strict_grammar(JsonCallGrammar(FORMS["hermes"]), {"go": schema}, tokenizer, ())
        )
        params = SamplingParams(
            n=8, seed=1, max_tokens=200, stop=["</tool_call>"], logits_processors=[begin], structured_outputs=form
        )
        (output,) = llm.generate(["Go there."], params, use_tqdm=False)
    ended = [answer.text for answer in output.checked().outputs if answer.finish_reason == "stop"]
    assert len(ended) > 4
    for text in ended:
        call = json.loads(text.removeprefix("Well. <tool_call>"))
        assert call["name"] == "go"
        jsonschema.validate(call["arguments"], schema)


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": POINT, **more}}


async def test_strict_functions_of_a_request(start):
    answer = '<tool_call>\n{"name": "point", "arguments": {"at": 3}}\n</tool_call>'
    site = await start(FakeClient(answer=answer), tool_call_parser="hermes")
    for tools in ([tool("point")], [tool("point", strict=False)]):
        await site.chat(tools=tools)
        assert site.engine.requests[-1].sampling.structured_outputs is None
    reply = await site.chat(tools=[tool("point", strict=True), tool("other")])
    assert reply.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "point"
    grammar = site.engine.requests[-1].sampling.structured_outputs.grammar
    assert grammar.count('"minimum": 0') == 1, "only one of the two is strict"
    await site.chat(tools=[tool("point", strict=True)], tool_choice="none")
    assert site.engine.requests[-1].sampling.structured_outputs is None


async def test_where_strict_cannot_be_kept_the_start_says_so(start, caplog):
    with caplog.at_level("INFO", "lsv.api"):
        site = await start(FakeClient(), tool_call_parser="qwen3_coder")
    assert (
        "grammar of calls is none: with tool_choice auto, calls of strict functions may violate their schemas"
        in caplog.text
    )
    assert (await site.chat(tools=[tool("point", strict=True)])).status_code == 200
    assert site.engine.requests[-1].sampling.structured_outputs is None
    assert (await site.chat(tools=[tool("point", strict=True)], tool_choice="required")).status_code == 200
    assert site.engine.requests[-1].sampling.structured_outputs is not None
