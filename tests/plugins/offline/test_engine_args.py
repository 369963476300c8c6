"""Engine arguments: a dataclass from the settings, a parser for it, and what it makes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from lsv import AsyncEngineArgs, EngineArgs, FlexibleArgumentParser
from lsv_base.errors import ConfigError
from lsv_offline.llm import read_arguments


def parse(*arguments: str):
    return EngineArgs.from_cli_args(EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(arguments))


@pytest.mark.row("F-091")
def test_fields_are_the_options_of_llm():
    args = EngineArgs(model="m", max_model_len=512)
    assert (args.model, args.max_model_len, args.tensor_parallel_size) == ("m", 512, 1)
    assert args.given() == {"model": "m", "max_model_len": 512}
    assert "cpu_threads" in {field.name for field in dataclasses.fields(args)}, "options of plugins"
    with pytest.raises(TypeError, match="max_model_length"):
        EngineArgs(model="m", max_model_length=512)
    assert AsyncEngineArgs(model="m", disable_log_requests=True).given() == {"model": "m"}


@pytest.mark.row("F-020")
def test_arguments_are_what_an_llm_is_made_of():
    settings, _ = read_arguments(dataclasses.asdict(parse("--model", "m", "--enforce-eager", "-tp", "2")))
    assert (settings["model"], settings["enforce_eager"], settings["tensor_parallel_size"]) == ("m", True, 2)
    with pytest.raises(ConfigError, match="tensor_parallel_size must be"):
        read_arguments(dataclasses.asdict(parse("--model", "m", "-tp", "two")))


@pytest.mark.row("F-092")
def test_the_parser_takes_underscores_and_a_file(tmp_path: Path):
    file = tmp_path / "args.yaml"
    file.write_text("model: from-file\nmax_model_len: 256\nenable-prefix-caching: false\nserved-model-name: [a, b]\n")
    args = parse("--max_num_seqs=7", "--config", str(file), "--model", "from-flag")
    assert (args.model, args.max_num_seqs, args.max_model_len) == ("from-flag", "7", "256")
    settings, _ = read_arguments(dataclasses.asdict(args))
    assert settings["enable_prefix_caching"] is False
    assert settings["served_model_name"] == ("a", "b")
    assert parse("--no-enable-prefix-caching").enable_prefix_caching is False
    with pytest.raises(SystemExit):
        parse("--config", str(tmp_path / "none.yaml"))


def test_a_script_may_have_arguments_of_its_own():
    parser = FlexibleArgumentParser(description="a script")
    parser.add_argument("--model", default="own")
    parser.add_argument("--num-prompts", type=int, default=3)
    read = EngineArgs.add_cli_args(parser).parse_args(["--num_prompts", "5"])
    assert (read.num_prompts, EngineArgs.from_cli_args(read).model) == (5, "own")
