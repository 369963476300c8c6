"""What form an answer must have, as users say it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lsv.request.params import SamplingParams
from lsv.request.structured import MAX_CHOICES, MAX_SIZE, GuidedDecodingParams, StructuredOutputsParams
from lsv_base.errors import BadRequest


class Model:
    """What pydantic's models can do."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return {"type": "object", "properties": {"b": {}, "a": {}}}


@pytest.mark.row("F-166")
@pytest.mark.parametrize("schema", [Model, Model.model_json_schema(), json.dumps(Model.model_json_schema())])
def test_a_schema_is_kept_as_text_in_its_order(schema: Any):
    asked = StructuredOutputsParams(json=schema)
    assert asked.form == "json"
    assert list(json.loads(asked.text)["properties"]) == ["b", "a"]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "exactly one"),
        ({"json": "{}", "regex": "a"}, "json and regex"),
        ({"json_object": True, "choice": ["a"]}, "json_object and choice"),
        ({"json": 3}, "must be a string"),
        pytest.param({"json": {"a": object()}}, "is not a JSON schema", id="json-object"),
        ({"regex": 3}, "must be a string"),
        ({"choice": "ab"}, "list of strings"),
        ({"choice": []}, "at least one"),
        ({"choice": ["a", ""]}, "no empty strings"),
        ({"choice": ["a", 1]}, "no empty strings"),
        ({"choice": [str(number) for number in range(MAX_CHOICES + 1)]}, "over the limit of"),
        ({"regex": "a" * (MAX_SIZE + 1)}, "over the limit of"),
        ({"json_object": 1}, "true or false"),
        ({"regex": "a", "whitespace_pattern": " "}, "whitespace_pattern"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_unclear_is_refused(given: dict[str, Any], why: str):
    with pytest.raises(BadRequest, match=why):
        StructuredOutputsParams(**given)


def test_both_names_are_one():
    form = GuidedDecodingParams(choice=["a", "b", "a"])
    old, new = SamplingParams(guided_decoding=form), SamplingParams(structured_outputs=form)
    assert old == new
    assert old.structured_outputs is not None
    assert old.structured_outputs.choice == ("a", "b")
    assert old.replace(n=2, temperature=0.5).structured_outputs == form
    with pytest.raises(BadRequest, match="give one"):
        SamplingParams(guided_decoding=form, structured_outputs=form)
    with pytest.raises(BadRequest, match="StructuredOutputsParams"):
        SamplingParams(structured_outputs={"json": "{}"})  # type: ignore[arg-type]
