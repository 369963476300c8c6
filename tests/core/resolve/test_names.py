"""The names by which clients may request a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from lsv.plugins import load
from lsv.plugins.catalog import Catalog
from lsv.resolve.locate import choose_names


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load(["core", "demo"]).catalog


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with models in all common places."""
    monkeypatch.chdir(tmp_path)
    snapshot = tmp_path / "hub" / "models--org--some-model" / "snapshots" / "0123abcd"
    for folder in (tmp_path / "Qwen3-0.6B", tmp_path / "org" / "local", snapshot):
        folder.mkdir(parents=True)
    for file in ("SmolLM2-135M-Instruct.Q4_1.gguf", "big-00001-of-00003.gguf", "hub/blob"):
        (tmp_path / file).touch()
    (tmp_path / "linked.gguf").symlink_to(tmp_path / "hub" / "blob")
    (tmp_path / "current").symlink_to(tmp_path / "Qwen3-0.6B")
    return tmp_path


def chosen(given: list[str] | None, model: str, catalog: Catalog) -> tuple[tuple[str, ...], tuple[str, ...]]:
    names = choose_names(given, model, catalog)
    return names["served_names"], names["unlisted_names"]


@pytest.mark.row("F-218")
@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("{}/SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct.Q4_1"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct.Q4_1"),
        ("{}/big-00001-of-00003.gguf", "big"),
        ("{}/linked.gguf", "linked"),
        ("{}/Qwen3-0.6B", "Qwen3-0.6B"),
        ("{}/Qwen3-0.6B/", "Qwen3-0.6B"),
        ("./Qwen3-0.6B/../current", "current"),
        ("org/local", "local"),
        ("{}/hub/models--org--some-model/snapshots/0123abcd", "org/some-model"),
    ],
)
def test_a_path_is_called_by_its_last_part_and_stays_an_alias(models, catalog, model, name) -> None:
    given = model.format(models)
    assert chosen(None, given, catalog) == ((name,), (given,))


@pytest.mark.parametrize("model", ["Qwen3-0.6B", "org/elsewhere", "org/elsewhere:Q4_K_M", "lsv-demo"])
def test_a_name_that_is_no_path_stays(models, catalog, model) -> None:
    (models / "lsv-demo").mkdir()  # a plugin's alias is found first
    assert chosen(None, model, catalog) == ((model,), ())


def test_given_names_hide_the_path(models, catalog) -> None:
    given = ["small", "smaller"]
    assert chosen(given, f"{models}/Qwen3-0.6B", catalog) == (("small", "smaller"), ())
