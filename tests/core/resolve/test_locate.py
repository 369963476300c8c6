"""Fetching a model: which revision and which files are asked for. Nothing goes to the network."""

from __future__ import annotations

import json
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from lsv import plugins
from lsv.resolve.hub import Hub
from lsv.resolve.locate import locate_model, read_config
from lsv.settings import Declared, gather, options
from lsv_base.errors import CheckpointError, ConfigError


@pytest.mark.row("F-009", "F-228", "F-230", "F-233", "F-235")
def test_revisions_and_patterns_reach_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    asked: list[tuple[str, dict[str, Any]]] = []

    def fetch(name: str, **given: Any) -> str:
        asked.append((name, given))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    catalog = plugins.load(["core"]).catalog
    (tmp_path / "model.safetensors").touch()
    found = locate_model("org/x", catalog, Hub("v1", "d", ("original/**", "*.pth")))
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
    locate_model("org/x", catalog, Hub(pickled=True))
    assert "*.safetensors" not in asked[3][1]["allow_patterns"]
    assert not any("*.py" in given["allow_patterns"] for _, given in asked), "no code"
    locate_model("org/x", catalog, Hub(code=True))
    assert "*.py" in asked[4][1]["allow_patterns"]


class Repository:
    """A hub's library over one repository: files are made in ``folder`` as patterns ask for them."""

    def __init__(self, folder: Path, files: dict[str, bytes]) -> None:
        self.folder, self.files = folder, files

    def snapshot_download(
        self, name: str, *, allow_patterns: list[str], ignore_patterns: list[str], cache_dir: str | None
    ) -> str:
        for file, content in self.files.items():
            allowed = any(fnmatch(file, one) for one in allow_patterns)
            if allowed and not any(fnmatch(file, one) for one in ignore_patterns):
                (self.folder / file).parent.mkdir(exist_ok=True)
                (self.folder / file).write_bytes(content)
        return str(self.folder)

    @property
    def fetched(self) -> set[str]:
        return {str(file.relative_to(self.folder)) for file in self.folder.rglob("*") if file.is_file()}


QUANTS = {
    "README.md": b"", "x-Q4_K_M.gguf": b"4", "x-Q4_K_S.gguf": b"s", "x-Q8_0.gguf": b"8",
    "mmproj-x-F16.gguf": b"m", "x-F16.gguf": b"16",
    "BF16/x-BF16-00001-of-00002.gguf": b"1", "BF16/x-BF16-00002-of-00002.gguf": b"2", "y.q5_0.gguf": b"5",
}  # fmt: skip


@pytest.mark.row("F-415", "F-691")
@pytest.mark.parametrize(
    ("name", "fetched", "taken"),
    [
        ("org/x-GGUF:Q4_K_M", {"x-Q4_K_M.gguf"}, "x-Q4_K_M.gguf"),
        ("org/x-GGUF:q8_0", {"x-Q8_0.gguf"}, "x-Q8_0.gguf"),
        ("org/x-GGUF:Q5_0", {"y.q5_0.gguf"}, "y.q5_0.gguf"),
        (
            "org/x-GGUF:BF16",
            {"BF16/x-BF16-00001-of-00002.gguf", "BF16/x-BF16-00002-of-00002.gguf"},
            "BF16/x-BF16-00001-of-00002.gguf",
        ),
        (
            "org/x-GGUF/BF16/x-BF16-00001-of-00002.gguf",
            {"BF16/x-BF16-00001-of-00002.gguf", "BF16/x-BF16-00002-of-00002.gguf"},
            "BF16/x-BF16-00001-of-00002.gguf",
        ),
        ("org/x-GGUF/x-Q4_K_S.gguf", {"x-Q4_K_S.gguf"}, "x-Q4_K_S.gguf"),
        ("org/x-GGUF:F16", {"x-F16.gguf"}, "x-F16.gguf"),
    ],
)
def test_of_a_repository_of_gguf_files_only_the_named_one_is_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, fetched: set[str], taken: str
) -> None:
    prepared: list[str] = []
    monkeypatch.setattr("lsv_quant.gguf.prepare.prepare", lambda path: prepared.append(path) or path)
    repository = Repository(tmp_path, QUANTS)
    monkeypatch.setitem(sys.modules, "huggingface_hub", repository)
    locate_model(name, plugins.load(["core", "quant"]).catalog)
    assert repository.fetched == fetched
    assert prepared == [str(tmp_path / taken)]


def test_a_repository_of_gguf_files_without_a_name_says_how_to_name_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    repository = Repository(tmp_path, QUANTS | {"z-Q8_0.gguf": b""})
    monkeypatch.setitem(sys.modules, "huggingface_hub", repository)
    catalog = plugins.load(["core", "quant"]).catalog
    with pytest.raises(CheckpointError, match="org/x-GGUF:VARIANT"):
        locate_model("org/x-GGUF", catalog)
    assert repository.fetched == set()
    with pytest.raises(CheckpointError, match="none of the repository's files"):
        locate_model("org/x-GGUF:Q3_K", catalog)
    with pytest.raises(CheckpointError, match=r"several models: x-Q8_0\.gguf, z-Q8_0\.gguf"):
        locate_model("org/x-GGUF:Q8_0", catalog)


MODELSCOPE = """
import json, pathlib
from fnmatch import fnmatch

def snapshot_download(model_id, *, revision="master", cache_dir=None, allow_patterns=None, ignore_patterns=None):
    if model_id == "org/gone":
        raise OSError("no such model")
    folder = pathlib.Path(cache_dir) / model_id
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "asked.json").write_text(json.dumps([revision, allow_patterns, ignore_patterns]))
    for name in ("config.json", "model.safetensors", "consolidated.safetensors", "consolidated.00.pth"):
        if any(fnmatch(name, one) for one in allow_patterns) and not any(fnmatch(name, one) for one in ignore_patterns):
            (folder / name).write_text("{}")
    return str(folder)
"""


@pytest.mark.row("F-809", "F-691")
def test_models_of_modelscope_are_fetched_by_its_own_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    catalog, hub = plugins.load(["core"]).catalog, Hub(download_dir=str(tmp_path / "kept"), modelscope=True)
    monkeypatch.setitem(sys.modules, "modelscope", None)
    with pytest.raises(ConfigError, match="pip install modelscope"):
        locate_model("org/x", catalog, hub)
    monkeypatch.delitem(sys.modules, "modelscope")
    (tmp_path / "modelscope.py").write_text(MODELSCOPE)
    monkeypatch.syspath_prepend(tmp_path)
    folder = locate_model("org/x", catalog, hub)
    assert {file.name for file in folder.iterdir()} == {"asked.json", "config.json", "model.safetensors"}
    revision, _, ignored = json.loads((folder / "asked.json").read_text())
    assert revision == "master", "its own default"
    assert "consolidated*" in ignored
    with pytest.raises(CheckpointError, match="could not be fetched from ModelScope \\(OSError\\)"):
        locate_model("org/gone", catalog, hub)
    monkeypatch.delitem(sys.modules, "modelscope")


@pytest.mark.row("F-809")
@pytest.mark.parametrize(("value", "expected"), [("True", True), ("false", False), ("1", True)])
def test_the_variable_chooses_modelscope(monkeypatch: pytest.MonkeyPatch, value: str, expected: bool) -> None:
    monkeypatch.setenv("VLLM_USE_MODELSCOPE", value)
    assert gather(Declared(options.CORE), {})["use_modelscope"] is expected


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


def test_what_writes_text_stands_for_a_model_that_also_speaks(tmp_path: Path) -> None:
    own = {"architectures": ["Thinker"], "text_config": {"hidden_size": 8, "layers": 2}, "tie_word_embeddings": False}
    whole = {"architectures": ["Omni"], "tie_word_embeddings": True, "thinker_config": own, "talker_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    found = read_config(tmp_path, {"text_config": {"layers": 3}})
    assert found == {
        **own,
        "architectures": ["Omni"],
        "text_config": {"hidden_size": 8, "layers": 3},
        "talker_config": {},
    }
    assert read_config(tmp_path, {"thinker_config": {"text_config": {"layers": 3}}}) == found
