"""Which sizes each dimension of a step is padded to: by the chosen strategy, or as listed."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, inf

import msgspec

from lsv_base.errors import ConfigError
from lsv_hpu.buckets.sizes import exponential, linear, padding_aware
from lsv_hpu.settings import HpuOptions
from lsv_runtime.devices.shapes import BatchLimits

_PROMPTS = 4
"""Prompts in a step where nobody says how many: more rarely wait, and each doubling doubles the warm-up."""


class Sizes(msgspec.Struct, frozen=True):
    """Ascending sizes of the dimensions; ``summary`` has the strategy's parameters for the log, by phase.

    With ``decode_seq``, decoding rows are padded to as many tokens each, and ``decode_block`` lists the cache blocks
    that these make.
    """

    prompt_bs: tuple[int, ...]
    prompt_seq: tuple[int, ...]
    prompt_ctx: tuple[int, ...]
    decode_bs: tuple[int, ...]
    decode_block: tuple[int, ...]
    summary: tuple[str, str]
    decode_seq: tuple[int, ...] = ()


def choose_sizes(options: HpuOptions, limits: BatchLimits) -> Sizes:
    """Raises ``ConfigError`` for a smallest size above the largest."""
    parameters = _STRATEGIES[options.strategy](options, limits)
    spread = _RANGES[options.strategy]
    sizes = {name: _with_largest(spread(name, *numbers), numbers[2]) for name, numbers in parameters.items()}
    if limits.drafts:
        sizes["prompt_seq"] = _with_drafts(sizes["prompt_seq"], limits)
    sizes.setdefault("prompt_ctx", (0,))
    sizes |= options.lists
    if "decode_seq" in sizes:
        sizes["decode_block"] = _blocks_of_lengths(sizes["decode_bs"], sizes["decode_seq"], limits.block_size)
    words = _PARAMETERS[options.strategy]
    prompt, decode = (
        f"{phase} bucket config ({words}) {_listed(parameters, options.lists, names)}"
        for phase, names in (("Prompt", _PROMPT_NAMES), ("Decode", _DECODE_NAMES))
    )
    return Sizes(**sizes, summary=(prompt, decode))


_PROMPT_NAMES = {"prompt_bs": "bs", "prompt_seq": "seq", "prompt_ctx": "blocks"}
_DECODE_NAMES = {"decode_bs": "bs", "decode_block": "blocks", "decode_seq": "seq"}
_PARAMETERS = {
    "exp": "min, step, max_warmup, limit",
    "lin": "min, step, max_warmup",
    "pad": "min, step, max_warmup, pad_max, pad_percent",
}


def _listed(
    parameters: Mapping[str, tuple[int, ...]], lists: Mapping[str, tuple[int, ...]], names: Mapping[str, str]
) -> str:
    return ", ".join(
        f"{short}:{list(lists[name])} as given" if name in lists else f"{short}:{list(parameters[name])}"
        for name, short in names.items()
        if name in lists or name in parameters
    )


def _blocks_of_lengths(rows: tuple[int, ...], lengths: tuple[int, ...], block_size: int) -> tuple[int, ...]:
    return tuple(sorted({number * ceil(length / block_size) for number in rows for length in lengths}))


def _with_largest(sizes: tuple[int, ...], largest: int) -> tuple[int, ...]:
    """The largest size too, so that no step falls behind the last multiple."""
    return sizes if sizes[-1:] == (largest,) else (*sizes, largest)


def _with_drafts(queries: tuple[int, ...], limits: BatchLimits) -> tuple[int, ...]:
    """A size for a token and its drafts, too: padded to a prompt they would never pay."""
    return tuple(sorted({*queries, min(1 << _log2(1 + limits.drafts), _longest_query(limits))}))


def _exponential(options: HpuOptions, limits: BatchLimits) -> dict[str, tuple[int, ...]]:
    """(min, step, max, most values) of each dimension."""
    query = _longest_query(limits)
    queries = max(1, _log2(limits.max_tokens))
    context, prompts, blocks = _deepest_context(limits), min(limits.max_rows, _PROMPTS), _blocks_to_expect(limits)
    return {
        "prompt_bs": (1, 2, prompts, _log2(prompts) + 1),
        "prompt_seq": (min(limits.block_size, query), limits.block_size, query, queries),
        # A context goes with each query, so a short one deserves as many values.
        "prompt_ctx": (0, 1, context, max(_log2(context) + 1, queries)),
        "decode_bs": (1, 2, limits.max_rows, _log2(limits.max_rows) + 1),
        "decode_block": (1, limits.max_rows, blocks, _log2(blocks) + 1),
    }


def _linear(options: HpuOptions, limits: BatchLimits) -> dict[str, tuple[int, ...]]:
    """(min, step, max) of each dimension; contexts, which have no settings, are doubled, and absent if there are none.

    Decoding steps are sized by cache blocks, or by ``decode_seq`` tokens of a row if its settings are given.
    """
    rows, block = limits.max_rows, limits.block_size
    defaults = {
        "prompt_bs": (1, min(rows, 32), min(rows, 64)),
        "prompt_seq": (block, block, 1024),
        "decode_bs": (1, min(rows, 32), rows),
    }
    if any(name.startswith("decode_seq_") for name in options.linear):
        defaults["decode_seq"] = (block, block, 2048)
    else:
        defaults["decode_block"] = (block, block, max(128, rows * 2048 // block))
    triples: dict[str, tuple[int, ...]] = {}
    for name, default in defaults.items():
        low, step, high = (
            options.linear.get(f"{name}_bucket_{part}", value)
            for part, value in zip(("min", "step", "max"), default, strict=True)
        )
        if low > high:
            raise ConfigError(
                f"hpu.{name}_bucket_min={low} is above hpu.{name}_bucket_max={high}: raise the second",
                param=f"hpu.{name}_bucket_min",
            )
        triples[name] = (low, step, high)
    if context := _deepest_context(limits):
        triples["prompt_ctx"] = (1, context, context)
    return triples


def _padding_aware(options: HpuOptions, limits: BatchLimits) -> dict[str, tuple[int, ...]]:
    """(min, step, max, most padding, most padding in percent) of each dimension."""
    rows, block, percent = limits.max_rows, limits.block_size, options.pad_percent
    query, prompts, blocks = _longest_query(limits), min(limits.max_rows, _PROMPTS), _blocks_to_expect(limits)
    return {
        "prompt_bs": (1, 1, prompts, ceil(prompts / 4), percent),
        "prompt_seq": (min(block, query), block, query, ceil(query / 4), percent),
        "prompt_ctx": (0, 2, _deepest_context(limits), ceil(limits.max_tokens / block), percent),
        "decode_bs": (1, 2, rows, ceil(rows / 4), percent),
        "decode_block": (min(block, blocks), block, blocks, ceil(blocks / 4), percent),
    }


def _longest_query(limits: BatchLimits) -> int:
    return min(limits.max_tokens, limits.max_len)


def _deepest_context(limits: BatchLimits) -> int:
    """Blocks before the last new tokens of the longest request."""
    if not limits.contexts:
        return 0
    return limits.max_blocks - (1 if in_whole_blocks(limits) else 0)


def in_whole_blocks(limits: BatchLimits) -> bool:
    """Whether the new tokens of a row with several begin where a block does: drafts do not."""
    return limits.max_tokens % limits.block_size == 0 and not limits.drafts


def most_blocks(limits: BatchLimits) -> float:
    """Cache blocks that decoding rows can refer to: a shared one counts for each, so three times all there are."""
    return 3 * limits.num_blocks or inf


def _blocks_to_expect(limits: BatchLimits) -> int:
    return int(min(limits.max_rows * limits.max_blocks, most_blocks(limits)))


def _log2(number: int) -> int:
    """The logarithm, rounded up; 0 for 0."""
    return max(0, number - 1).bit_length()


def _linear_range(name: str, low: int, step: int, high: int) -> tuple[int, ...]:
    sizes = linear(low, step, high)
    return (0, *sizes) if name == "prompt_ctx" else sizes


_STRATEGIES = {"exp": _exponential, "lin": _linear, "pad": _padding_aware}
_RANGES = {
    "exp": lambda name, *numbers: exponential(*numbers, fill=name == "decode_block"),
    "lin": _linear_range,
    "pad": lambda name, *numbers: padding_aware(*numbers),
}
