"""Parts of a model that are checkpoints of their own: where they are found, and what becomes of their config.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lsv.config import EngineConfig, Part
from lsv.plugins import Plugins, load
from lsv.resolve import resolve
from lsv.resolve.locate import read_config
from lsv.settings import Declared, gather, options
from lsv_base.errors import CheckpointError, ConfigError

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "max_position_embeddings": 4096}
WHISPER = {"architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "d_model": 64}
SHORT = {"max_position_embeddings": 512, "rope_theta": 5e5}
OWN = {"architectures": ["UltravoxModel"], "model_type": "ultravox", "torch_dtype": "float32"}


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return load(["core", "cpu", "models", "multimodal", "quant"])


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    def make(name: str, *configs: dict[str, Any]) -> str:
        (tmp_path / name).mkdir(exist_ok=True)
        merged = {key: value for config in configs for key, value in config.items()}
        (tmp_path / name / "config.json").write_text(json.dumps(merged))
        return str(tmp_path / name)

    return make


@pytest.fixture
def configure(plugins: Plugins) -> Callable[..., EngineConfig]:
    def run(model: str, **given: Any) -> EngineConfig:
        declared = Declared(options.for_scope("engine", plugins.settings()))
        asked = {name: (value, "the test") for name, value in {"model": model, **given}.items()}
        return resolve(gather(declared, asked), plugins)

    return run


@pytest.fixture
def parts(write: Any) -> dict[str, str]:
    return {"text_model_id": write("text", LLAMA), "audio_model_id": write("audio", WHISPER)}


def test_what_parts_say_of_themselves_stands_in_for_what_the_whole_says(write: Any, configure: Any, parts: Any) -> None:
    stale = {"model_type": "llama", "sliding_window": 7, "rope_scaling": {"factor": 2.0, "beta_fast": 3}}
    write("text", LLAMA, {"rope_scaling": {"factor": 4.0, "rope_type": "linear"}})
    model = write("model", OWN, parts, {"text_config": stale})
    config = configure(model)
    assert config.parts == (
        Part(key="text_model_id", place="language_model", folder=parts["text_model_id"]),
        Part(key="audio_model_id", place="audio_tower", folder=parts["audio_model_id"]),
    )
    read = read_config(Path(config.model), config.overrides)
    assert read["audio_config"] == WHISPER
    kept = {key: value for key, value in read["text_config"].items() if value is not None}
    scaling = {"factor": 4.0, "rope_type": "linear", "beta_fast": None}
    assert kept == {**LLAMA, "rope_scaling": scaling}
    assert config.max_model_len == 4 * 4096
    told = {reason.name: (reason.value, reason.why) for reason in config.reasons}
    why = "has what the checkpoint lacks of audio_tower, and its config.json"
    assert told["audio_model_id"] == (parts["audio_model_id"], why)


def test_options_are_laid_over_parts(write: Any, configure: Any, parts: Any) -> None:
    model, other = write("model", OWN, parts), write("other", LLAMA, SHORT)
    config = configure(model, hf_overrides={"text_model_id": other, "audio_config": {"d_model": 96}}, rope_theta=7.0)
    read = read_config(Path(config.model), config.overrides)
    assert (config.max_model_len, config.parts[0].folder) == (512, other)
    assert (read["text_config"]["rope_theta"], read["audio_config"]["d_model"]) == (7.0, 96)


def test_a_checkpoint_may_have_all_of_it(write: Any, configure: Any, parts: Any) -> None:
    whole = {"text_config": LLAMA, "audio_config": WHISPER}
    config = configure(write("model", OWN, whole))
    assert [part.folder for part in config.parts] == [None, None]
    assert config.overrides == {}
    named = configure(write("model", OWN, whole, parts), hf_overrides={"text_model_id": None})
    assert [part.folder for part in named.parts] == [None, parts["audio_model_id"]]
    assert configure(write("model", LLAMA)).parts == ()


def test_a_part_that_is_nowhere_is_named(write: Any, configure: Any, parts: Any) -> None:
    give = r"""name its checkpoint with --hf-overrides '\{"text_model_id": "/path/of/it"\}'"""
    model = write("model", OWN, {"audio_config": WHISPER})
    with pytest.raises(ConfigError, match=rf"neither text_config nor, under text_model_id, what holds it: {give}"):
        configure(model)
    model = write("model", OWN, parts, {"text_model_id": "/nowhere/llama"})
    with pytest.raises(ConfigError, match=rf"^text_model_id is /nowhere/llama, .*there is no folder.*; or {give}"):
        configure(model)
    with pytest.raises(ConfigError, match="text_model_id must be a folder or a name, got 7"):
        configure(model, hf_overrides={"text_model_id": 7})


def test_parts_are_fetched_as_models_are_but_for_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, write: Any, configure: Any, parts: Any
) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    asked: list[tuple[str, dict[str, Any]]] = []

    def fetch(name: str, **given: Any) -> str:
        asked.append((name, given))
        return parts["text_model_id"]

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    (tmp_path / "text" / "model.safetensors").touch()
    # a config of its own making would look for the parts itself
    code = {"auto_map": {"AutoConfig": "ultravox_config.UltravoxConfig"}}
    model = write("model", OWN, parts, code, {"text_model_id": "meta-llama/Llama-3.1-8B"})
    config = configure(model, revision="v2", download_dir="d", trust_remote_code=True)
    assert config.parts[0].folder == parts["text_model_id"]
    ((name, given),) = asked
    assert (name, given["cache_dir"]) == ("meta-llama/Llama-3.1-8B", "d")
    assert "revision" not in given, "that is the model's"
    assert "*.py" not in given["allow_patterns"]
    assert next(one.why for one in config.reasons if one.name == "text_model_id").startswith("meta-llama/Llama-3.1-8B:")


@pytest.mark.parametrize("older", [False, True])
def test_a_quantised_part_is_refused(older: bool, tmp_path: Path, write: Any, configure: Any, parts: Any) -> None:
    format = {"quant_method": "awq", "bits": 4, "group_size": 128, "w_bit": 4, "q_group_size": 128}
    if older:
        (tmp_path / "text" / "quant_config.json").write_text(json.dumps(format))
    else:
        write("text", LLAMA, {"quantization_config": format})
    with pytest.raises(ConfigError, match=r"text_model_id: .*text is quantised, which a part of a model can't be"):
        configure(write("model", OWN, parts))


def test_a_part_needs_a_config(tmp_path: Path, write: Any, configure: Any, parts: Any) -> None:
    (tmp_path / "audio" / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"audio has no config\.json"):
        configure(write("model", OWN, parts))
