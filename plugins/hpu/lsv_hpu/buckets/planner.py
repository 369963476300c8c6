"""Buckets for a sample of requests, beside those a configuration has: their number, padding and warm-up time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from lsv.capabilities import Padding
from lsv.config import EngineConfig, OptionValue
from lsv.platform import Advice, Traffic
from lsv_hpu.buckets.choice import Sizes, choose_sizes
from lsv_hpu.buckets.sizes import fitted
from lsv_hpu.buckets.table import Buckets
from lsv_hpu.buckets.traffic import Steps, Waste, measure, serve
from lsv_hpu.settings import read
from lsv_runtime.devices.shapes import BatchLimits

_SECONDS = 0.7
"""Of warm-up for a bucket: 72 buckets in 49 s, as the Gaudi documentation's example logs them."""
_MORE = 2
"""Times as many sizes as the given buckets have are tried in a dimension."""


def advise(config: EngineConfig, traffic: Sequence[Traffic]) -> Advice:
    """Without a sample, only what the configuration's own buckets are."""
    limits = limits_of(config)
    given = Buckets(choose_sizes(read(config.options), limits), limits)
    if not traffic:
        return Advice("buckets", tuple(_rows("given", given, None)))
    steps = _serve(traffic, given)
    found = propose(given, traffic, steps)
    settings: dict[str, OptionValue] = {
        f"hpu.{name}_buckets": ",".join(map(str, getattr(found.sizes, name)))
        for name in ("prompt_seq", "decode_bs", "decode_block")
    }
    rows = (
        *_rows("given", given, measure(steps, given)),
        *_rows("proposed", found, measure(_serve(traffic, found), found)),
    )
    return Advice(f"buckets for {len(traffic)} requests", rows, settings)


def limits_of(config: EngineConfig) -> BatchLimits:
    return BatchLimits(
        max_rows=config.max_num_seqs,
        max_tokens=config.max_num_batched_tokens,
        max_blocks=-(-config.max_model_len // config.block_size),
        block_size=config.block_size,
        num_blocks=config.num_blocks or 0,
        contexts=config.cuts_prompts,
        drafts=0 if config.drafts is None else config.drafts.most,
    )


def propose(given: Buckets, traffic: Sequence[Traffic], steps: Steps) -> Buckets:
    """Buckets that waste least on the sample, no more of prompts and of decoding rows than the given ones.

    Both reach as far as the given ones, so what is not in the sample is ready too, if with more padding.
    """
    best = _better_decodes(given, steps)
    return min(
        (best, *_other_prompts(best, len(given.prompts), steps)),
        key=lambda buckets: _prompt_cost(measure(_serve(traffic, buckets), buckets)),
    )


def _other_prompts(given: Buckets, most: int, steps: Steps) -> Iterator[Buckets]:
    """Sets with other lengths of prompts: for each way to weigh the sample, as many lengths as ``most`` allows."""
    sizes = given.sizes
    by_step: Counter[int] = Counter()
    by_row: Counter[int] = Counter()
    for shape, times in steps.prompts.items():
        by_step[shape.query] += times
        by_row[shape.query] += times * shape.rows
    for demand in (by_row, by_step):
        choices = fitted(demand, _MORE * len(sizes.prompt_seq), sizes.prompt_seq[-1], given.limits.block_size)
        sets = (_replaced(given, prompt_seq=choice) for choice in reversed(choices))
        found = next((buckets for buckets in sets if len(buckets.prompts) <= most), None)
        if found is not None:
            yield found


def _better_decodes(given: Buckets, steps: Steps) -> Buckets:
    """For each number of row sizes, as many block counts as the given number of buckets allows; the best of all.

    One row is always a size of its own: a server that is not loaded decodes one request.
    """
    sizes, most = given.sizes, len(given.decodes)
    rows: Counter[int] = Counter()
    blocks: Counter[int] = Counter()
    for shape, times in steps.decodes.items():
        rows[shape.rows] += times
        blocks[shape.blocks] += times
    counts = fitted(blocks, _MORE * len(sizes.decode_block), sizes.decode_block[-1])
    found = [given]
    for choice in fitted(rows, len(sizes.decode_bs), sizes.decode_bs[-1]):
        alone = tuple(sorted({1, *choice}))
        sets = (_replaced(given, decode_bs=alone, decode_block=count, decode_seq=()) for count in reversed(counts))
        found += [buckets for buckets in sets if len(buckets.decodes) <= most][:1]

    return min(found, key=lambda buckets: _decode_cost(measure(steps, buckets)))


def _prompt_cost(waste: Waste) -> tuple[int, float]:
    return waste.unwarmed, waste.prompts


def _decode_cost(waste: Waste) -> tuple[int, float]:
    return waste.unwarmed, waste.rows + waste.blocks


def _replaced(given: Buckets, **sizes: tuple[int, ...]) -> Buckets:
    return Buckets(msgspec.structs.replace(given.sizes, **sizes), given.limits)


def _serve(traffic: Sequence[Traffic], buckets: Buckets) -> Steps:
    return serve(traffic, buckets.limits, Padding(buckets.sizes.prompt_bs, buckets.sizes.prompt_seq))


def _rows(name: str, buckets: Buckets, waste: Waste | None) -> Iterator[tuple[str, str, str]]:
    prompts, decodes = len(buckets.prompts), len(buckets.decodes)
    yield f"{name} buckets", str(prompts + decodes), f"{prompts} of prompts, {decodes} of decoding rows"
    seconds = (prompts + decodes) * _SECONDS
    yield f"{name} warm-up", f"{seconds:.0f} s", f"estimated at {_SECONDS:g} s a bucket"
    sizes = _shown(buckets.sizes)
    if waste is None:
        yield f"{name} sizes", sizes, "give a sample of requests (--traffic) for what they waste"
        return
    yield f"{name} padding of prompts", f"{waste.prompts:.1%}", "of the tokens computed"
    yield (
        f"{name} padding of decoding",
        f"{waste.blocks:.1%}",
        f"of the cache blocks read; {waste.rows:.1%} of the rows",
    )
    yield f"{name} unwarmed steps", str(waste.unwarmed), "of the sample"
    yield f"{name} sizes", sizes, ""


def _shown(sizes: Sizes) -> str:
    names: Mapping[str, str] = {
        "prompt_seq": "prompts of",
        "prompt_ctx": "contexts of",
        "decode_bs": "rows",
        "decode_block": "blocks",
    }
    return "; ".join(f"{word} {', '.join(map(str, getattr(sizes, name)))}" for name, word in names.items())
