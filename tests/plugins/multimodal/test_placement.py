"""Placeholders of a prompt and the items that stand for them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lsv.media.content_parts import Reference, template_content
from lsv.media.items import Prepared
from lsv.media.processor import Processed
from lsv.request.media import Media, Positions
from lsv_base.errors import BadRequest
from lsv_multimodal.placement import marks_of, place, spell


class Family:
    placeholders = {"image": 90, "audio": 91}

    def positions(self, ids: Sequence[int], media: Sequence[Media]) -> Positions | None:
        return None


class Marking(Family):
    marks = {"image": "<image>"}
    frames = False

    def spell(self, text: str) -> str:
        return text.replace("<image>", "[Z]")


IMAGE = Prepared("image", b"p" * 32, Processed({}, (80, 81, 81, 81, 82), 1, 3))
AUDIO = Prepared("audio", b"s" * 32, Processed({}, (70, 70), 0, 2))
CROSS = Prepared("video", b"c" * 32, Processed({}, (), 0, 5, cross=True))


def test_items_take_the_places_of_their_placeholders() -> None:
    placed = place([1, 90, 2, 91, 90], [IMAGE, AUDIO, IMAGE], Family())
    assert placed.ids == (1, 80, 81, 81, 81, 82, 2, 70, 70, 80, 81, 81, 81, 82)
    assert [(one.modality, one.start, one.count) for one in placed.media] == [
        ("image", 2, 3),
        ("audio", 7, 2),
        ("image", 10, 3),
    ]
    assert all(placed.ids[one.start : one.stop] in ((81,) * 3, (70,) * 2) for one in placed.media)


def test_cross_items_come_first_and_have_no_place() -> None:
    placed = place([1, 90], [IMAGE, CROSS], Family())
    assert placed.ids == (1, 80, 81, 81, 81, 82)
    assert [(one.modality, one.start, one.count, one.cross) for one in placed.media] == [
        ("video", 0, 5, True),
        ("image", 2, 3, False),
    ]


def test_a_placeholder_may_stand_for_several_items() -> None:
    later = (Processed({}, (82, 81), 1, 1), Processed({}, (81, 81), 0, 2))
    film = Prepared("image", b"f" * 32, Processed({}, (80, 81), 1, 1, more=later))
    placed = place([1, 90, 2, 90], [film, IMAGE], Family())
    assert placed.ids == (1, 80, 81, 82, 81, 81, 81, 2, 80, 81, 81, 81, 82)
    assert [(one.start, one.count) for one in placed.media] == [(2, 1), (4, 1), (5, 2), (9, 3)]
    names = [one.hash for one in placed.media]
    assert len(set(names)) == 4
    assert names == [one.hash for one in place([1, 90, 2, 90], [film, IMAGE], Family()).media]


def test_an_item_that_is_attended_to_from_its_placeholder_on_keeps_that() -> None:
    attended = Prepared("image", b"a" * 32, Processed({}, (90,), 0, 5, cross=True))
    placed = place([1, 91, 2, 90, 3], [attended, AUDIO], Family())
    assert placed.ids == (1, 70, 70, 2, 90, 3)
    assert [(one.modality, one.start, one.count, one.cross) for one in placed.media] == [
        ("audio", 1, 2, False),
        ("image", 4, 5, True),
    ]


@pytest.mark.parametrize(
    ("ids", "items", "message"),
    [
        ([90, 90], [IMAGE], "a place for an item of kind image where there is nothing"),
        ([90], [AUDIO], "kind image where there is an item of kind audio"),
        ([1, 2], [IMAGE], "1 of 1 items have no place"),
        ([1, 2], [IMAGE, CROSS], "1 of 2 items have no place"),
    ],
)
def test_places_and_items_must_match(ids: list[int], items: list[Prepared], message: str) -> None:
    with pytest.raises(BadRequest, match=message) as caught:
        place(ids, items, Family())
    assert caught.value.message.startswith("the media do not fit the prompt: ")
    assert caught.value.param == "messages"


def test_texts_may_have_marks_for_placeholders() -> None:
    assert (marks_of(Family()), spell("<image>?", Family())) == ({}, "<image>?")
    assert (marks_of(Marking()), spell("<image>?", Marking())) == (Marking.marks, "[Z]?")
    parts: list[str | Reference] = [Reference("image", "a"), "and", Reference("audio", "b")]
    assert template_content(parts, marks_of(Marking())) == [
        {"type": "image", "mark": "<image>"}, {"type": "text", "text": "and"}, {"type": "audio"},
    ]  # fmt: skip
