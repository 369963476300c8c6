"""What tells contents of one checkpoint and form from others."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from lsv.config import EngineConfig, Offload, Part, Transfers
from lsv.transports.making import identify
from lsv_testing.fakes.client import fake_config

SHARED = Offload(
    transport="files",
    transfers=Transfers(produces=True, consumes=True, host="h", port=1, peers=(), timeout=1.0),
)
KEPT = Offload(transport="files")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text("{}")
    (made / "model.safetensors").write_bytes(bytes(range(256)) * 2000)
    return made


def config(folder: Path, offload: Offload, **changes: object) -> EngineConfig:
    return fake_config(model=str(folder), offload=offload, **changes)


def test_engines_that_share_have_copies(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "other", copy_function=shutil.copyfile)
    os.utime(copy / "model.safetensors", (1, 1))
    assert identify(config(folder, SHARED)) == identify(config(copy, SHARED))
    assert identify(config(folder, KEPT)) != identify(config(copy, KEPT))


@pytest.mark.parametrize("changes", [{"kv_dtype": "fp8_e4m3"}, {"block_size": 32}, {"dtype": "bfloat16"}, {"seed": 7}])
def test_another_form_is_another(changes, folder):
    assert identify(config(folder, SHARED, **changes)) != identify(config(folder, SHARED))


def test_other_weights_are_others(folder):
    before = identify(config(folder, SHARED))
    with (folder / "model.safetensors").open("r+b") as file:
        file.write(b"?")
    assert identify(config(folder, SHARED)) != before


def test_other_weights_of_a_part_are_others(folder, tmp_path):
    part = shutil.copytree(folder, tmp_path / "part")
    parts = (Part(key="text_model_id", place="text", folder=str(part)), Part(key="b", place="b", folder=None))
    before = identify(config(folder, SHARED, parts=parts))
    assert before != identify(config(folder, SHARED))
    (part / "model.safetensors").write_bytes(bytes(9))
    assert identify(config(folder, SHARED, parts=parts)) != before
