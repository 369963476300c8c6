"""Suggestions for misspelt names."""

from __future__ import annotations

from lsv_base.errors import suggestion


def test_a_platform_of_another_name_is_not_suggested() -> None:
    known = ("cpu", "cuda", "xpu", "hpu")
    assert [suggestion(name, known) for name in ("tpu", "npu")] == ["", ""]
    assert [suggestion(name, known) for name in ("xpy", "cud")] == ["; did you mean xpu?", "; did you mean cuda?"]
