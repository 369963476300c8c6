"""The options of adapters, resolved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lsv import plugins
from lsv.config import AdapterOptions
from lsv.resolve.adapters import adapter_options, untargeted_layers
from lsv_base.errors import CheckpointError, ConfigError, LsvError
from lsv_base.untrusted.patterns import Patterns
from lsv_offline.llm import read_options
from lsv_runtime.weights.quantizer import compile_names


def options_of(**given: Any) -> AdapterOptions | None:
    return adapter_options(read_options({"enable_lora": True, **given}, plugins.load(())))


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "pirate"
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}')
    return folder


@pytest.mark.row("F-288", "F-289", "F-290", "F-292", "F-294", "F-727", "F-992")
def test_defaults() -> None:
    assert adapter_options(read_options({"max_loras": 4}, plugins.load(()))) is None
    found = options_of(max_num_seqs=8)
    assert found == AdapterOptions(slots=1, max_rank=16, host=8, dtype="auto")
    assert options_of(max_cpu_loras=2, max_num_seqs=256).host == 2


@pytest.mark.row("F-206", "F-725")
def test_adapters_are_listed_in_two_forms(adapter: Path) -> None:
    listed = [f"a={adapter}", {"name": "b", "path": str(adapter), "base_model_name": "x"}]
    assert options_of(lora_modules=listed).modules == (("a", str(adapter)), ("b", str(adapter)))
    text = f'{{"name": "c", "path": "{adapter}"}}'
    assert options_of(lora_modules=text).modules == (("c", str(adapter)),)
    assert options_of(lora_modules=f"a={adapter},b={adapter}").modules[1] == ("b", str(adapter))


@pytest.mark.row("F-291", "F-295")
def test_what_changes_no_answer_is_taken() -> None:
    assert options_of(lora_extra_vocab_size=256, fully_sharded_loras=True) == options_of()


@pytest.mark.row("F-293")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"long_lora_scaling_factors": "2,4"}, "rope"),
        ({"max_loras": 4, "max_cpu_loras": 2}, "must be at least max_loras=4"),
        ({"lora_modules": "pirate"}, "must be name=path"),
        ({"lora_modules": "a=/nowhere/at/all"}, "there is no folder"),
        ({"lora_modules": '{"name": "a", "path": "b", "rank": 3}'}, "unknown key 'rank'"),
        ({"lora_modules": "a b=x"}, "an adapter's name"),
        ({"lora_resolver_cache_dir": "/nowhere"}, "there is no folder"),
        ({"enable_lora": False, "lora_modules": "a=b"}, "needs --enable-lora"),
        ({"lora_dtype": "int8"}, "one of"),
    ],
)
def test_refusals(given: dict[str, Any], message: str) -> None:
    with pytest.raises(LsvError, match=message):
        options_of(**given)


def test_a_name_is_given_once(adapter: Path) -> None:
    with pytest.raises(ConfigError, match="names a twice"):
        options_of(lora_modules=[f"a={adapter}", f"a={adapter}"])


@pytest.mark.row("F-273")
@pytest.mark.parametrize(
    ("targets", "plain"),
    [
        (["q_proj", "k_proj", "v_proj", "o_proj"], {"mlp.up_proj", "lm_head", "self_attn.xq_proj"}),
        (r".*\.self_attn\.\w+", {"mlp.up_proj", "lm_head"}),
        ("all-linear", set()),
    ],
)
def test_an_adapter_says_which_layers_are_quantised(targets: object, plain: set[str], tmp_path: Path) -> None:
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": targets}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    settings = read_options({"qlora_adapter_name_or_path": str(tmp_path)}, plugins.load(()))
    names = compile_names(untargeted_layers(settings), Patterns("test"))
    layers = {"self_attn.q_proj", "self_attn.o_proj", *plain}
    prefix = "model.layers.0."
    assert {layer for layer in layers if any(name.match(prefix + layer) for name in names)} == plain


@pytest.mark.row("F-273")
def test_an_adapter_that_says_what_is_quantised_is_looked_for(tmp_path: Path) -> None:
    settings = read_options({"qlora_adapter_name_or_path": str(tmp_path / "none")}, plugins.load(()))
    with pytest.raises(CheckpointError, match="there is no folder") as refusal:
        untargeted_layers(settings)
    assert refusal.value.param == "qlora_adapter_name_or_path"
