"""Options + capabilities + checkpoint → ``EngineConfig``: every choice made once, with its reason. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lsv.capabilities import Capabilities
from lsv.config import Choices, EngineConfig
from lsv.offers import AttentionOffer, ModelAlias, ModelOffer, PolicyOffer
from lsv.plugins import Plugins
from lsv.plugins.grammars import choose_backend
from lsv.resolve.adapters import adapter_options
from lsv.resolve.architecture.choice import resolve_model
from lsv.resolve.attention import AskedOfAttention, choose_attention
from lsv.resolve.draft_model import Target
from lsv.resolve.drafts import choose_drafts
from lsv.resolve.encoded import read_encoded
from lsv.resolve.experts.shared import refuse_with_shared_experts
from lsv.resolve.files import (
    check_load_format,
    loader_options,
    model_folder,
    refuse_foreign,
    remote_code,
    tokenizer_folder,
    tokenizer_place,
)
from lsv.resolve.generation import recommendations
from lsv.resolve.hardware import choose_depth, choose_platform, refuse_pairs
from lsv.resolve.lengths import Limits, choose_length, read_limits
from lsv.resolve.locate import choose_names, default_model, language_of, merge, read_config, read_vocab_size
from lsv.resolve.offload import caching
from lsv.resolve.overrides import read_overrides
from lsv.resolve.pooling import choose_pooler, is_cached
from lsv.resolve.profiling import operation
from lsv.resolve.ranks.topology import choose_ranks, refuse_with_stages
from lsv.resolve.weights.calibration import resolve_calibrated
from lsv.resolve.weights.formats import choose_ignored, choose_quantizer
from lsv.settings import Settings, neutral
from lsv.settings.structured import grammar_backend
from lsv_base.errors import ConfigError

_DTYPES = {
    "half": "float16",
    "fp16": "float16",
    "float16": "float16",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "float": "float32",
    "fp32": "float32",
    "float32": "float32",
}
_FP8_CACHE = "fp8_e4m3"
_LEAST_ENCODED, _MOST_ENCODED = 16384, 32768
"""Embeddings of media that are kept: those of the largest item that fits a prompt, as far as that takes no more memory
than a few gigabytes while it is encoded. 64 frames, the most taken unasked, are up to 24,576."""


def resolve(settings: Settings, plugins: Plugins) -> EngineConfig:
    """Decide everything an engine needs. Raises ``ConfigError`` or ``CheckpointError`` naming the option at fault."""
    if settings["quantization_calibration"] is not None:
        return resolve_calibrated(settings, plugins.catalog, lambda some, folder: _resolve(some, plugins, folder))
    return _resolve(settings, plugins)


def _resolve(settings: Settings, plugins: Plugins, folder: Path | None = None) -> EngineConfig:
    """``folder`` takes the place of the settings' model; None for that model."""
    catalog, choices, options = plugins.catalog, Choices(), settings.plugin_options()
    name = settings["model"] or default_model(catalog)
    folder = folder or model_folder(name, settings, catalog)
    refuse_foreign(folder, settings["load_format"])
    overrides, parts = read_overrides(folder, settings, catalog, choices)
    served = resolve_model(folder, overrides, settings, catalog, choices)
    overrides, model = merge(overrides, served.overrides), served.model
    checkpoint = read_config(folder, overrides)
    platform, device = choose_platform(settings["platform"], settings["emulate"], options, catalog, choices)
    capabilities = platform.capabilities(device)
    dtype, kv_dtype = _choose_dtypes(settings, checkpoint, capabilities, model, choices)
    backend, asked = settings["attention_backend"], AskedOfAttention(dtype, kv_dtype, settings["block_size"])
    attention, *others = choose_attention(backend, platform, capabilities, catalog, choices, asked)
    block_size = _choose_block_size(settings["block_size"], attention, model, choices)
    pooler, longest = choose_pooler(settings, checkpoint, folder, model, choices)
    cached, limits = is_cached(checkpoint, model, pooler), read_limits(checkpoint, model, longest)
    length, overrides = _choose_context(settings, checkpoint, limits, overrides, choices)
    _note_dropped(settings, platform.name, choices)
    chunked = cached and bool(settings["enable_chunked_prefill"])
    words = tokenizer_folder(settings, name, folder, catalog)
    config = EngineConfig(
        model=str(folder),
        parts=parts,
        **choose_names(settings["served_model_name"], name, catalog),
        tokenizer=str(tokenizer_place(settings, words)),
        stop_tokens=model.stop_tokens,
        **recommendations(settings, folder, words, pooler, catalog, choices),
        architecture=served.architecture,
        wrapper=served.wrapper,
        model_offer=model.name,
        platform=platform.name,
        emulate=settings["emulate"],
        device=device.index,
        attention=attention.name,
        attention_next=tuple(other.name for other in others if block_size in other.block_sizes),
        quantization=choose_quantizer(settings["quantization"], checkpoint, catalog, choices),
        quantization_ignore=choose_ignored(settings, checkpoint, choices),
        load_format=check_load_format(settings["load_format"], folder, catalog),
        remote_code=remote_code(settings),
        loader=loader_options(settings, choices),
        dtype=dtype,
        kv_dtype=kv_dtype,
        kv_scales=_choose_scales(settings["quantization_param_path"], kv_dtype),
        pooler=pooler,
        cached=cached,
        block_size=block_size,
        max_model_len=length,
        max_num_seqs=settings["max_num_seqs"],
        mixed_batches=capabilities.mixed_batches,
        max_num_batched_tokens=_choose_step_tokens(settings["max_num_batched_tokens"], length, chunked, choices),
        max_queue=settings["max_queue"],
        **caching(settings, catalog, cached=cached),
        chunked_prefill=chunked,
        max_itl_ms=_choose_pace(settings["max_itl_ms"], chunked),
        policy=catalog.find(PolicyOffer, settings["scheduling_policy"]).name,
        drafts=choose_drafts(settings, Target(checkpoint, words, length, cached), choose_quantizer, catalog, choices),
        layout=capabilities.layout,
        in_flight=choose_depth(settings["async_scheduling"], capabilities, settings["pipeline_parallel_size"]),
        enforce_eager=settings["enforce_eager"] or not cached,
        **_share_memory(settings),
        **_show_logprobs(settings),
        grammars=choose_backend(catalog, grammar_backend(settings), choices),
        logits_processors=settings["logits_processors"],
        adapters=adapter_options(settings, catalog.offers(ModelAlias)),
        vocab_size=read_vocab_size(checkpoint),
        encoded=read_encoded(checkpoint, folder, model, choices),
        encoder_cache_tokens=settings["encoder_cache_tokens"] or min(max(length, _LEAST_ENCODED), _MOST_ENCODED),
        seed=settings["seed"],
        **operation(settings),
        reference_ops=settings["reference_ops"],
        **choose_ranks(settings, platform.name, catalog, choices),
        plugins=plugins.names,
        options=options,
        overrides=overrides,
        reasons=tuple(choices.reasons),
    )
    _refuse_problems(config, settings, plugins, capabilities)
    return config


def _show_logprobs(settings: Settings) -> dict[str, Any]:
    """How many log probabilities a request may see, and whether they follow the draw."""
    processed = settings["logprobs_mode"] == "processed_logprobs"
    return {"max_logprobs": settings["max_logprobs"], "processed_logprobs": processed}


def _share_memory(settings: Settings) -> dict[str, Any]:
    """What the device's memory is for."""
    return {
        "memory_share": settings["gpu_memory_utilization"],
        "offload_bytes": int(settings["cpu_offload_gb"] * (1 << 30)),
        "kv_bytes": settings["kv_cache_memory_bytes"],
        "num_blocks": settings["num_gpu_blocks_override"],
    }


def _choose_context(
    settings: Settings, checkpoint: Mapping[str, Any], limits: Limits, overrides: dict[str, Any], choices: Choices
) -> tuple[int, dict[str, Any]]:
    """The longest context, and what is laid over the checkpoint for it."""
    length = choose_length(settings, limits, choices)
    if settings["disable_sliding_window"]:
        return _without_window(checkpoint, length, overrides, choices)
    return length, overrides


def _note_dropped(settings: Settings, platform: str, choices: Choices) -> None:
    for setting in neutral.dropped(settings, platform):
        choices.note(setting.name, settings[setting.name], f"has no effect: {setting.instead}")


def _choose_block_size(asked: int | None, attention: AttentionOffer, model: ModelOffer, choices: Choices) -> int:
    allowed = attention.block_sizes
    if asked is None and model.block_size is not None:
        size = max((one for one in allowed if one <= model.block_size), default=min(allowed))
        choices.note("block_size", size, f"{model.name} keeps states, which are as large as many tokens")
        return size
    if asked is None:
        choices.note("block_size", allowed[0], f"the default of {attention.name}")
        return allowed[0]
    if asked not in allowed:
        sizes = ", ".join(map(str, sorted(allowed)))
        raise ConfigError(f"block_size={asked}: {attention.name} allows {sizes}", param="block_size")
    return asked


def _choose_dtypes(
    settings: Settings, checkpoint: Mapping[str, Any], capabilities: Capabilities, model: ModelOffer, choices: Choices
) -> tuple[str, str]:
    """The model's, and the KV cache's."""
    dtype = _choose_dtype(settings["dtype"], checkpoint, capabilities, model, choices)
    return dtype, _choose_kv_dtype(settings["kv_cache_dtype"], checkpoint, capabilities, choices)


def _choose_dtype(
    asked: str, checkpoint: Mapping[str, Any], capabilities: Capabilities, model: ModelOffer, choices: Choices
) -> str:
    """The asked dtype, or the checkpoint's own where the platform prefers it to float32, or the platform's default."""
    if asked != "auto":
        dtype = _DTYPES.get(asked, asked)
        if dtype not in capabilities.dtypes:
            known = ", ".join(capabilities.dtypes)
            raise ConfigError(f"dtype {asked} is not one of the platform's: {known}", param="dtype")
        if dtype in model.unstable:
            raise ConfigError(f"{model.name} can't run in {dtype}: {model.unstable[dtype]}", param="dtype")
        return dtype
    own = str(checkpoint.get("dtype") or checkpoint.get("torch_dtype") or "no dtype")
    preferred = _preferred(capabilities)
    for candidate in (own, *preferred):
        if candidate in preferred and candidate not in model.unstable:
            why = "the checkpoint's own" if candidate == own else f"the platform's default (the checkpoint has {own})"
            choices.note("dtype", candidate, why)
            return candidate
    raise ConfigError(f"{model.name} runs in none of {', '.join(capabilities.dtypes)}", param="dtype")


def _preferred(capabilities: Capabilities) -> Sequence[str]:
    """The dtypes a platform lists ahead of float32; all where float32 comes first."""
    dtypes = capabilities.dtypes
    return dtypes[: dtypes.index("float32")] or dtypes if "float32" in dtypes else dtypes


def _choose_kv_dtype(asked: str, checkpoint: Mapping[str, Any], capabilities: Capabilities, choices: Choices) -> str:
    """The asked dtype by its full name, or 8-bit floats for a checkpoint made for them, or the model's dtype."""
    if asked in capabilities.kv_aliases:
        named = capabilities.kv_aliases[asked]
        choices.note("kv_cache_dtype", named, f"{asked} is another name for it")
        return named
    if asked not in capabilities.kv_dtypes:
        known = ", ".join((*capabilities.kv_dtypes, *capabilities.kv_aliases))
        raise ConfigError(f"kv_cache_dtype {asked} is not one of {known}", param="kv_cache_dtype")
    if asked == "auto" and _declares_fp8_cache(checkpoint) and _FP8_CACHE in capabilities.kv_dtypes:
        choices.note("kv_cache_dtype", _FP8_CACHE, "the checkpoint's own")
        return _FP8_CACHE
    return _FP8_CACHE if asked == "fp8" else asked


def _choose_scales(path: str | None, kv_dtype: str) -> str | None:
    if path and kv_dtype != _FP8_CACHE:
        raise ConfigError(
            f"quantization_param_path requires an fp8 KV cache, not {kv_dtype}: add --kv-cache-dtype fp8",
            param="quantization_param_path",
        )
    return path


def _declares_fp8_cache(checkpoint: Mapping[str, Any]) -> bool:
    """``kv_cache_scheme`` of compressed-tensors, or ``kv_cache_quant_algo`` of ModelOpt."""
    declared = checkpoint.get("quantization_config")
    if not isinstance(declared, Mapping):
        return False
    scheme = declared.get("kv_cache_scheme")
    if isinstance(scheme, Mapping):
        return (scheme.get("type"), scheme.get("num_bits")) == ("float", 8)
    return str(declared.get("kv_cache_quant_algo")).upper() == "FP8"


def _without_window(
    checkpoint: Mapping[str, Any], length: int, overrides: dict[str, Any], choices: Choices
) -> tuple[int, dict[str, Any]]:
    """``--disable-sliding-window``: full attention everywhere, so no more context than the window holds."""
    key, text = language_of(checkpoint)
    own = text or checkpoint
    window = own.get("sliding_window")
    if not isinstance(window, int) or own.get("use_sliding_window") is False:
        return length, overrides
    choices.note("max_model_len", min(length, window), f"sliding windows are disabled, the window is {window}")
    without = {"sliding_window": None, "layer_types": None}
    return min(length, window), merge(overrides, {key: without} if text else without)


def _choose_step_tokens(asked: int | None, length: int, chunked: bool, choices: Choices) -> int:
    if asked is None:
        tokens = 2048 if chunked else max(2048, length)
        why = "the default" if chunked else "prompts are not chunked, so the longest must fit into a step"
        choices.note("max_num_batched_tokens", tokens, why)
        return tokens
    if not chunked and asked < length:
        raise ConfigError(
            f"max_num_batched_tokens={asked} is less than max_model_len={length}, which needs chunked prefill",
            param="max_num_batched_tokens",
        )
    return int(asked)


def _choose_pace(asked: float | None, chunked: bool) -> float | None:
    if asked and not chunked:
        raise ConfigError(
            f"max_itl_ms={asked:g} needs chunked prefill: a prompt in one piece keeps all others waiting",
            param="max_itl_ms",
        )
    return asked or None


def _refuse_problems(config: EngineConfig, settings: Settings, plugins: Plugins, capabilities: Capabilities) -> None:
    """Pairs of features that the platform does not do together; then options that set nothing on this platform, and
    ``lsv_check_config``: all problems of all plugins in one error.
    """
    refuse_with_stages(config)
    refuse_with_shared_experts(config)
    refuse_pairs(config, capabilities)
    problems = [*neutral.problems(settings, config.platform)]
    asked = plugins.ask("lsv_check_config", config=config)
    problems += [f"{text} (plugin {plugin})" for plugin, found in asked for text in found or ()]
    if problems:
        raise ConfigError("; ".join(problems))
