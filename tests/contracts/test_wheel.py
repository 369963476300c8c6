"""What is installed: the packages with their data, and nothing that only those who work on lsv need."""

from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def files() -> set[str]:
    return {file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}


def test_the_demo_comes_with_checkpoint_adapter_and_held_out_set_and_without_its_training(files: set[str]) -> None:
    assert {file for file in files if file.startswith("lsv_demo/")} == {
        "lsv_demo/__init__.py",
        "lsv_demo/checkpoint/1_Pooling/config.json",
        "lsv_demo/checkpoint/2_Dense/config.json",
        "lsv_demo/checkpoint/2_Dense/model.safetensors",
        "lsv_demo/checkpoint/config.json",
        "lsv_demo/checkpoint/generation_config.json",
        "lsv_demo/checkpoint/model.safetensors",
        "lsv_demo/checkpoint/modules.json",
        "lsv_demo/checkpoint/tokenizer.json",
        "lsv_demo/checkpoint/tokenizer_config.json",
        "lsv_demo/held_out.py",
        "lsv_demo/held_out_conversations.jsonl",
        "lsv_demo/held_out_questions.jsonl",
        "lsv_demo/model.py",
        "lsv_demo/pirate/adapter_config.json",
        "lsv_demo/pirate/adapter_model.safetensors",
        "lsv_demo/plugin.py",
        "lsv_demo/processor.py",
        "lsv_demo/py.typed",
        "lsv_demo/senses/__init__.py",
        "lsv_demo/senses/inputs.py",
        "lsv_demo/senses/tower.py",
        "lsv_demo/speculator/config.json",
        "lsv_demo/speculator/model.safetensors",
    }


def test_only_packages_of_lsv_are_installed(files: set[str]) -> None:
    packages = {file.split("/")[0] for file in files}
    assert {name for name in packages if name != "lsv" and not name.startswith("lsv_")} == set()
    assert "lsv/__init__.py" in files


def test_the_license_comes_with_the_package() -> None:
    metadata = WheelBuilder(str(ROOT)).metadata.core
    assert (metadata.license_expression, metadata.license_files) == ("Apache-2.0", ["LICENSE"])
    assert (ROOT / "LICENSE").read_text(encoding="utf-8").split()[:4] == ["Apache", "License", "Version", "2.0,"]


def test_type_checkers_of_plugins_see_the_types(files: set[str]) -> None:
    packages = {file.partition("/")[0] for file in files}
    assert {package for package in packages if package.startswith("lsv")} == {
        file.partition("/")[0] for file in files if file.endswith("/py.typed")
    }
