"""What marks of tests mean."""

import pytest


@pytest.mark.daily(value=[1], other=[1])
@pytest.mark.daily(value=[2])
@pytest.mark.parametrize("other", [1, 2])
@pytest.mark.parametrize("value", [1, 2, 3])
def test_only_values_of_one_mark_are_not_slow(value: int, other: int, request: pytest.FixtureRequest) -> None:
    kept = (value, other) in {(1, 1), (2, 1), (2, 2)}
    assert (request.node.get_closest_marker("slow") is None) == kept
