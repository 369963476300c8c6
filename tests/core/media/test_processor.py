"""Placeholders of a prompt and the items that stand for them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lsv.media.processor import Processed, expand
from lsv.request.media import Media, Positions


class Placed:
    placeholders = {"image": 90, "audio": 91}

    def positions(self, ids: Sequence[int], media: Sequence[Media]) -> Positions | None:
        return None


PICTURE = ("image", b"p" * 32, Processed({}, (80, 81, 81, 81, 82), 1, 3))
SOUND = ("audio", b"s" * 32, Processed({}, (70, 70), 0, 2))


def test_items_take_the_places_of_their_placeholders() -> None:
    ids, media = expand([1, 90, 2, 91, 90], [PICTURE, SOUND, PICTURE], Placed())
    assert ids == (1, 80, 81, 81, 81, 82, 2, 70, 70, 80, 81, 81, 81, 82)
    assert [(one.modality, one.start, one.count) for one in media] == [
        ("image", 2, 3),
        ("audio", 7, 2),
        ("image", 10, 3),
    ]
    assert all(ids[one.start : one.stop] in ((81,) * 3, (70,) * 2) for one in media)


@pytest.mark.parametrize(
    ("ids", "items", "message"),
    [
        ([90, 90], [PICTURE], "a place for an item of kind image where there is nothing"),
        ([90], [SOUND], "kind image where there is an item of kind audio"),
        ([1, 2], [PICTURE], "1 of 1 items have no place"),
    ],
)
def test_places_and_items_must_match(ids: list[int], items: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        expand(ids, items, Placed())
