"""Families whose one image comes first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lsv_base.errors import BadRequest

IMAGE = 259


@pytest.mark.parametrize(("family", "name"), [("fuyu", "fuyu"), ("blip-2", "blip2")])
def test_more_than_one_image_and_unknown_options_are_refused(
    family: str, name: str, checkpoint: Callable[..., Path], shower: Any, picture: Any, clip: Any
) -> None:
    shows = shower(checkpoint(family), name)
    for ids, pictures in (([65], 2), ([IMAGE, IMAGE], 1)):
        with pytest.raises(BadRequest, match="one image a prompt, got 2"):
            shows.place(ids, [picture(30, 40)] * pictures)
    with pytest.raises(BadRequest, match="no option size"):
        shows.place([], [picture(30, 40)], size=3)
    with pytest.raises(BadRequest, match="no video"):
        shows.place([], [clip(4, 30, 40)])
