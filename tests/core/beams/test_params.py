"""What a beam search is asked with: what it takes, what it refuses by name."""

from __future__ import annotations

from typing import Any

import pytest

from lsv import BeamSearchParams
from lsv.request.params import SamplingParams
from lsv.request.structured import StructuredOutputsParams
from lsv_base.errors import BadRequest


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0.5), ("top_p", 0.9), ("top_k", 5), ("min_p", 0.1), ("presence_penalty", 1.0),
        ("frequency_penalty", 0.5), ("repetition_penalty", 1.1), ("bad_words", ["x"]), ("logit_bias", {1: 2.0}),
        ("allowed_token_ids", [1]), ("logits_processors", {"p": None}),
        ("structured_outputs", StructuredOutputsParams(regex="a")),
        ("guided_decoding", StructuredOutputsParams(regex="a")),
        ("repetition_detection", {"max_pattern_size": 4, "min_count": 2}),
    ],
)  # fmt: skip
def test_what_would_change_the_probabilities_is_refused(field: str, value: Any) -> None:
    with pytest.raises(BadRequest, match="can't be combined with use_beam_search") as caught:
        SamplingParams(use_beam_search=True, n=2, **{field: value})
    assert caught.value.param == {"guided_decoding": "structured_outputs"}.get(field, field)


@pytest.mark.row("F-048")
@pytest.mark.row("F-049")
@pytest.mark.parametrize(
    ("given", "param", "why"),
    [
        ({"length_penalty": 2.0}, "length_penalty", "only applies to beam search"),
        ({"early_stopping": True}, "early_stopping", "only applies to beam search"),
        ({"early_stopping": "never"}, "early_stopping", "only applies to beam search"),
        ({"use_beam_search": True, "early_stopping": "soon"}, "early_stopping", 'true, false or "never"'),
        ({"use_beam_search": True, "early_stopping": 1}, "early_stopping", 'true, false or "never"'),
        ({"use_beam_search": True, "length_penalty": 11.0}, "length_penalty", "between -10 and 10"),
        ({"use_beam_search": True, "length_penalty": float("nan")}, "length_penalty", "must be a number"),
        ({"use_beam_search": True, "n": 3, "best_of": 2}, "best_of", "at least n=3"),
        ({"use_beam_search": True, "stop_token_ids": range(65)}, "stop_token_ids", "at most 64"),
    ],
)
def test_its_own_fields_are_checked(given: dict[str, Any], param: str, why: str) -> None:
    given = {name: list(value) if isinstance(value, range) else value for name, value in given.items()}
    with pytest.raises(BadRequest, match=why) as caught:
        SamplingParams(**given)
    assert caught.value.param == param


@pytest.mark.row("F-038")
def test_best_of_is_the_width() -> None:
    params = SamplingParams(use_beam_search=True, temperature=0.0, n=2, best_of=5)
    assert (params.candidates, params.beam_width) == (2, 5)
    assert SamplingParams(use_beam_search=True, n=3).beam_width == 3
    assert SamplingParams(n=2, best_of=5).candidates == 5


def test_the_parameters_of_newer_vllm_are_the_same() -> None:
    params = BeamSearchParams(4, 16, True, 0.0, 2.0).sampling()
    assert (params.beam_width, params.n, params.max_tokens, params.ignore_eos) == (4, 4, 16, True)
    assert (params.length_penalty, params.early_stopping, params.use_beam_search) == (2.0, "never", True)
    with pytest.raises(BadRequest, match="structured_outputs"):
        BeamSearchParams(4, 16, structured_outputs=StructuredOutputsParams(regex="a")).sampling()
