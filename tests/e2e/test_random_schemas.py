"""Random schemas over random weights and the demo model: whatever finishes parses and validates."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from lsv import LLM, SamplingParams, StructuredOutputsParams
from lsv_testing.tiny import tiny

WORDS = ("red", "green", "ä", 'say "x"', "back\\slash", "", "line\nbreak", "𝄞")


def some_schema(draw: random.Random, depth: int = 3) -> dict[str, Any]:
    kinds = ["string", "pattern", "integer", "number", "boolean", "null", "enum", "const"]
    if depth:
        kinds += ["object", "object", "array", "anyOf", "ref"]
    kind = draw.choice(kinds)
    if kind == "string":
        return {"type": "string", "minLength": draw.randint(0, 2), "maxLength": draw.randint(2, 9)}
    if kind == "pattern":
        return {"type": "string", "pattern": draw.choice(["^[a-z]{1,5}$", r"^\d{2,3}-\d{1,2}$", "^(ab|cd)+x{0,2}$"])}
    if kind == "integer":
        low = draw.randint(-500, 500)
        return {"type": "integer", "minimum": low, "maximum": low + draw.randint(0, 2000)}
    if kind == "number":
        return {"type": "number", "minimum": draw.randint(-9, 0), "exclusiveMaximum": draw.randint(1, 99)}
    if kind == "enum":
        return {"enum": draw.sample([*WORDS, 1, -2.5, None, True, {"a": [1]}], draw.randint(1, 5))}
    if kind == "const":
        return {"const": draw.choice(WORDS)}
    if kind == "object":
        return some_object(draw, depth)
    if kind == "array":
        low = draw.randint(0, 2)
        return {
            "type": "array",
            "items": some_schema(draw, depth - 1),
            "minItems": low,
            "maxItems": low + draw.randint(0, 2),
        }
    if kind == "anyOf":
        return {"anyOf": [some_schema(draw, depth - 1) for _ in range(draw.randint(1, 3))]}
    if kind == "ref":
        return {"$ref": "#/$defs/leaf"}
    return {"type": kind}


def some_object(draw: random.Random, depth: int) -> dict[str, Any]:
    names = draw.sample(["a", "b", "long name", "ü", 'q"'], draw.randint(1, 4))
    return {
        "type": "object",
        "properties": {name: some_schema(draw, depth - 1) for name in names},
        "required": draw.sample(names, draw.randint(0, len(names))),
        "additionalProperties": draw.choice([False, False, {"type": "boolean"}]),
    }


def schemas(count: int, seed: int) -> Iterator[dict[str, Any]]:
    draw = random.Random(seed)
    for _ in range(count):
        yield {**some_schema(draw), "$defs": {"leaf": {"type": "string", "maxLength": 4}}}


def check(llm: LLM, count: int, seed: int, *, refused: str | None = None) -> None:
    """What finishes is valid. With ``refused``, a schema may be refused with that text in the reason."""
    asked = list(schemas(count, seed))
    params = [
        SamplingParams(temperature=1.0, max_tokens=300, seed=seed, structured_outputs=StructuredOutputsParams(json=one))
        for one in asked
    ]
    answers = llm.generate([f"Answer {number} " for number in range(count)], params, use_tqdm=False)
    finished = 0
    for schema, answer in zip(asked, answers, strict=True):
        if answer.error is not None:
            assert refused is not None, (schema, answer.error)
            assert refused in str(answer.error), (schema, answer.error)
            continue
        (output,) = answer.outputs
        if output.finish_reason == "stop":
            finished += 1
            jsonschema.validate(json.loads(output.text), schema, jsonschema.Draft202012Validator)
    assert finished > 0.7 * count


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("llama", tmp_path_factory.mktemp("grammars") / "llama", tokenizer=True)


@pytest.mark.row("F-166", "F-349")
def test_random_weights_keep_to_random_schemas(tiny_model: Path):
    with LLM(str(tiny_model), max_num_seqs=16) as llm:
        check(llm, 40, seed=1)


def test_so_does_the_demo_model():
    with LLM("lsv-demo", max_num_seqs=16) as llm:
        check(llm, 25, seed=2)


@pytest.mark.row("F-170")
def test_so_they_do_by_another_back_end(tiny_model: Path):
    pytest.importorskip("xgrammar")
    with LLM(str(tiny_model), max_num_seqs=16, guided_decoding_backend="xgrammar") as llm:
        check(llm, 40, seed=6, refused="is not supported")


def test_so_they_do_when_blocks_run_out(tiny_model: Path):
    options: dict[str, Any] = {"max_model_len": 256, "num_gpu_blocks_override": 18, "block_size": 16}
    schema = {"type": "array", "items": {"type": "integer", "maximum": 999}, "minItems": 12, "maxItems": 14}
    form = StructuredOutputsParams(json=schema, whitespace_pattern=" ?")
    params = SamplingParams(temperature=1.0, max_tokens=200, structured_outputs=form)
    with LLM(str(tiny_model), max_num_seqs=16, **options) as llm:
        answers = llm.generate([f"{number}, " for number in range(16)], params, use_tqdm=False)
        assert llm.stats.preemptions_total, "the pool was not small enough to preempt anybody"
    for answer in answers:
        if answer.checked().outputs[0].finish_reason == "stop":
            jsonschema.validate(json.loads(answer.outputs[0].text), schema)
    assert sum(answer.outputs[0].finish_reason == "stop" for answer in answers) > 3


@pytest.mark.parametrize(
    "options",
    [{"platform": "cuda", "emulate": True}, pytest.param({"tensor_parallel_size": 2}, marks=pytest.mark.two_ranks)],
    ids=str,
)
def test_so_they_do_with_steps_in_flight_and_in_processes(tiny_model: Path, options: dict[str, Any]):
    with LLM(str(tiny_model), max_num_seqs=8, **options) as llm:
        check(llm, 12, seed=3)


@pytest.mark.slow
def test_five_hundred_random_schemas(tiny_model: Path):
    for model, seed in ((str(tiny_model), 4), ("lsv-demo", 5)):
        with LLM(model, max_num_seqs=32) as llm:
            check(llm, 500, seed)
