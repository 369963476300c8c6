"""An impossible or empty form is refused, because an answer without the form would be silently wrong."""

from typing import Any

import pytest

from lsv.grammars.grammar import Vocabulary
from lsv.request.structured import StructuredOutputsParams
from lsv_api.openai.structured import structured_params
from lsv_api.records.requests import GenerationRequest
from lsv_base.errors import BadRequest
from lsv_guidance.backend import GuidanceBackend

EMPTY = [
    {"guided_choice": []}, {"guided_json": ""}, {"guided_regex": ""}, {"guided_grammar": ""},
    {"structured_outputs": {"choice": []}}, {"structured_outputs": {"json": ""}},
    {"structured_outputs": {"regex": ""}}, {"structured_outputs": {"grammar": ""}},
    {"structured_outputs": {"structural_tag": ""}},
]  # fmt: skip


@pytest.mark.parametrize("fields", EMPTY, ids=str)
def test_an_empty_form_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as caught:
        structured_params(GenerationRequest(**fields))
    assert caught.value.param == next(iter(fields))


def test_a_schema_without_values_is_refused() -> None:
    tokens = [bytes([byte]) for byte in range(256)]
    backend = GuidanceBackend(Vocabulary([*tokens, b""], frozenset({256}), (256,), lambda text: list(text.encode())))
    with pytest.raises(BadRequest, match="no value of finite size satisfies this schema"):
        backend.compile(StructuredOutputsParams(json=False))  # type: ignore[arg-type]


def test_a_schema_that_all_values_satisfy_is_followed() -> None:
    for fields in ({"guided_json": {}}, {"structured_outputs": {"json": True}}, {"structured_outputs": {"json": {}}}):
        found = structured_params(GenerationRequest(**fields))  # type: ignore[arg-type]
        assert found is not None
        assert found.form == "json"
