"""What a quantised checkpoint's format may be called with ``--quantization``, and what contradicts it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lsv.config import EngineConfig
from lsv.plugins import load
from lsv.resolve import resolve
from lsv.settings import Declared, gather, options
from lsv.settings.flags import parse
from lsv_base.errors import ConfigError


def configure(folder: Path, asked: str | None, declared: dict[str, Any] | None) -> EngineConfig:
    config = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 64, "quantization_config": declared}
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    plugins = load(["core", "cpu", "models", "quant"])
    known = Declared(options.for_scope("engine", plugins.settings()))
    line = parse(["--model", str(folder), *(() if asked is None else ("--quantization", asked))], known)
    return resolve(gather(known, line.given), plugins)


@pytest.mark.row("F-407", "F-409")
@pytest.mark.parametrize(
    ("method", "name", "aliases"),
    [
        ("awq", "awq", ("awq_marlin", "AWQ_Marlin", "awq_hpu")),
        ("gptq", "gptq", ("gptq_marlin", "gptq_marlin_24", "marlin", "gptq_hpu")),
        ("auto-round", "auto-round", ("auto_round",)),
        ("intel/auto-round", "auto-round", ()),
        ("fp8", "fp8", ()),
        ("fbgemm_fp8", "fbgemm_fp8", ()),
        ("compressed-tensors", "compressed-tensors", ()),
        ("torchao", "torchao", ()),
    ],
)
def test_a_format_goes_by_several_names(tmp_path: Path, method: str, name: str, aliases: tuple[str, ...]) -> None:
    for asked in (None, name, *aliases):
        config = configure(tmp_path, asked, {"quant_method": method})
        assert config.quantization == name
        (why,) = (reason.why for reason in config.reasons if reason.name == "quantization")
        assert "recognised from quantization_config" in why
        assert (f"{asked} is another name for it" in why) == (asked in aliases)


@pytest.mark.row("F-272", "F-416", "F-417", "F-418", "F-419", "F-420")
@pytest.mark.parametrize(
    "method",
    [
        "aqlm",
        "squeezellm",
        "deepspeedfp",
        "qqq",
        "tpu_int8",
        "neuron_quant",
    ],
)
def test_formats_that_nothing_reads_are_refused_with_those_that_are_read(tmp_path: Path, method: str) -> None:
    with pytest.raises(ConfigError, match=f"there is no quantiser '{method}'.*known: awq, gptq, auto-round, gguf"):
        configure(tmp_path, method, None)
    with pytest.raises(ConfigError) as caught:
        configure(tmp_path, None, {"quant_method": method})
    assert f"quantised as '{method}', which no installed quantiser reads: take one in awq, gptq" in caught.value.message
    assert "or the plain model, quantised at start by --quantization int8, sym_int4" in caught.value.message


@pytest.mark.row("F-956")
@pytest.mark.parametrize(
    ("asked", "declared", "said"),
    [
        ("sym_int4", None, "asked for; groups of 32 where a model's states have at most 1,024 features, of 64"),
        ("fp8", None, "asked for; activations become fp8 by token where the device multiplies it"),
        (
            None,
            {"quant_method": "fp8"},
            "and by the checkpoint's scales on every device; elsewhere they stay as they are",
        ),
        (
            None,
            {"quant_method": "compressed-tensors"},
            "activations are quantised by token or group where the checkpoint wants it of int8 weights",
        ),
    ],
)
def test_what_a_format_does_is_said(tmp_path: Path, asked: str | None, declared: Any, said: str) -> None:
    (why,) = (reason.why for reason in configure(tmp_path, asked, declared).reasons if reason.name == "quantization")
    assert said in why


@pytest.mark.parametrize(
    ("asked", "declared", "message"),
    [
        ("gptq_marlin", {"quant_method": "awq"}, "quantised as awq; --quantization gptq_marlin contradicts it"),
        ("awq", None, "awq is a format of quantised checkpoints, and this one has no quantization_config"),
    ],
)
def test_what_contradicts_the_checkpoint(tmp_path: Path, asked: str, declared: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configure(tmp_path, asked, declared)
