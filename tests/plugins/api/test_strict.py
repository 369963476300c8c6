"""Grammars of answers that may have strict calls: what they let through, in every form that has one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest
from torch import Tensor

from lsv import LLM, SamplingParams
from lsv.errors import BadRequest
from lsv.grammars.grammar import Vocabulary
from lsv.offers import CallForm
from lsv.request.structured import StructuredOutputsParams
from lsv.testing.fakes.client import FakeClient
from lsv_api.openai.strict import strict_grammar
from lsv_api.openai.tools import forced_schema
from lsv_guidance.backend import GuidanceBackend
from lsv_parsers.plugin import lsv_tool_parsers

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
END = 256


class Bytes:
    """A token for each byte, and one for each special text."""

    def __init__(self, *special: str) -> None:
        self.special = {text: END + 1 + index for index, text in enumerate(special)}
        self.special_ids = frozenset(self.special.values())

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        ids: list[int] = []
        while text:
            mark = next((mark for mark in self.special if text.startswith(mark)), None)
            ids += [self.special[mark]] if mark else list(text[0].encode())
            text = text[len(mark) if mark else 1 :]
        return ids

    def token_text(self, token: int) -> str:
        return bytes([token]).decode()

    @property
    def vocabulary(self) -> Vocabulary:
        tokens = (*(bytes([byte]) for byte in range(256)), b"<end>", *(text.encode() for text in self.special))
        return Vocabulary(
            tokens=tokens, eos=(END,), special=self.special_ids | {END}, encode=lambda text: list(text.encode())
        )


def allows(tokenizer: Bytes, asked: StructuredOutputsParams, text: str) -> bool:
    """Whether an answer may be this text, and nothing more."""
    backend = GuidanceBackend(tokenizer.vocabulary)
    matcher = backend.compile(asked).begin()
    for token in (*tokenizer.encode(text), END):
        if matcher.finished:
            return token == END
        row = memoryview(bytearray(4 * -(-len(tokenizer.vocabulary.tokens) // 32))).cast("I")
        matcher.fill(row)
        if not row[token // 32] >> token % 32 & 1:
            return False
        assert matcher.accept([token])
    return True


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
    tokenizer = Bytes(*(offer.marks if special else ()), "<think>")
    grammar = strict_grammar(form, FUNCTIONS, tokenizer, [*offer.marks, "<think>"])  # type: ignore[arg-type]
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
        assert allows(tokenizer, asked, text), text
    assert allows(tokenizer, asked, written(form, "other", '{"any": ["thing"]}'))
    for text in (wrong, f"Hi {wrong}", f"{good}{wrong}", written(form, "nobody", "{}"), form.open, f"{form.open} no"):
        assert not allows(tokenizer, asked, text), text
    assert not allows(tokenizer, asked, written(form, "point", '{"at": 3, "x": 1}'))


def test_mistral_s_calls_have_two_forms() -> None:
    tokenizer = Bytes("[TOOL_CALLS]", "[ARGS]")
    grammar = strict_grammar(FORMS["mistral"], FUNCTIONS, tokenizer, ())  # type: ignore[arg-type]
    for arguments, fine in (('{"at": 3}', True), ('{"at": ""}', False)):
        for call in (f"point[ARGS]{arguments}", f'[{{"name": "point", "arguments": {arguments}}}]'):
            assert allows(tokenizer, StructuredOutputsParams(grammar=grammar), f"Hm. [TOOL_CALLS]{call}") == fine


def test_what_a_schema_refers_to_in_itself_is_found_where_calls_are_forced() -> None:
    asked = StructuredOutputsParams(json=json.dumps(forced_schema(FUNCTIONS, None)))
    assert allows(Bytes(), asked, '[{"name": "point", "parameters": {"at": 3}}]')
    assert not allows(Bytes(), asked, '[{"name": "point", "parameters": {"at": -3}}]')


def test_what_no_grammar_can_follow_is_refused() -> None:
    schema = {"type": "object", "properties": {"a": {"uniqueItems": True}}}
    grammar = strict_grammar(FORMS["hermes"], {"f": schema}, Bytes(), ())  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match="uniqueItems"):
        GuidanceBackend(Bytes().vocabulary).compile(StructuredOutputsParams(grammar=grammar))


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

        form = StructuredOutputsParams(grammar=strict_grammar(FORMS["hermes"], {"go": schema}, tokenizer, ()))
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
    assert "strict functions are held to their schemas where a call is forced, not with tool_choice auto" in caplog.text
    assert (await site.chat(tools=[tool("point", strict=True)])).status_code == 200
    assert site.engine.requests[-1].sampling.structured_outputs is None
    assert (await site.chat(tools=[tool("point", strict=True)], tool_choice="required")).status_code == 200
    assert site.engine.requests[-1].sampling.structured_outputs is not None
