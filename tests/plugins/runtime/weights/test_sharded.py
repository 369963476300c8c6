"""Weights of each rank in files of its own, against what vLLM's ranks hold, made here from the whole tensors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lsv.config import Part, Topology
from lsv_base.errors import CheckpointError, ConfigError
from lsv_models import plugin
from lsv_runtime.weights.sharded import PATTERN, check_pattern, is_sharded
from lsv_runtime.worker.load.saved import save_sharded_state
from lsv_testing.catalog import catalog_of
from lsv_testing.model import engine_config, load
from lsv_testing.tiny import tiny

CATALOG = catalog_of(plugin)
HEAD_DIM = 16
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "one KV head for two ranks": ("llama", {"num_key_value_heads": 1}),
    "padded vocabulary": ("llama", {"vocab_size": 300}),
    "tied": ("qwen3", {"tie_word_embeddings": True}),
    "biases": ("qwen2", {"tie_word_embeddings": False}),
    "bias of a row layer": ("llama", {"attention_bias": True, "mlp_bias": True}),
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    family, shape = CASES[request.param]
    return family, tiny(family, tmp_path_factory.mktemp("whole"), **shape)


def state_of_rank(tensors: dict[str, torch.Tensor], rank: int, ranks: int) -> dict[str, torch.Tensor]:
    """What vLLM's QKVParallelLinear, MergedColumnParallelLinear, RowParallelLinear and VocabParallelEmbedding hold."""

    def cut(tensor: torch.Tensor, axis: int = 0) -> torch.Tensor:
        return tensor.chunk(ranks, axis)[rank]

    def keys(tensor: torch.Tensor) -> torch.Tensor:
        heads = tensor.split(HEAD_DIM)
        copies = max(1, ranks // len(heads))
        each = max(1, len(heads) // ranks)
        first = rank // copies * each
        return torch.cat(heads[first : first + each])

    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if "q_proj" in name:
            others = [keys(tensors[name.replace("q_proj", other)]) for other in ("k_proj", "v_proj")]
            found[name.replace("q_proj", "qkv_proj")] = torch.cat([cut(tensor), *others])
        elif "gate_proj" in name:
            up = tensors[name.replace("gate_proj", "up_proj")]
            found[name.replace("gate_proj", "gate_up_proj")] = torch.cat([cut(tensor), cut(up)])
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            found[name] = cut(tensor, 1)
        elif name in ("model.embed_tokens.weight", "lm_head.weight"):
            padding = torch.zeros(-len(tensor) % 64, tensor.shape[1])
            found[name] = cut(torch.cat([tensor, padding]))
        elif not any(part in name for part in ("k_proj", "v_proj", "up_proj")):
            found[name] = tensor
    if "lm_head.weight" not in found:
        found["lm_head.weight"] = found.pop("model.embed_tokens.weight")
    return {name: tensor.contiguous() for name, tensor in found.items()}


def sharded(path: Path, target: Path, ranks: int, pattern: str = PATTERN) -> Path:
    """A checkpoint as vLLM saves it, each rank in two parts."""
    target.mkdir()
    shutil.copyfile(path / "config.json", target / "config.json")
    for rank in range(ranks):
        state = sorted(state_of_rank(load_file(path / "model.safetensors"), rank, ranks).items())
        for part, items in enumerate((state[::2], state[1::2])):
            save_file(dict(items), target / pattern.format(rank=rank, part=part))
    return target


def weights(path: Path, family: str, **changes: Any) -> dict[str, torch.Tensor]:
    return dict(load(engine_config(path, family, **changes), CATALOG).model.named_parameters())


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(found[name], weight), name


@pytest.mark.row("F-001", "F-933")
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_files_of_vllms_ranks_are_the_whole_model(case: tuple[str, Path], ranks: int, tmp_path: Path) -> None:
    family, path = case
    folder = sharded(path, tmp_path / "sharded", ranks)
    expected = weights(path, family)
    assert_same(weights(folder, family, load_format="sharded_state"), expected)
    assert is_sharded(folder)
    assert_same(weights(folder, family), expected)


@pytest.mark.row("F-022", "F-324", "F-933")
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_what_is_saved_is_what_vllms_ranks_hold(case: tuple[str, Path], ranks: int, tmp_path: Path) -> None:
    family, path = case
    (path / "tokenizer.json").write_text("{}")
    config = engine_config(path, family, topology=Topology(tensor=ranks))
    files = save_sharded_state(config, CATALOG, tmp_path / "saved", max_size=20_000)
    assert len(files) > ranks, "several parts of each"
    assert {file.name for file in (tmp_path / "saved").iterdir()} >= {"config.json", "tokenizer.json"}
    assert not (tmp_path / "saved" / "model.safetensors").exists()
    for rank in range(ranks):
        parts = [load_file(file) for file in files if f"rank-{rank}-" in file.name]
        assert all(sum(one.nbytes for one in part.values()) <= 20_000 or len(part) == 1 for part in parts)
        found = {name: one for part in parts for name, one in part.items()}
        assert_same(found, state_of_rank(load_file(path / "model.safetensors"), rank, ranks))


def test_only_one_checkpoint_is_saved(tmp_path: Path) -> None:
    path = tiny("llama", tmp_path / "whole")
    parts = (Part(key="text_model_id", place="text", folder="/a/part"),)
    with pytest.raises(ConfigError, match="this model is also read from /a/part"):
        save_sharded_state(engine_config(path, "llama", parts=parts), CATALOG, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


@pytest.mark.row("F-236")
def test_other_names_of_files(tmp_path: Path) -> None:
    path = tiny("llama", tmp_path / "whole")
    folder = sharded(path, tmp_path / "sharded", 2, "w.{part}.of-rank{rank}.safetensors")
    given = {"load_format": "sharded_state", "loader": {"pattern": "w.{part}.of-rank{rank}.safetensors"}}
    assert_same(weights(folder, "llama", **given), weights(path, "llama"))
    with pytest.raises(CheckpointError, match=r"has no model-rank-0-part-0\.safetensors"):
        weights(folder, "llama", load_format="sharded_state")


@pytest.mark.parametrize("pattern", ["rank.safetensors", "{rank}.safetensors", 7, "{rank.__class__}-{part}"])
def test_a_pattern_has_both_gaps(pattern: object) -> None:
    with pytest.raises(ConfigError, match=r"with \{rank\} and \{part\}"):
        check_pattern(pattern)


def test_files_that_do_not_add_up_are_refused(tmp_path: Path) -> None:
    path = tiny("llama", tmp_path / "whole")
    folder = sharded(path, tmp_path / "sharded", 2)
    for file in folder.glob("model-rank-1-*"):
        file.unlink()
    with pytest.raises(CheckpointError, match=r"1 ranks does not add up to .* are files of ranks missing"):
        weights(folder, "llama")
    save_file({"lm_head.weight": torch.ones(2)}, folder / "model-rank-1-part-0.safetensors")
    with pytest.raises(CheckpointError, match="do not hold the same tensors"):
        weights(folder, "llama")


@pytest.mark.row("F-324")
def test_what_can_not_be_saved_is_refused(tmp_path: Path) -> None:
    path = tiny("llama", tmp_path / "whole")
    with pytest.raises(ConfigError, match="the checkpoint itself"):
        save_sharded_state(engine_config(path, "llama"), CATALOG, path)
    with pytest.raises(ConfigError, match="only plain weights are saved by rank, and these are fp8"):
        save_sharded_state(engine_config(path, "llama", quantization="fp8"), CATALOG, tmp_path / "x")
    experts = tiny("qwen3_moe", tmp_path / "experts")
    with pytest.raises(ConfigError, match="only dense models"):
        save_sharded_state(engine_config(experts, "qwen3_moe"), CATALOG, tmp_path / "x")
    assert json.loads((path / "config.json").read_text())
