"""Fetching a model: which revision and which files are asked for. Nothing goes to the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lsv import plugins
from lsv.resolve.locate import locate_model


@pytest.mark.row("F-009", "F-228", "F-230", "F-235")
def test_revisions_and_patterns_reach_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    asked: list[tuple[str, dict[str, Any]]] = []

    def fetch(name: str, **given: Any) -> str:
        asked.append((name, given))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    catalog = plugins.load(["core"]).catalog
    (tmp_path / "model.safetensors").touch()
    found = locate_model("org/x", catalog, revision="v1", download_dir="d", ignore=("original/**", "*.pth"))
    assert found == tmp_path
    ((name, given),) = asked
    assert (name, given["revision"], given["cache_dir"]) == ("org/x", "v1", "d")
    assert given["ignore_patterns"][-2:] == ["original/**", "*.pth"]
    assert {"consolidated*", "original/*"} <= set(given["ignore_patterns"]), "no weights twice"
    assert {"*.model", "vocab.txt", "merges.txt"} <= set(given["allow_patterns"])
    (tmp_path / "model.safetensors").unlink()
    locate_model("org/x", catalog)
    assert "pytorch_model*.bin" not in asked[1][1]["allow_patterns"]
    assert "pytorch_model*.bin" in asked[2][1]["allow_patterns"], "where there are no safetensors"


@pytest.mark.row("F-861")
@pytest.mark.parametrize("variable", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"])
def test_the_key_of_gated_models_is_the_librarys_own(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "hf_of_mine")
    keys: list[object] = []

    def fetch(name: str, **given: object) -> str:
        keys.append(huggingface_hub.utils.build_hf_headers(token=given.get("token"))["authorization"])
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    (tmp_path / "model.safetensors").touch()
    locate_model("org/x", plugins.load(["core"]).catalog)
    assert keys == ["Bearer hf_of_mine"]
