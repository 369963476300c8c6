"""The one order in which everything changes what is sampled, as docs/structured-output.md declares it.

In pairs, and all together, against the same chain in plain numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from lsv_offline import plugin
from lsv_runtime.nn.sampling import Sampling
from lsv_runtime.worker.processing import Processors
from lsv_runtime.worker.sampling.sampler import draw_rows
from lsv_runtime.worker.slots import Slot
from lsv_testing.catalog import catalog_of
from lsv_testing.fakes.engine import engine_config

Floats = npt.NDArray[np.float64]

LOGITS = np.array([2.0, 1.5, 1.8, 1.0, 0.9, 0.7, 0.2, 0.1])
PROMPT, OUTPUT = (4,), (1,)
ROWS = 400
ALLOWED = (0, 1, 2, 3, 4, 6)


def forbid(x: Floats, tokens: Iterable[int]) -> Floats:
    x[list(tokens)] = -np.inf
    return x


def add_bias(x: Floats) -> Floats:
    return x + np.array([0, 4.0, 0, 1.0, 0, 0, 1.5, 0])


def penalise(x: Floats) -> Floats:
    for token in (*PROMPT, *OUTPUT):
        x[token] = x[token] / 1.7 if x[token] > 0 else x[token] * 1.7
    x[list(OUTPUT)] -= 0.4 + 0.3
    return x


def turn(x: Floats) -> Floats:
    """What the processor does: it turns the order round, and brings two tokens back."""
    x = np.where(np.isfinite(x), 3.0 - x, x)
    x[[2, 7]] = 2.5, 2.9
    return x


def turn_logits(output: list[int], logits: Tensor) -> Tensor:
    return torch.from_numpy(turn(logits.double().numpy()))


def keep_best(x: Floats, count: int) -> Floats:
    return np.where(x >= np.sort(x)[-count], x, -np.inf)


def keep_share(x: Floats, share: float) -> Floats:
    weights = np.exp(x) / np.exp(x).sum()
    order = np.argsort(-weights)
    kept = order[: int((np.cumsum(weights[order]) < share).sum()) + 1]
    return forbid(x, set(range(len(x))) - set(kept.tolist()))


CHAIN: dict[str, tuple[dict[str, Any], Callable[[Floats], Floats]]] = {
    "grammar": ({}, lambda x: forbid(x, (5, 7))),
    "allowed_token_ids": ({"allowed_token_ids": ALLOWED}, lambda x: forbid(x, (5, 7))),
    "bad_words": ({"bad_words": ((2,), (1, 0))}, lambda x: forbid(x, (2, 0))),
    "min_tokens": ({"min_tokens": 3, "stop_ids": (3,)}, lambda x: forbid(x, (3,))),
    "logit_bias": ({"logit_bias": {1: 4.0, 3: 1.0, 6: 1.5}}, add_bias),
    "penalties": ({"repetition_penalty": 1.7, "presence_penalty": 0.4, "frequency_penalty": 0.3}, penalise),
    "processors": ({"logits_processors": [turn_logits]}, turn),
    "grammar again": ({}, lambda x: forbid(x, (5, 7))),
    "top_k": ({"top_k": 4}, lambda x: keep_best(x, 4)),
    "temperature": ({"temperature": 2.0}, lambda x: x / 2.0),
    "top_p": ({"top_p": 0.75}, lambda x: keep_share(x, 0.75)),
    "min_p": ({"min_p": 0.4}, lambda x: np.where(np.exp(x) >= 0.4 * np.exp(x.max()), x, -np.inf)),
}
"""Parameters, and what they come to, in the declared order."""

FEATURES = [name for name in CHAIN if name != "grammar again"]


def expected(features: Iterable[str]) -> Floats:
    """The probabilities of the tokens."""
    asked = {*features, *(["grammar again"] if "grammar" in features else [])}
    x = LOGITS.copy()
    for name, (_, change) in CHAIN.items():
        if name in asked:
            x = change(x)
    return np.exp(x) / np.exp(x).sum()


@pytest.mark.row("F-061")
@pytest.mark.parametrize(
    "features",
    [*combinations(FEATURES, 2), [name for name in FEATURES if name != "bad_words"], FEATURES],
    ids=lambda features: "-".join(features) if len(features) == 2 else str(len(features)),
)
def test_features_apply_in_the_declared_order(make_slot: Callable[..., Slot], features: list[str]) -> None:
    params: dict[str, Any] = {"temperature": 1.0}
    for name in features:
        params |= CHAIN[name][0]
    processors = Processors(catalog_of(plugin), engine_config(), len(LOGITS), torch.device("cpu"))

    def enter(seed: int, **more: Any) -> Slot:
        slot = make_slot(PROMPT, OUTPUT, vocabulary=len(LOGITS), engine_seed=seed, **{**params, **more})
        slot.processing = processors.begin(slot.params.logits_processors, slot)
        return slot

    slots = [enter(0, temperature=0.0), *map(enter, range(ROWS))]
    logits = torch.from_numpy(LOGITS).float().repeat(len(slots), 1)
    mask = np.array([0b0101_1111], np.uint32)
    masks = dict.fromkeys(range(len(slots)), mask) if "grammar" in features else {}
    best, *drawn = draw_rows(logits, slots, [2] * len(slots), Sampling(), masks).tolist()
    chances = expected(features)
    assert best == int(chances.argmax())
    shares = np.bincount(drawn, minlength=len(LOGITS)) / ROWS
    assert not shares[chances == 0].any(), "what is cut off never comes"
    assert np.abs(shares - chances).max() < 0.11
