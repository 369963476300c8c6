"""The mutable request."""

from __future__ import annotations

import pytest

from lsv.errors import BadRequest
from lsv.request.params import PoolingParams, SamplingParams
from lsv.request.request import Status
from lsv.testing.fakes.requests import make_request


def test_ids_run_over_prompt_and_output():
    request = make_request(1, (1, 2, 3), sampling=SamplingParams())
    request.output += [4, 5]
    assert len(request) == 5
    assert request.ids(0, 2) == (1, 2)
    assert request.ids(1, 4) == (2, 3, 4)
    assert request.ids(3, 5) == (4, 5)
    assert request.ids(4, 5) == (5,)


def test_a_new_request_waits():
    assert make_request(1, (1,), pooling=PoolingParams()).status is Status.WAITING


@pytest.mark.parametrize("params", [{}, {"sampling": SamplingParams(), "pooling": PoolingParams()}])
def test_exactly_one_kind_of_params(params):
    with pytest.raises(AssertionError, match="samples or pools"):
        make_request(1, (1,), **params)


@pytest.mark.parametrize(
    ("field", "wrong", "message"),
    [
        ("min_p", 1.5, "min_p must be between 0 and 1, got 1.5"),
        ("top_k", 2.5, "top_k must be an integer, got 2.5"),
        ("temperature", "warm", "temperature must be a number, got 'warm'"),
        ("best_of", 0, "best_of must be between 1 and 128, got 0"),
        ("stop", ["x" * 1025], "stop takes strings of at most 1024 characters"),
        ("bad_words", ["x" * 9000] * 2, "bad_words takes strings of at most 16384 characters together"),
        (
            "logits_processors",
            ["print"],
            "logits_processors must map the names of logits processors to their arguments",
        ),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(field, wrong, message):
    with pytest.raises(BadRequest, match=message) as refused:
        SamplingParams(**{field: wrong})
    assert refused.value.param == field


@pytest.mark.row("F-043", "F-045")
def test_ranges_hold_their_own_ends():
    assert SamplingParams(min_p=1.0, top_k=-1, seed=(1 << 64) - 1, best_of=None, n=128, temperature=100.0).n == 128


@pytest.mark.row("F-065")
def test_a_clone_is_equal_and_its_own():
    params = SamplingParams(stop=["a"], logit_bias={1: 2.0}, seed=3)
    clone = params.clone()
    assert clone == params
    assert clone is not params
    assert clone.replace(seed=4) != params


def test_no_bias_may_be_given_as_none() -> None:
    assert SamplingParams(logit_bias=None).logit_bias == {}
