"""Answers keep to a form on an emulated Gaudi, whose steps run ahead of the tokens they draw."""

from __future__ import annotations

import json
import re

import pytest

from lsv import LLM, SamplingParams, StructuredOutputsParams

SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 22]}}, "required": ["n"], "additionalProperties": False}


@pytest.mark.row("F-172")
def test_answers_keep_to_their_form() -> None:
    forms = [{"regex": r"\d{3}-\d{2}"}, {"choice": ["yes", "no"]}, {"json": SCHEMA}]
    params = [
        SamplingParams(max_tokens=48, temperature=1.0, structured_outputs=StructuredOutputsParams(**form))
        for form in forms
    ]
    options = {"max_model_len": 256, "max_num_seqs": 4, "enforce_eager": True, "async_scheduling": True}
    with LLM("lsv-demo", platform="hpu", emulate=True, **options) as llm:
        texts = [output.outputs[0].text for output in llm.generate(["a", "b", "c"], params, use_tqdm=False)]
    assert re.fullmatch(r"\d{3}-\d{2}", texts[0])
    assert texts[1] in ("yes", "no")
    assert json.loads(texts[2])["n"] in (1, 22)
