"""Figures of a server under load: rates, latencies, and how many requests met their targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from lsv_base.errors import ConfigError
from lsv_bench.figures import Figures, spread
from lsv_bench.load import LoadRun, Outcome

METRICS = ("ttft", "tpot", "itl", "e2el")
"""Time to first token, time per output token after it, inter-token latency, end-to-end latency."""
_OF_A_REQUEST = ("ttft", "tpot", "e2el")


def read_targets(texts: Sequence[str]) -> dict[str, float]:
    """``("ttft:500", "tpot:50")`` as seconds by metric. Raises ``ConfigError``."""
    targets: dict[str, float] = {}
    for text in texts:
        metric, _, limit = text.partition(":")
        if metric not in _OF_A_REQUEST or metric in targets:
            raise _refuse_target(text)
        try:
            targets[metric] = float(limit) / 1e3
        except ValueError:
            raise _refuse_target(text) from None
        if not targets[metric] > 0:
            raise _refuse_target(text)
    return targets


def summarise(
    load: LoadRun, *, metrics: Sequence[str], percents: Sequence[float], targets: Mapping[str, float]
) -> Figures:
    """All figures of a run; ``targets`` are in seconds, and without them no goodput is given."""
    good = [outcome for outcome in load.outcomes if outcome.error is None]
    inputs, outputs = sum(one.input_tokens for one in good), sum(one.output_tokens for one in good)
    times = {
        "ttft": [one.ttft for one in good],
        "tpot": [one.tpot for one in good if one.tpot is not None],
        "itl": [gap for one in good for gap in one.gaps],
        "e2el": [one.e2el for one in good],
    }
    figures: Figures = {
        "requests": len(good),
        "errors": len(load.outcomes) - len(good),
        "peak_concurrency": load.peak,
        "seconds": load.seconds,
        "requests_per_s": len(good) / load.seconds,
        "input_tokens": inputs,
        "cached_tokens": sum(one.cached_tokens for one in good),
        "output_tokens": outputs,
        "output_tokens_per_s": outputs / load.seconds,
        "total_tokens_per_s": (inputs + outputs) / load.seconds,
    }
    if targets:
        met = sum(meets(one, targets) for one in good)
        figures["goodput_per_s"] = met / load.seconds
        figures["good_percent"] = 100 * met / len(load.outcomes)
    for metric in metrics:
        figures.update(spread(metric, times[metric], percents))
    return figures


def meets(outcome: Outcome, targets: Mapping[str, float]) -> bool:
    """Whether a request kept within all its targets, in seconds."""
    reached = {"ttft": outcome.ttft, "tpot": outcome.tpot or 0.0, "e2el": outcome.e2el}
    return all(reached[metric] <= limit for metric, limit in targets.items())


def errors(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Message → how many requests failed with it, the most frequent first."""
    return dict(Counter(one.error for one in outcomes if one.error is not None).most_common())


def _refuse_target(text: str) -> ConfigError:
    names = ", ".join(f"{metric}:MS" for metric in _OF_A_REQUEST)
    return ConfigError(f"goodput must be a list of {names} in milliseconds, each once, got {text!r}", param="goodput")
