"""Options that set nothing: what is accepted of them everywhere, what is refused, and what is warned of."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lsv import plugins
from lsv.settings import Declared, Given, Setting, Settings, gather, options
from lsv.settings.elsewhere import NEUTRAL, NEUTRAL_OF_SERVERS
from lsv.settings.flags import parse
from lsv.settings.neutral import dropped, neutral, problems, warnings
from lsv.settings.setting import ANYTHING
from lsv_base.errors import ConfigError
from lsv_offline.llm import read_options

ROWS = (*NEUTRAL, *NEUTRAL_OF_SERVERS)
OFFLINE = {setting.name for setting in NEUTRAL}
BY_NAME = {setting.name: setting for setting in ROWS}
ACCEPTED = [
    ("preemption_mode", "recompute"), ("swap_space", 0),
    ("swap_space", "4"), ("swap_space", 16.0), ("trust_remote_code", True),
    ("tokenizer_mode", "auto"), ("tokenizer_mode", "slow"), ("config_format", "mistral"),
    ("tokenizer_mode", "mistral"), ("num_scheduler_steps", 1), ("scheduler_delay_factor", 0),
    ("use_v2_block_manager", True), ("disable_custom_all_reduce", True), ("disable_frontend_multiprocessing", True),
    ("distributed_executor_backend", "mp"), ("weights_load_device", "cpu"), ("tokenizer_pool_size", 0),
    ("fully_sharded_loras", True), ("lora_extra_vocab_size", 256),
    ("max_seq_len_to_capture", 8192), ("code_revision", "main"),
    ("compilation_config", '{"level": 3}'), ("preemption_mode", "None"), ("disable_async_output_proc", False),
    ("max_parallel_loading_workers", 2), ("num_lookahead_slots", 0), ("all2all_backend", "allgather_reducescatter"),
    ("max_prompt_adapters", 1), ("max_prompt_adapter_token", 0), ("speculative_draft_tensor_parallel_size", 1),
    ("disable_logprobs_during_spec_decoding", False), ("worker_use_ray", False), ("engine_use_ray", False),
]  # fmt: skip
REFUSED = [
    ("preemption_mode", "swap", "recompute"),
    ("config_format", "gguf", "auto or hf or mistral"), ("enable_prompt_adapter", True, "false"),
    ("middleware", "a.b", "left out"), ("calculate_kv_scales", True, "false"), ("num_redundant_experts", 2, "0"),
    ("enable_prompt_adapters", True, "false"), ("prompt_adapters", "a=b", "left out"),
    ("worker_use_ray", True, "false"), ("engine_use_ray", True, "false"),
    ("long_lora_scaling_factors", "2,4", "left out"),
]  # fmt: skip
WARNED = [
    ("enable_dbo", True, "computed together"),
    ("num_scheduler_steps", 8, "a step is one pass"),
    ("collect_detailed_traces", "all", "a profile of steps has more"),
]  # fmt: skip
OBJECTS = SimpleNamespace(
    dtype=type("dtype", (), {"__module__": "torch", "__str__": lambda self: "torch.bfloat16"})(),
    device=type("device", (), {"__module__": "torch", "__str__": lambda self: "cpu"})(),
)
"""What torch's own look like, without torch."""


def by_flag(name: str, value: Any) -> Settings:
    declared = Declared(options.CORE)
    return gather(declared, parse([f"--{name.replace('_', '-')}={value}"], declared).given)


def by_file(name: str, value: Any, folder: Path) -> Settings:
    file = folder / "x.yaml"
    file.write_text(f"{name}: {value!r}\n")
    return gather(Declared(options.CORE), {}, file=str(file))


def by_variable(name: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv(f"LSV_{name.upper()}", str(value))
    try:
        return gather(Declared(options.CORE), {})
    finally:
        monkeypatch.delenv(f"LSV_{name.upper()}")


@pytest.mark.row(
    "F-003", "F-005", "F-215", "F-222", "F-229", "F-231", "F-232", "F-243", "F-246", "F-254", "F-255", "F-256",
    "F-263", "F-264", "F-265", "F-268", "F-269", "F-270", "F-274", "F-276", "F-284", "F-286", "F-297", "F-298",
    "F-302", "F-310",
)  # fmt: skip
@pytest.mark.parametrize(("name", "value"), ACCEPTED)
def test_a_neutral_value_is_accepted_everywhere(
    name: str, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for settings in (
        by_flag(name, value),
        by_file(name, value, tmp_path),
        by_variable(name, value, monkeypatch),
        *([read_options({name: value}, plugins.load(()))] if name in OFFLINE else []),
    ):
        assert list(warnings(settings)) == []


@pytest.mark.row("F-003", "F-207", "F-231", "F-263", "F-277", "F-278", "F-293", "F-296", "F-734")
@pytest.mark.parametrize(("name", "value", "expected"), REFUSED)
def test_another_value_is_refused_everywhere_with_what_to_use_instead(
    name: str, value: Any, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = [
        ("flag --", lambda: by_flag(name, value)),
        ("file ", lambda: by_file(name, value, tmp_path)),
        ("LSV_", lambda: by_variable(name, value, monkeypatch)),
    ]
    if name in OFFLINE:
        ways.append(("argument ", lambda: read_options({name: value}, plugins.load(()))))
    for source, read in ways:
        with pytest.raises(ConfigError) as caught:
            read()
        message = caught.value.message
        assert message.startswith(source)
        spelled = name if source == "argument " else name.replace("_", "-")
        assert f"{spelled} must be {expected}" in message
        assert message.endswith(f": {BY_NAME[name].instead}")
        assert caught.value.param == name


@pytest.mark.row("F-264", "F-312")
@pytest.mark.parametrize(("name", "value", "words"), WARNED)
def test_what_changes_no_answer_is_only_warned_of(name: str, value: Any, words: str) -> None:
    (warning,) = warnings(by_flag(name, value))
    assert warning.startswith(f"flag --{name.replace('_', '-')}: ")
    assert words in warning


@pytest.mark.row("F-007", "F-019", "F-271")
@pytest.mark.parametrize(
    "given",
    [
        {"enable_lora": False, "max_seq_len_to_capture": 8192, "disable_log_stats": True},
        {"max_context_len_to_capture": None, "swap_space": 4, "lora_modules": None, "quantization": None},
        {"dtype": OBJECTS.dtype, "device": OBJECTS.device, "compilation_config": {"level": 3}},
        {"model": Path("x"), "limit_mm_per_prompt": {"audio": 2}, "override_neuron_config": {"cast_logits_dtype": "x"}},
        {"use_v2_block_manager": True, "num_speculative_tokens": 5, "distributed_executor_backend": "mp"},
        {"disable_custom_all_reduce": False, "enforce_eager": None, "trust_remote_code": True, "seed": None},
    ],
)
def test_the_constructor_takes_what_others_take(given: dict[str, Any]) -> None:
    settings = read_options(given, plugins.load(()))
    if "dtype" in given:
        assert (settings["dtype"], settings["platform"]) == ("bfloat16", "cpu")
    if "model" in given:
        assert settings["model"] == "x"


def test_an_unknown_argument_is_refused_also_when_it_is_none() -> None:
    with pytest.raises(ConfigError, match="option max_modl_len: unknown; did you mean max_model_len"):
        read_options({"max_modl_len": None}, plugins.load(()))


@pytest.mark.parametrize("setting", ROWS, ids=lambda setting: setting.name)
def test_a_row_says_what_it_is(setting: Setting) -> None:
    assert setting.instead in setting.help
    assert setting.help.startswith(("has no effect", "refused"))
    assert setting.neutral is not None
    if setting.neutral and ANYTHING not in setting.neutral:
        assert setting.default == setting.neutral[0]


def test_a_row_of_a_platform_is_judged_on_that_platform_alone() -> None:
    row = neutral("toy.wheels", "round", "", instead="a toy rolls", env=("TOY_WHEELS",), platform="toy")
    declared = Declared([row, Setting(name="toy.colour")])
    settings = gather(declared, {"toy.wheels": Given("square", "flag --toy-wheels")})
    assert list(problems(settings, "car")) == []
    assert list(problems(settings, "toy")) == ["flag --toy-wheels: toy-wheels must be round, got 'square': a toy rolls"]
    assert settings.plugin_options() == {"toy.colour": None}, "what sets nothing is not handed on"
    for value in ("round", ""):
        assert list(problems(gather(declared, {"toy.wheels": Given(value, "x")}), "toy")) == []


def test_a_tolerant_row_of_a_platform_is_told_of_on_that_platform_alone() -> None:
    row = neutral("toy.wheels", "round", instead="a toy rolls", platform="toy", tolerant=True)
    settings = gather(Declared([row]), {"toy.wheels": Given("square", "x")})
    assert list(problems(settings, "toy")) == []
    assert list(warnings(settings)) == []
    assert [one.name for one in dropped(settings, "toy")] == ["toy.wheels"]
    assert list(dropped(settings, "car")) == []


def test_a_row_may_accept_nothing_or_everything() -> None:
    row = neutral("layers", type="int", instead="all are computed")
    assert row.help == "refused: all are computed"
    with pytest.raises(ConfigError, match="x: layers must be left out, got 1: all are computed"):
        gather(Declared([row]), {"layers": Given("1", "x")})
    row = neutral("layers", ANYTHING, type="int", instead="all are computed")
    assert row.help == "has no effect: all are computed"
    for value in ("1", "many", 2, {}):
        gather(Declared([row]), {"layers": Given(value, "x")})


def test_what_sets_nothing_does_not_get_into_the_way_of_what_does() -> None:
    assert by_flag("max-num-b", 5)["max_num_batched_tokens"] == 5
    assert by_flag("max-num-s", 5)["max_num_seqs"] == 5
    assert by_flag("gpu-memory-util", 0.5)["gpu_memory_utilization"] == 0.5
    assert by_flag("tokenizer-pool-s", 5)["tokenizer_pool_size"] == "5"
