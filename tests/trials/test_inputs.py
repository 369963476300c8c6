"""Damaged input is read or refused: a few hundred inputs for each target of the fuzzer, which goes on from there."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from random import Random

import pytest

from lsv_base.errors import CheckpointError
from trials.fuzz.mutate import framed_json, mutate_bytes, mutate_json
from trials.fuzz.run import describe, place_of
from trials.fuzz.target import Inputs, Target, try_input
from trials.fuzz.targets import TARGETS, find_target

COUNT = 150
QUICK = [target for target in TARGETS if target.memory]
"""Those that start no process."""


@pytest.mark.parametrize("target", QUICK, ids=lambda target: target.name)
def test_readers_answer_or_refuse(target: Target, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    inputs, read = Inputs(target, seed=0), target.reader(tmp_path)
    for number in range(COUNT):
        error = try_input(read, inputs.make(number))
        assert error is None, f"input {number} of {target.name}: {describe(error)}"


@pytest.mark.parametrize("target", QUICK, ids=lambda target: target.name)
def test_undamaged_input_is_read(target: Target, tmp_path: Path) -> None:
    read = target.reader(tmp_path)
    for data in target.seeds():
        read(data)


def test_inputs_are_the_same_for_the_same_seed_and_number() -> None:
    target = find_target("gguf")
    first, second, other = Inputs(target, 1), Inputs(target, 1), Inputs(target, 2)
    assert [first.make(number) for number in range(30)] == [second.make(number) for number in range(30)]
    assert [first.make(number) for number in range(1, 30)] != [other.make(number) for number in range(1, 30)]


def test_damage_is_done() -> None:
    tree = json.dumps({"a": [1, 2], "b": {"c": "x"}}).encode()
    framed = len(tree).to_bytes(8, "little") + tree + bytes(64)
    for mutate, data in ((mutate_bytes, bytes(range(256))), (mutate_json, tree), (framed_json, framed)):
        changed = [mutate(data, Random(seed)) for seed in range(60)]
        assert sum(one != data for one in changed) > 50
        assert len(set(changed)) > 30


def test_only_errors_that_say_what_to_do_are_refusals() -> None:
    def refuse(data: bytes) -> None:
        raise CheckpointError("no")

    def fail(data: bytes) -> None:
        raise KeyError("no")

    assert try_input(refuse, b"") is None
    error = try_input(fail, b"")
    assert isinstance(error, KeyError)
    assert place_of(error) == "KeyError at outside of lsv"
