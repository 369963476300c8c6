"""The settings of this platform, under the names Gaudi users know, and what can't be had together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from lsv.config import EngineConfig, OptionValue
from lsv.settings import Setting, SettingType
from lsv.settings.neutral import neutral
from lsv_base.errors import ConfigError

Strategy = Literal["exp", "lin", "pad"]
STRATEGIES: Mapping[Strategy, str] = {"exp": "exponential", "lin": "linear", "pad": "padding-aware"}

LINEAR = ("prompt_bs", "prompt_seq", "decode_bs", "decode_block", "decode_seq")
"""The dimensions that the linear strategy has settings for."""
DIMENSIONS = ("prompt_bs", "prompt_seq", "prompt_ctx", "decode_bs", "decode_block")

_MEANINGS = {
    "prompt_bs": "prompts in a step",
    "prompt_seq": "tokens of the longest prompt in a step",
    "prompt_ctx": "cache blocks before the new tokens of a prompt",
    "decode_bs": "decoding requests in a step",
    "decode_block": "cache blocks of all decoding requests together",
    "decode_seq": "tokens of a decoding request, on average; instead of cache blocks",
}
_DEFAULTS = {
    "prompt_bs": ("1", "min(max_num_seqs, 32)", "min(max_num_seqs, 64)"),
    "prompt_seq": ("block_size", "block_size", "1024"),
    "decode_bs": ("1", "min(max_num_seqs, 32)", "max_num_seqs"),
    "decode_block": ("block_size", "block_size", "max(128, max_num_seqs * 2048 / block_size)"),
    "decode_seq": ("block_size", "block_size", "2048"),
}
_SWITCHES = {
    "compile_fullgraph": ("VLLM_T_COMPILE_FULLGRAPH", False, "torch.compile: a graph break is an error"),
    "compile_dynamic_shapes": (
        "VLLM_T_COMPILE_DYNAMIC_SHAPES",
        False,
        "torch.compile: sizes may become variable where they change",
    ),
    "prompt_use_fusedsdpa": (
        "VLLM_PROMPT_USE_FUSEDSDPA",
        True,
        "compute prompts by FusedSDPA; false: by plain products",
    ),
    "profiler_enabled": (
        "VLLM_PROFILER_ENABLED",
        False,
        "write a trace of all steps, for ui.perfetto.dev: a JSON file a device, in hpu.profiler_dir",
    ),
    "log_step_graph_compilation": (
        "VLLM_HPU_LOG_STEP_GRAPH_COMPILATION",
        False,
        "log the graphs compiled in a step, if there are any",
    ),
    "log_step_graph_compilation_all": (
        "VLLM_HPU_LOG_STEP_GRAPH_COMPILATION_ALL",
        False,
        "log the graphs compiled in a step, for every step",
    ),
    "log_step_cpu_fallbacks": (
        "VLLM_HPU_LOG_STEP_CPU_FALLBACKS",
        False,
        "log the ops of a step that ran on the host's processor instead, if there are any",
    ),
    "log_step_cpu_fallbacks_all": (
        "VLLM_HPU_LOG_STEP_CPU_FALLBACKS_ALL",
        False,
        "log the ops of a step that ran on the host's processor instead, for every step",
    ),
}
"""How steps run and what is told of them: (variable, default, meaning)."""


def _neutral(
    name: str, *values: Any, env: str, instead: str, type: SettingType = "bool", tolerant: bool = True
) -> Setting:
    """A row of this platform. Other values are told of, and refused only where they would change answers."""
    return neutral(f"hpu.{name}", *values, env=(env,), instead=instead, type=type, platform="hpu", tolerant=tolerant)


_NO_GRAPHS = "there are no HPU graphs, which only lazy mode has"
_ORDERS = ("min_tokens", "max_bs")
NEUTRAL = (
    _neutral("lazy_mode", False, env="PT_HPU_LAZY_MODE", tolerant=False,
             instead="lazy mode holds 64-bit integers in 32 bits, and sampled tokens would be wrong: leave it out for "
             "steps compiled by torch, or give --enforce-eager for steps op by op"),
    _neutral("lazy_collectives", True, False, env="PT_HPU_ENABLE_LAZY_COLLECTIVES", instead=_NO_GRAPHS),
    _neutral("disable_tensor_cache", False, True, env="PT_HPUGRAPH_DISABLE_TENSOR_CACHE", instead=_NO_GRAPHS),
    _neutral("graph_prompt_strategy", *_ORDERS, env="VLLM_GRAPH_PROMPT_STRATEGY", instead=_NO_GRAPHS, type="str"),
    _neutral("graph_decode_strategy", *reversed(_ORDERS), env="VLLM_GRAPH_DECODE_STRATEGY", instead=_NO_GRAPHS,
             type="str"),
    _neutral("disable_mark_scales_as_const", True, False, env="VLLM_DISABLE_MARK_SCALES_AS_CONST",
             instead="scales are never constants of a graph: warming up is faster so"),
    _neutral("handle_topk_duplicates", True, False, env="VLLM_HANDLE_TOPK_DUPLICATES",
             instead="tokens as likely as the last one in top-k always stay in"),
    _neutral("config_hidden_layers", 1, env="VLLM_CONFIG_HIDDEN_LAYERS", instead="a graph holds a whole step",
             type="int"),
    _neutral("prompt_use_flex_attention", False, env="VLLM_PROMPT_USE_FLEX_ATTENTION",
             instead="prompts are computed by FusedSDPA, or plainly with hpu.prompt_use_fusedsdpa=false"),
)  # fmt: skip


class HpuOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The settings' values, read once; names and defaults are those of ``declare``."""

    strategy: Strategy = "exp"
    linear: Mapping[str, int] = {}
    lists: Mapping[str, tuple[int, ...]] = {}
    pad_percent: int = 25
    skip_warmup: bool = False
    full_warmup: bool = False
    compile_fullgraph: bool = False
    compile_dynamic_shapes: bool = False
    prompt_use_fusedsdpa: bool = True
    profiler_enabled: bool = False
    profiler_dir: str = "."
    log_step_graph_compilation: bool = False
    log_step_graph_compilation_all: bool = False
    log_step_cpu_fallbacks: bool = False
    log_step_cpu_fallbacks_all: bool = False
    quant_config: str | None = None
    emulated_memory: float = 1.0


def read(options: Mapping[str, OptionValue]) -> HpuOptions:
    """The values by name without the plugin's prefix. Raises ``ConfigError`` naming settings that contradict."""
    given = {
        name.removeprefix("hpu."): value
        for name, value in options.items()
        if name.startswith("hpu.") and value is not None
    }
    linear = {name: value for name, value in given.items() if "_bucket_" in name}
    strategy = _strategy(given, "lin" if linear else "exp")
    if linear and strategy != "lin":
        raise ConfigError(
            f"hpu.{next(iter(linear))} is for linear buckets, and these are {STRATEGIES[strategy]}: give "
            "hpu.bucketing_strategy=lin with it, or list the sizes (hpu.prompt_seq_buckets and its like)",
            param=f"hpu.{next(iter(linear))}",
        )
    lists = {name: parse_sizes(f"hpu.{name}_buckets", str(given[f"{name}_buckets"]))
             for name in DIMENSIONS if f"{name}_buckets" in given}  # fmt: skip
    for name in lists:
        both = [key for key in linear if key.startswith(f"{name}_bucket_")]
        if both:
            raise ConfigError(
                f"hpu.{name}_buckets and hpu.{both[0]} both give sizes: leave one out", param=f"hpu.{both[0]}"
            )
    _check_decode_sizes(linear, lists)
    if given.get("skip_warmup") and given.get("full_warmup"):
        raise ConfigError(
            "hpu.full_warmup promises what hpu.skip_warmup leaves out: leave one out", param="hpu.full_warmup"
        )
    plain = {name: given[name] for name in HpuOptions.__struct_fields__ if name in given}
    return msgspec.convert({**plain, "strategy": strategy, "linear": linear, "lists": lists}, HpuOptions)


def _check_decode_sizes(linear: Iterable[str], lists: Iterable[str]) -> None:
    """Raises ``ConfigError`` if decoding steps are sized by tokens of a request and by cache blocks, too."""
    tokens = next((name for name in linear if name.startswith("decode_seq_")), None)
    blocks = next((name for name in linear if name.startswith("decode_block_")), None)
    if blocks is None and "decode_block" in lists:
        blocks = "decode_block_buckets"
    if tokens and blocks:
        raise ConfigError(
            f"hpu.{tokens} and hpu.{blocks} both size decoding steps: leave one out", param=f"hpu.{tokens}"
        )


def _strategy(given: Mapping[str, OptionValue], default: Strategy) -> Strategy:
    """``bucketing_strategy``, or what the older switch between exponential and linear says, or the default."""
    named, older = given.get("bucketing_strategy"), given.get("exponential_bucketing")
    switched: Strategy | None = None if older is None else "exp" if older else "lin"
    if named is not None and switched is not None and named != switched:
        raise ConfigError(
            f"hpu.bucketing_strategy={named} and hpu.exponential_bucketing={str(older).lower()} contradict each other: "
            "leave the second out",
            param="hpu.exponential_bucketing",
        )
    strategy: Strategy = msgspec.convert(named, Strategy) if named is not None else switched or default
    return strategy


def parse_sizes(name: str, text: str) -> tuple[int, ...]:
    """``"1,2,4"`` as ascending numbers; contexts may be 0. Raises ``ConfigError``."""
    try:
        sizes = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        sizes = ()
    least = 0 if name == "hpu.prompt_ctx_buckets" else 1
    if not sizes or sizes[0] < least:
        raise ConfigError(f"{name} must be whole numbers from {least} on, such as 1,2,4, got {text!r}", param=name)
    return sizes


def find_problems(config: EngineConfig) -> Iterator[str]:
    """What in a configuration of this platform can't be honoured, one sentence each."""
    try:
        read(config.options)
    except ConfigError as problem:
        yield problem.message


def declare() -> Iterable[Setting]:
    """Every setting of the platform."""
    yield from _bucket_settings()
    yield from _warmup_settings()
    yield from _execution_settings()
    yield from NEUTRAL


def _bucket_settings() -> Iterator[Setting]:
    yield Setting(
        name="hpu.bucketing_strategy",
        choices=tuple(STRATEGIES),
        env=("VLLM_BUCKETING_STRATEGY",),
        help="how sizes of steps are spaced: exponential, linear or padding-aware (default: exp; lin where sizes of "
        "linear steps are given)",
    )
    yield Setting(
        name="hpu.exponential_bucketing",
        type="bool",
        env=("VLLM_EXPONENTIAL_BUCKETING",),
        help="older name: true is hpu.bucketing_strategy=exp, false is lin",
    )
    yield Setting(
        name="hpu.pad_percent",
        type="int",
        default=25,
        low=0,
        high=50,
        help="padding-aware sizes: most padding as a share of a size",
    )
    for dimension in LINEAR:
        for part, default in zip(("min", "step", "max"), _DEFAULTS[dimension], strict=True):
            yield Setting(
                name=f"hpu.{dimension}_bucket_{part}",
                type="int",
                low=1,
                env=(f"VLLM_{dimension.upper()}_BUCKET_{part.upper()}",),
                help=f"linear sizes, {_MEANINGS[dimension]}: {part} (default: {default})",
            )
    for dimension in DIMENSIONS:
        yield Setting(
            name=f"hpu.{dimension}_buckets",
            help=f"the sizes themselves, such as 1,2,4, instead of a strategy's: {_MEANINGS[dimension]}",
        )


def _warmup_settings() -> Iterator[Setting]:
    yield _switch("skip_warmup", "VLLM_SKIP_WARMUP", "start without warming up: requests then wait for compilations")
    yield _switch("full_warmup", "VLLM_FULL_WARMUP", "a step in a shape that was not warmed up is an error")
    for name, default, high in (("reserved_mem", 0.1, 0.99), ("prompt_ratio", 0.3, 1)):
        yield Setting(
            name=f"hpu.graph_{name}",
            type="float",
            default=default,
            low=0,
            high=high,
            env=(f"VLLM_GRAPH_{name.upper()}",),
            help=f"has no effect: {_NO_GRAPHS}",
        )


def _execution_settings() -> Iterator[Setting]:
    for name, (variable, default, meaning) in _SWITCHES.items():
        yield _switch(name, variable, meaning, default=default)
    yield Setting(name="hpu.profiler_dir", default=".", help="folder for the trace of hpu.profiler_enabled")
    yield Setting(
        name="hpu.quant_config",
        env=("QUANT_CONFIG",),
        help="Neural Compressor's file for --quantization inc: what to measure, or which measurements to use",
    )
    yield Setting(
        name="hpu.emulated_memory",
        type="float",
        default=1.0,
        low=0.01,
        help="GiB that a device has under --emulate",
    )


def _switch(name: str, variable: str, meaning: str, *, default: bool = False) -> Setting:
    return Setting(name=f"hpu.{name}", type="bool", default=default, env=(variable,), help=meaning)
