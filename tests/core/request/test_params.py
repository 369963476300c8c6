"""The mutable request."""

from __future__ import annotations

import pytest

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
    request = make_request(1, (1,), pooling=PoolingParams(), needs={"grammar"})
    assert request.status is Status.WAITING
    assert request.needs == {"grammar"}


@pytest.mark.parametrize("params", [{}, {"sampling": SamplingParams(), "pooling": PoolingParams()}])
def test_exactly_one_kind_of_params(params):
    with pytest.raises(AssertionError, match="samples or pools"):
        make_request(1, (1,), **params)
