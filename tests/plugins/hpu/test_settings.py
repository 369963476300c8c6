"""Names, defaults and contradictions of settings."""

from __future__ import annotations

import pytest

from lsv.config import EngineConfig, OptionValue
from lsv.settings import Declared, Given, gather, neutral
from lsv.settings.options import for_scope
from lsv_base.errors import ConfigError
from lsv_hpu import plugin
from lsv_hpu.settings import HpuOptions, declare, read


def config(options: dict[str, OptionValue], **more: object) -> EngineConfig:
    given = {
        "model": "m",
        "served_names": ("m",),
        "tokenizer": "m",
        "architecture": "A",
        "model_offer": "llama",
        "platform": "hpu",
        "attention": "hpu-flat",
        "dtype": "bfloat16",
        "block_size": 128,
        "max_model_len": 2048,
        **more,
    }
    return EngineConfig(options=options, **given)  # type: ignore[arg-type]


def test_defaults() -> None:
    declared = Declared(declare())
    assert read(gather(declared, {}).plugin_options()) == HpuOptions()


@pytest.mark.row("F-489", "F-512", "F-513", "F-514", "F-515", "F-542", "F-423")
@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("VLLM_BUCKETING_STRATEGY", "pad", "strategy", "pad"),
        ("VLLM_EXPONENTIAL_BUCKETING", "true", "strategy", "exp"),
        ("VLLM_EXPONENTIAL_BUCKETING", "false", "strategy", "lin"),
        ("VLLM_SKIP_WARMUP", "true", "skip_warmup", True),
        ("VLLM_FULL_WARMUP", "1", "full_warmup", True),
        ("VLLM_T_COMPILE_FULLGRAPH", "true", "compile_fullgraph", True),
        ("VLLM_T_COMPILE_DYNAMIC_SHAPES", "true", "compile_dynamic_shapes", True),
        ("VLLM_PROMPT_USE_FUSEDSDPA", "0", "prompt_use_fusedsdpa", False),
    ],
)
def test_variables(monkeypatch: pytest.MonkeyPatch, variable: str, text: str, name: str, value: object) -> None:
    monkeypatch.setenv(variable, text)
    assert getattr(read(gather(Declared(declare()), {}).plugin_options()), name) == value


@pytest.mark.row("F-537")
def test_delayed_sampling_is_scheduling_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_DELAYED_SAMPLING", "false")
    assert gather(Declared(for_scope("engine")), {})["async_scheduling"] is False


@pytest.mark.row(
    "F-522", "F-523", "F-524", "F-525", "F-526", "F-527", "F-528", "F-529", "F-530", "F-531", "F-532", "F-533",
)  # fmt: skip
def test_the_twelve_bucket_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_BUCKETING_STRATEGY", "lin")
    names = [f"{phase}_{part}" for phase in ("PROMPT_BS", "PROMPT_SEQ", "DECODE_BS", "DECODE_BLOCK")
             for part in ("BUCKET_MIN", "BUCKET_STEP", "BUCKET_MAX")]  # fmt: skip
    for number, name in enumerate(names, start=1):
        monkeypatch.setenv(f"VLLM_{name}", str(number))
    read_back = read(gather(Declared(declare()), {}).plugin_options()).linear
    assert read_back == {name.lower(): number for number, name in enumerate(names, start=1)}


@pytest.mark.row("F-489")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"exponential_bucketing": True, "prompt_bs_bucket_min": 2},
            "hpu.prompt_bs_bucket_min is for linear buckets, and these are exponential",
        ),
        (
            {"bucketing_strategy": "pad", "decode_block_bucket_max": 2},
            "hpu.decode_block_bucket_max is for linear buckets, and these are padding-aware",
        ),
        ({"bucketing_strategy": "pad", "exponential_bucketing": True}, "contradict each other"),
        ({"bucketing_strategy": "exp", "exponential_bucketing": False}, "contradict each other"),
        (
            {"bucketing_strategy": "lin", "prompt_bs_bucket_min": 2, "prompt_bs_buckets": "1,2"},
            "hpu.prompt_bs_buckets and hpu.prompt_bs_bucket_min both give sizes",
        ),
        (
            {"decode_seq_bucket_max": 2048, "decode_block_bucket_max": 64},
            "hpu.decode_seq_bucket_max and hpu.decode_block_bucket_max both size decoding steps: leave one out",
        ),
        (
            {"decode_seq_bucket_max": 2048, "decode_block_buckets": "1,2"},
            "hpu.decode_seq_bucket_max and hpu.decode_block_buckets both size decoding steps: leave one out",
        ),
        ({"skip_warmup": True, "full_warmup": True}, "hpu.full_warmup promises what hpu.skip_warmup leaves out"),
    ],
)
def test_contradictions(options: dict[str, OptionValue], message: str) -> None:
    named = {f"hpu.{name}": value for name, value in options.items()}
    with pytest.raises(ConfigError, match=message):
        read(named)
    (problem,) = plugin.lsv_check_config(config(named))
    assert message in problem


@pytest.mark.row("F-520", "F-521")
def test_sizes_of_linear_steps_make_steps_linear() -> None:
    assert read({}).strategy == "exp"
    assert read({"hpu.decode_block_bucket_max": 512}).strategy == "lin"


@pytest.mark.row("F-535", "F-536", "F-541", "F-544")
@pytest.mark.parametrize(
    ("option", "variable"),
    [
        ("prompt_use_flex_attention", "VLLM_PROMPT_USE_FLEX_ATTENTION"),
        ("config_hidden_layers", "VLLM_CONFIG_HIDDEN_LAYERS"),
    ],
)
def test_what_changes_no_answer_is_dropped_and_told_of(
    monkeypatch: pytest.MonkeyPatch, option: str, variable: str
) -> None:
    monkeypatch.setenv(variable, "4" if option == "config_hidden_layers" else "1")
    settings = gather(Declared(declare()), {})
    assert list(neutral.problems(settings, "hpu")) == []
    assert [row.name for row in neutral.dropped(settings, "hpu")] == [f"hpu.{option}"]
    assert list(neutral.dropped(settings, "cpu")) == [], "another platform does not care"
    assert f"hpu.{option}" not in settings.plugin_options()
    monkeypatch.setenv(variable, "1" if option == "config_hidden_layers" else "0")
    assert list(neutral.dropped(gather(Declared(declare()), {}), "hpu")) == []


BOTH = ("true", "false")


@pytest.mark.row("F-516", "F-517", "F-518", "F-519", "F-535", "F-539", "F-540", "F-544", "F-423")
@pytest.mark.parametrize(
    ("variable", "values"),
    [
        ("VLLM_DISABLE_MARK_SCALES_AS_CONST", BOTH),
        ("VLLM_HANDLE_TOPK_DUPLICATES", BOTH),
        ("PT_HPU_LAZY_MODE", ("0", "false")),
        ("PT_HPU_ENABLE_LAZY_COLLECTIVES", BOTH),
        ("PT_HPUGRAPH_DISABLE_TENSOR_CACHE", BOTH),
        ("VLLM_GRAPH_RESERVED_MEM", ("0.02", "0.1")),
        ("VLLM_GRAPH_PROMPT_RATIO", ("0.3", "1")),
        ("VLLM_GRAPH_PROMPT_STRATEGY", ("min_tokens", "max_bs")),
        ("VLLM_GRAPH_DECODE_STRATEGY", ("min_tokens", "max_bs")),
    ],
)
def test_what_is_so_whatever_is_asked_for_is_accepted(
    monkeypatch: pytest.MonkeyPatch, variable: str, values: tuple[str, ...]
) -> None:
    """Recipes that users of Gaudi have go on working, though what they set is gone."""
    for value in values:
        monkeypatch.setenv(variable, value)
        settings = gather(Declared(declare()), {})
        assert list(neutral.problems(settings, "hpu")) == []
        assert read(settings.plugin_options()) == HpuOptions()


@pytest.mark.row("F-474", "F-538")
def test_lazy_mode_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    flag = gather(Declared(declare()), {"hpu.lazy_mode": Given("true", "flag --hpu-lazy-mode")})
    monkeypatch.setenv("PT_HPU_LAZY_MODE", "1")
    variable = gather(Declared(declare()), {})
    for settings, source in ((flag, "flag --hpu-lazy-mode"), (variable, "PT_HPU_LAZY_MODE")):
        (problem,) = neutral.problems(settings, "hpu")
        assert problem.startswith(f"{source}: hpu-lazy-mode must be false, got True: ")
        assert "--enforce-eager" in problem
