"""Embeddings of media in the places of tokens: a picture of three tokens is worth those three tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from lsv.request.media import Array, Media, Positions
from lsv.scheduler.plan import Encode
from lsv_models.llama import Llama
from lsv_runtime.nn.model import Encoder

IDS = [5, 9, 3, 8, 8, 8, 8, 2, 17, 4]
SHOWN = [44, 45, 46, 47]


class Lookup(Encoder):
    """An encoder whose items are token ids and whose embeddings are those of the model."""

    parts = 3

    def __init__(self) -> None:
        super().__init__()
        self.advanced: list[int] = []
        self.table: Callable[[torch.Tensor], torch.Tensor] = lambda ids: ids

    def begin(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return inputs["ids"]

    def advance(self, state: torch.Tensor, part: int) -> torch.Tensor:
        self.advanced.append(part)
        return self.table(state) if part == self.parts - 1 else state


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch) -> Lookup:
    found = Lookup()

    class Seeing(Llama):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.encoder = found

    monkeypatch.setattr("lsv_models.llama.Llama", Seeing)
    return found


def picture(*ids: int, start: int = 3, count: int = 4, name: bytes = b"a") -> Media:
    data = np.array(ids, np.int64)
    return Media(name * 32, "image", start, count, {"ids": Array("int64", data.shape, data.tobytes())})


def started(drive: Callable[..., Any], encoder: Lookup, **settings: Any) -> Any:
    driver = drive(settings=settings)
    model = driver.worker.live.runner.model
    encoder.table = lambda ids: model.embed(ids, None)
    return driver


def worth(ids: list[int], drive: Callable[..., Any]) -> list[int]:
    driver = drive()
    return driver.generate(driver.begin(0, ids), 6)


def show(driver: Any, media: Media, chunk: int, *, slot: int = 0, encode: Any = None) -> list[int]:
    begin = driver.begin(slot, IDS, media=(media,))
    encode = (Encode(slot, 0, 0, 3),) if encode is None else encode
    return driver.generate(begin, 6, chunk, encode=encode)


@pytest.mark.row("F-712", "F-717")
@pytest.mark.parametrize("chunk", [100, 5, 1])
def test_a_picture_is_worth_its_embeddings(chunk: int, drive: Callable[..., Any], encoder: Lookup) -> None:
    expected = worth([*IDS[:3], *SHOWN, *IDS[7:]], drive)
    assert expected != worth(IDS, drive)
    driver = started(drive, encoder)
    assert driver.fit.encoder_parts == 3
    assert show(driver, picture(*SHOWN), chunk) == expected
    assert encoder.advanced == [0, 1, 2]


def test_parts_in_runner_of_their_own(drive: Callable[..., Any], encoder: Lookup) -> None:
    driver = started(drive, encoder)
    begin = driver.begin(0, IDS, media=(picture(*SHOWN),))
    driver.run([], [begin], encode=[Encode(0, 0, 0, 1)])
    driver.run([], encode=[Encode(0, 0, 1, 2)])
    result = driver.run([(0, 0, 10, True)], encode=[Encode(0, 0, 2, 3)])
    assert list(result.tokens[0]) == worth([*IDS[:3], *SHOWN, *IDS[7:]], drive)[:1]


def test_what_was_encoded_serves_others_until_it_is_forgotten(drive: Callable[..., Any], encoder: Lookup) -> None:
    driver = started(drive, encoder)
    first = show(driver, picture(*SHOWN), 100)
    assert show(driver, picture(*SHOWN), 100, slot=1, encode=()) == first
    driver.run([], forget=[picture().hash])
    assert not driver.worker.live.media._embeddings


@pytest.mark.parametrize("layout", ["flat", "padded"])
def test_beside_a_request_of_text(layout: str, drive: Callable[..., Any], encoder: Lookup) -> None:
    driver = started(drive, encoder, layout=layout)
    begin = [driver.begin(0, [7] * 6), driver.begin(1, IDS, media=(picture(*SHOWN),))]
    both = driver.run([(0, 0, 6, True), (1, 0, 10, True)], begin, encode=[Encode(1, 0, 0, 3)])
    assert [*both.tokens[0], *both.tokens[1]] == [
        worth([7] * 6, drive)[0],
        worth([*IDS[:3], *SHOWN, *IDS[7:]], drive)[0],
    ]


@pytest.mark.parametrize(
    ("media", "why"),
    [
        (picture(44, 45, 46), "3 embeddings for the 4 places of the prompt"),
        (picture(44, 45, 46, 99_999), "could not be encoded: IndexError"),
    ],
)
def test_a_picture_that_fails_fails_its_requests_alone(
    media: Media, why: str, drive: Callable[..., Any], encoder: Lookup
) -> None:
    driver = started(drive, encoder)
    begin = [driver.begin(0, [7] * 6), driver.begin(1, IDS, media=(media,))]
    result = driver.run([(0, 0, 6, True), (1, 0, 10, True)], begin, encode=[Encode(1, 0, 0, 3)])
    assert list(result.tokens[0]) == worth([7] * 6, drive)[:1]
    assert why in result.failed[1]
    later = driver.run([(2, 0, 10, True)], [driver.begin(2, IDS, media=(media,))])
    assert why in later.failed[0]


def test_an_encoder_that_fails_once_fails_one_request(drive: Callable[..., Any], encoder: Lookup) -> None:
    driver = started(drive, encoder)
    find, encoder.table = encoder.table, fail_once(encoder.table)
    media, encode = picture(*SHOWN), [Encode(0, 0, 0, 3)]
    result = driver.run([(0, 0, 10, True)], [driver.begin(0, IDS, media=(media,))], encode=encode)
    assert "out of memory" in result.failed[0]
    assert result.unencoded == {media.hash: result.failed[0]}
    again = driver.run(
        [(0, 0, 10, True)], [driver.begin(0, IDS, media=(media,))], encode=encode, end=[0], forget=[media.hash]
    )
    assert not again.failed
    assert not again.unencoded
    encoder.table = find
    assert list(again.tokens[0]) == worth([*IDS[:3], *SHOWN, *IDS[7:]], drive)[:1]


def test_a_request_past_its_picture_does_not_fail_with_it(drive: Callable[..., Any], encoder: Lookup) -> None:
    driver = started(drive, encoder)
    media = picture(*SHOWN)
    driver.run([(0, 0, 10, True)], [driver.begin(0, IDS, media=(media,))], encode=[Encode(0, 0, 0, 3)])
    encoder.table = fail_once(encoder.table)
    result = driver.run(
        [(0, 10, 1, True), (1, 0, 10, True)],
        [driver.begin(1, IDS, media=(media,))],
        forget=[media.hash],
        encode=[Encode(1, 0, 0, 3)],
    )
    assert list(result.failed) == [1]
    assert len(result.tokens[0]) == 1


def fail_once(table: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    calls = iter([RuntimeError("out of memory")])

    def find(ids: torch.Tensor) -> torch.Tensor:
        for error in calls:
            raise error
        return table(ids)

    return find


def test_positions_along_several_axes(drive: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Llama, "axes", 3)
    plain = worth(IDS, drive)
    driver = drive()
    seen: list[list[list[int]]] = []
    run = driver.worker.live.runner.run

    def watch(kind: str, batch: Any, *rest: Any) -> Any:
        seen.append(batch.positions.tolist())
        return run(kind, batch, *rest)

    monkeypatch.setattr(driver.worker.live.runner, "run", watch)
    placed = np.array([range(10), [0, 1, 2, 3, 3, 4, 4, 5, 6, 7], [0, 1, 2, 3, 4, 3, 4, 5, 6, 7]], np.int32)
    begin = driver.begin(0, IDS, positions=Positions(3, placed.tobytes(), -2))
    driver.generate(begin, 2, chunk=4)
    assert seen[0] == placed[:, :4].tolist()
    assert seen[2] == placed[:, 8:].tolist()
    assert seen[3] == [[8], [8], [8]]
    assert worth(IDS, drive) == plain
