"""Pauses: work that is cut by them comes to the same, and nobody computes for long without one."""

from __future__ import annotations

import base64
import time

import pytest

from lsv.errors import BadRequest
from lsv.media import pauses, workshop
from lsv.media.parts import Encoded
from lsv.media.pauses import SECONDS, Pauses, PausingFile, in_pieces


def test_pauses_come_when_the_last_one_is_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = 100.0, []
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    monkeypatch.setattr(time, "sleep", slept.append)
    pause = Pauses()
    for step in (0.0, 0.4, 0.5, 0.2, 0.9):
        now += step * SECONDS
        pause()
    assert len(slept) == 2, "at the first call, and as soon as the time has passed since"
    now += 10 * SECONDS
    pause()
    assert len(slept) == 3


def test_pieces_and_files_hold_what_was_put_in(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(pauses, "pause", lambda: made.append(1))
    data = bytes(range(256)) * 5
    assert b"".join(in_pieces(memoryview(data), 500)) == data
    assert len(made) == 3
    file = PausingFile(data)
    assert [file.read(1000), file.read(), file.read(1)] == [data[:1000], data[1000:], b""]
    assert len(made) == 6


@pytest.mark.parametrize("more", [-5, -4, -3, -2, -1, 0, 1, 2, 3])
def test_base64_of_any_length(more: int) -> None:
    data = bytes(7 for _ in range(workshop._BASE64 // 4 * 3 * 2 + more))
    assert workshop._plain(Encoded(base64.b64encode(data), base64=True)) == data


@pytest.mark.parametrize("at", [4, workshop._BASE64 - 1, workshop._BASE64 - 2, workshop._BASE64 + 3])
def test_padding_is_at_the_end_alone(at: int) -> None:
    text = bytearray(b"A" * (2 * workshop._BASE64))
    text[at] = ord("=")
    with pytest.raises(BadRequest, match="base64 is wrong"):
        workshop._plain(Encoded(bytes(text), base64=True))
