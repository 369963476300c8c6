"""Several engines' ``Stats`` as those of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest

import msgspec

from lsv.engine.messages import Stats
from lsv.scheduler.outcome import AdapterRequests, OffloadCounts, SpeculationCounts

_OTHERWISE = {"kv_usage", "step_tokens", "speculation", "adapters", "offload", "experts", "parts"}
"""The fields that are not simply added up."""


def add_stats(all_stats: Sequence[Stats]) -> Stats:
    """Everything added up; ``kv_usage`` is the mean, and what is told of ``experts`` is of those that all share. There
    is at least one.
    """
    totals = {
        name: sum(getattr(stats, name) for stats in all_stats)
        for name in Stats.__struct_fields__
        if name not in _OTHERWISE
    }
    return Stats(
        **totals,
        kv_usage=sum(stats.kv_usage for stats in all_stats) / len(all_stats),
        step_tokens=_add(*(stats.step_tokens for stats in all_stats)),
        speculation=_add_drafts([stats.speculation for stats in all_stats if stats.speculation is not None]),
        offload=_add_offload([stats.offload for stats in all_stats if stats.offload is not None]),
        adapters=_join_adapters([stats.adapters for stats in all_stats if stats.adapters is not None]),
        experts=all_stats[0].experts,
        parts=_add_counters([stats.parts for stats in all_stats]),
    )


def _add(*columns: Sequence[int]) -> tuple[int, ...]:
    return tuple(map(sum, zip_longest(*columns, fillvalue=0)))


def _add_counters(counters: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    return {name: sum(one.get(name, 0) for one in counters) for name in dict.fromkeys(chain(*counters))}


def _join_adapters(asked: Sequence[AdapterRequests]) -> AdapterRequests | None:
    """An adapter that waits with one engine and runs with another runs."""
    if not asked:
        return None
    running = {name for one in asked for name in one.running}
    waiting = {name for one in asked for name in one.waiting} - running
    return AdapterRequests(tuple(sorted(running)), tuple(sorted(waiting)))


def _add_offload(counts: Sequence[OffloadCounts]) -> OffloadCounts | None:
    """The usage is the mean."""
    if not counts:
        return None
    totals = {name: sum(getattr(one, name) for one in counts) for name in OffloadCounts.__struct_fields__}
    return OffloadCounts(**totals | {"usage": totals["usage"] / len(counts)})


def _add_drafts(counts: Sequence[SpeculationCounts]) -> SpeculationCounts | None:
    if not counts:
        return None
    totals = msgspec.structs.asdict(counts[0])
    for name, first in totals.items():
        values = [getattr(one, name) for one in counts]
        totals[name] = _add(*values) if isinstance(first, tuple) else sum(values)
    return SpeculationCounts(**totals)
