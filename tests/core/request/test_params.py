"""The mutable request."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest

from lsv.request.output_kind import RequestOutputKind
from lsv.request.params import PoolingParams, SamplingParams
from lsv.request.request import Status
from lsv_base.errors import BadRequest
from lsv_testing.fakes.requests import make_request


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
    assert SamplingParams(seed=-1).seed is None
    assert SamplingParams(seed=-2).seed == -2
    assert SamplingParams(min_p=1.0, top_k=-1, seed=(1 << 64) - 1, best_of=None, n=128, temperature=100.0).n == 128


@pytest.mark.row("F-065")
def test_a_clone_is_equal_and_its_own():
    params = SamplingParams(stop=["a"], logit_bias={1: 2.0}, seed=3)
    clone = params.clone()
    assert clone == params
    assert clone is not params
    assert clone.replace(seed=4) != params


@pytest.mark.parametrize("name", [field.name for field in msgspec.structs.fields(SamplingParams)])
def test_none_is_not_given(name: str) -> None:
    """But for fields that have a None of their own: ``max_tokens`` is as many as fit."""
    plain = SamplingParams(max_tokens=None) if name == "max_tokens" else SamplingParams()
    assert SamplingParams(**{name: None}) == plain


def test_one_value_or_a_set_is_a_list() -> None:
    params = SamplingParams(stop="a", bad_words={"b"}, stop_token_ids=7, allowed_token_ids=range(3))
    assert (params.stop, params.bad_words) == (("a",), ("b",))
    assert (params.stop_token_ids, params.allowed_token_ids) == ((7,), (0, 1, 2))


@pytest.mark.parametrize(
    "wrong", [5j, "x", b"x", ["x"], [None], [[1]], {"x": 1}, {1: "x"}, {1: None}, object(), True, 2.5]
)
@pytest.mark.parametrize("name", [field.name for field in msgspec.structs.fields(SamplingParams)])
def test_whatever_is_given_is_taken_or_refused_by_name(name: str, wrong: object) -> None:
    with suppress(BadRequest):
        SamplingParams(**{name: wrong})
        return
    with pytest.raises(BadRequest) as refused:
        SamplingParams(**{name: wrong})
    assert refused.value.param == name


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("stop_token_ids", ["a"], r"must be a list of token ids, got \('a',\)"),
        ("stop_token_ids", [True], "must be a list of token ids"),
        ("bad_words", [3], "must be a list of strings"),
        ("ignore_eos", "no", "must be true or false, got 'no'"),
        ("logit_bias", {"a": 1}, "must map token ids to numbers, got {'a': 1}"),
        ("logit_bias", {5: True}, "must map token ids to numbers"),
    ],
)
def test_wrong_types_are_refused(name: str, wrong: object, message: str) -> None:
    with pytest.raises(BadRequest, match=f"{name} {message}"):
        SamplingParams(**{name: wrong})


def test_a_field_that_is_set_is_checked_with_the_others():
    params = SamplingParams(max_tokens=4)
    params.temperature, params.stop = 0.0, ["a"]
    assert (params.greedy, params.stop, params.max_tokens) == (True, ("a",), 4)
    for name, value, message in (
        ("top_p", 2, "top_p must be between"),
        ("n", 2, "n and best_of must be 1 when temperature is 0"),
        ("min_tokens", 5, "min_tokens must be at most max_tokens=4"),
    ):
        with pytest.raises(BadRequest, match=message):
            setattr(params, name, value)
    with pytest.raises(AttributeError, match="SamplingParams has no field 'temprature'"):
        params.temprature = 1.0
    assert params == SamplingParams(max_tokens=4, temperature=0.0, stop="a")


def test_kinds_of_outputs_that_can_not_be_are_refused():
    with pytest.raises(BadRequest, match="output_kind must be a RequestOutputKind, got 2"):
        SamplingParams(output_kind=2)
    for ranked in ({"best_of": 2}, {"use_beam_search": True, "n": 2}):
        with pytest.raises(BadRequest, match="output_kind DELTA can't be combined"):
            SamplingParams(output_kind=RequestOutputKind.DELTA, **ranked)
