"""Conformance of a model: its logits equal transformers' at every position, however the work is cut into steps."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lsv.config import EngineConfig
from lsv.kv.spec import KVGroup
from lsv.plugins.catalog import Catalog
from lsv_runtime.attention import AttentionBackend, BatchLayout, CacheSpec
from lsv_runtime.attention.chunks import cut_chunks
from lsv_runtime.attention.dense import DenseAttention
from lsv_runtime.attention.state_plan import StatePlan, plan_states, view_states
from lsv_runtime.nn.model import Model, run, write_item
from lsv_runtime.nn.step import Embeddings, Items, Step, TokenAdapters
from lsv_runtime.worker.load.bound import bind_ops
from lsv_runtime.worker.load.declared import Declared
from lsv_runtime.worker.load.loaded import declare_stored, fill, open_source
from lsv_runtime.worker.transfer import send_adapters

Tokens = Sequence[int]
Rows = Sequence[tuple[int, int]]
"""The work of a step: (sequence, number of its next tokens)."""


def engine_config(
    path: Path, offer: str, *, dtype: str = "float32", max_len: int = 512, **changes: Any
) -> EngineConfig:
    """A configuration that runs a checkpoint with the dense reference attention."""
    given: dict[str, Any] = {
        "model": str(path), "served_names": ("test",), "tokenizer": str(path), "architecture": "",
        "model_offer": offer, "platform": "test", "attention": "dense", "dtype": dtype, "block_size": 8,
        "max_model_len": max_len,
    }  # fmt: skip
    return EngineConfig(**{**given, **changes})


def load(config: EngineConfig, catalog: Catalog, prepare: Callable[[Model], object] = lambda model: None) -> Declared:
    """Declare, ``prepare``, bind nothing, fill."""
    declared = declare_stored(config, catalog)
    prepare(declared.model)
    _fill(declared, config, catalog)
    return declared


def load_bound(config: EngineConfig, catalog: Catalog, platform: str) -> tuple[Declared, dict[str, str]]:
    """Declare, bind a platform's kernels, fill; the model, and by which implementation each op is bound."""
    declared = declare_stored(config, catalog)
    ops = {line.op: line.implementation for line in bind_ops(declared, catalog, platform, reference=False)}
    _fill(declared, config, catalog)
    return declared, ops


def stored_bytes(declared: Declared) -> int:
    """Bytes of the weights that checkpoints hold, in the model's dtype, before any is read."""
    return sum(parameter.nbytes for parameter in declared.model.parameters())


def _fill(declared: Declared, config: EngineConfig, catalog: Catalog) -> None:
    source = open_source(config, declared, catalog)
    fill(declared, source)
    source.close()


class Sequences:
    """Runs steps over a model with a paged cache, as a worker would, and gives the logits of every token."""

    def __init__(
        self,
        declared: Declared,
        backend: AttentionBackend | None = None,
        *,
        block_size: int = 8,
        pages: int = 256,
        kv_dtype: torch.dtype | None = None,
    ) -> None:
        self.declared, self.block_size = declared, block_size
        self.backend = backend or DenseAttention()
        dtype = kv_dtype or declared.sampling.choose.dtype
        device: Any = None
        self.cache = self.backend.allocate(
            CacheSpec(declared.groups, declared.layers, pages, block_size, dtype, declared.states), device
        )
        self.states = view_states(declared.states, self.backend, self.cache)
        self.free = list(range(1, pages))
        random.Random(0).shuffle(self.free)
        self.ids: dict[int, list[int]] = {}
        self.computed: dict[int, int] = {}
        self.tables: dict[tuple[int, int], list[int]] = {}
        self.items: dict[int, int] = {}
        self.adapters: dict[int, int] = {}
        """The slot of the adapter that a sequence goes through."""

    def add(self, sequence: int, ids: Tokens) -> None:
        """Append tokens to a sequence, new or known."""
        self.ids.setdefault(sequence, []).extend(ids)
        self.computed.setdefault(sequence, 0)

    def attend_to(self, sequence: int, item: torch.Tensor) -> None:
        """Keep an item [count, hidden] for a sequence to attend to across."""
        self.items[sequence] = len(item)
        for group in self.declared.groups:
            if group.cross_len is not None:
                pages = [self.free.pop() for _ in range(-(-len(item) // self.block_size))]
                self.tables[group.index, sequence] = pages
        self.computed.setdefault(sequence, 0)
        count, nothing = np.array([len(item)], np.int32), torch.empty(0, dtype=torch.int64)
        layout = BatchLayout(count, count, tuple(self._table(group, [sequence]) for group in self.declared.groups))
        plans = self._plans(layout, count)
        write_item(self.declared.model, item, Step(nothing, nothing[None], self.backend, plans, self.cache, nothing))

    def left(self, sequence: int) -> int:
        """Tokens of a sequence not yet computed."""
        return len(self.ids[sequence]) - self.computed[sequence]

    def step(self, rows: Rows) -> list[torch.Tensor]:
        """Compute the rows; their logits [count, vocab] in the same order."""
        ids: list[int] = []
        positions: list[Any] = []
        for sequence, count in rows:
            start = self.computed[sequence]
            ids += self.ids[sequence][start : start + count]
            positions.append(self.positions(sequence, start, start + count))
        media = self.embeddings(rows)
        for sequence, count in rows:
            self.computed[sequence] += count
        items = np.array([self.items.get(sequence, 1) for sequence, _ in rows], dtype=np.int32)
        plans = self._plans(self._layout(rows), items)
        step = Step(
            torch.tensor(ids),
            torch.from_numpy(np.concatenate(positions, axis=1)),
            self.backend,
            plans,
            self.cache,
            torch.arange(len(ids)),
            media=media,
            adapters=self._adapters(rows),
            items=self.seen_items(rows),
        )
        model = self.declared.model
        with torch.inference_mode():
            logits: torch.Tensor = model.head(run(model, step), step)
        return list(torch.split(logits.float(), [count for _, count in rows]))

    def _adapters(self, rows: Rows) -> TokenAdapters | None:
        numbers = [self.adapters.get(sequence, -1) + 1 for sequence, count in rows for _ in range(count)]
        return send_adapters(np.array(numbers, np.int64), torch.device("cpu")) if any(numbers) else None

    def positions(self, sequence: int, start: int, stop: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Where the tokens from ``start`` on stand: int64 [axes, stop - start]."""
        return np.tile(np.arange(start, stop), (self.declared.model.axes, 1))

    def embeddings(self, rows: Rows) -> Embeddings | None:
        """What media put in the places of the rows' tokens."""
        return None

    def seen_items(self, rows: Rows) -> Items | None:
        """The tokens of items that see one another, where the model has such."""
        return None

    def _plans(self, layout: BatchLayout, items: np.ndarray[Any, np.dtype[np.int32]]) -> tuple[Any, ...]:
        """By group; those that attend across see so many embeddings a row."""
        across = replace(layout, context=items)
        groups, size = self.declared.groups, self.block_size
        return tuple(
            self._plan_states(layout, group)
            if group.kind == "state"
            else self.backend.plan(cut_chunks(layout if group.cross_len is None else across, group, size), group)
            for group in groups
        )

    def _plan_states(self, layout: BatchLayout, group: KVGroup) -> StatePlan:
        """With a checkpoint at every border."""
        return plan_states(layout, layout.tables[group.index], self.block_size, torch.device("cpu"), self.states)

    def _layout(self, rows: Rows) -> BatchLayout:
        query = np.array([count for _, count in rows], dtype=np.int32)
        context = np.array([self.computed[sequence] for sequence, _ in rows], dtype=np.int32)
        tables = tuple(self._table(group, [sequence for sequence, _ in rows]) for group in self.declared.groups)
        return BatchLayout(query, context, tables)

    def _table(self, group: KVGroup, sequences: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int32]]:
        for sequence in sequences:
            table = self.tables.setdefault((group.index, sequence), [])
            while group.cross_len is None and len(table) * self.block_size < self.computed[sequence]:
                table.append(self.free.pop())
        tables = [self.tables[group.index, sequence] for sequence in sequences]
        padded = np.zeros((len(sequences), max(1, *map(len, tables))), dtype=np.int32)
        for row, table in enumerate(tables):
            padded[row, : len(table)] = table
        return padded


def whole(prompts: Mapping[int, Tokens]) -> Iterator[Rows]:
    """Each prompt alone, in one step."""
    for sequence, ids in prompts.items():
        yield [(sequence, len(ids))]


def chunks(size: int) -> Callable[[Mapping[int, Tokens]], Iterator[Rows]]:
    """Each prompt alone, in steps of ``size`` tokens."""

    def schedule(prompts: Mapping[int, Tokens]) -> Iterator[Rows]:
        for sequence, ids in prompts.items():
            for start in range(0, len(ids), size):
                yield [(sequence, min(size, len(ids) - start))]

    return schedule


def singles(prompts: Mapping[int, Tokens]) -> Iterator[Rows]:
    """Compute all prompts side by side, one token of each in a step."""
    for position in range(max(map(len, prompts.values()))):
        yield [(sequence, 1) for sequence, ids in prompts.items() if position < len(ids)]


def mixed(prompts: Mapping[int, Tokens]) -> Iterator[Rows]:
    """All prompts at once in changing company: some take part in a step, each with a random share."""
    chance = random.Random(1)
    left = {sequence: len(ids) for sequence, ids in prompts.items()}
    while left:
        chosen = chance.sample(sorted(left), chance.randint(1, len(left)))
        rows = [(sequence, min(chance.choice((1, 1, 3, 8, 20)), left[sequence])) for sequence in chosen]
        yield rows
        left = {s: n - dict(rows).get(s, 0) for s, n in left.items() if n > dict(rows).get(s, 0)}


SCHEDULES: Mapping[str, Callable[[Mapping[int, Tokens]], Iterator[Rows]]] = {
    "whole": whole,
    "single tokens": singles,
    "chunks of 7": chunks(7),
    "chunks of 16": chunks(16),
    "mixed": mixed,
}
PROMPTS: Mapping[int, Tokens] = {
    number: tuple(random.Random(number).choices(range(256), k=length)) for number, length in enumerate((45, 1, 19, 8))
}
NEW_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Comparison:
    """The largest difference of logits over all positions of a schedule, and whether greedy tokens agree."""

    schedule: str
    error: float
    """A share of the largest logit where that is over 1: so far float32 rounds."""
    same_tokens: bool


def compare(
    config: EngineConfig,
    catalog: Catalog,
    backend: AttentionBackend | None = None,
    reference: Callable[[Tokens], torch.Tensor] | None = None,
) -> list[Comparison]:
    """Run a float32 checkpoint under every schedule, and greedily, beside transformers or another reference, which
    gives the logits [length, vocab] of a sequence."""
    declared = load(config, catalog)
    reference = reference or reference_model(config)
    expected = {sequence: reference(ids) for sequence, ids in PROMPTS.items()}
    found = []
    for name, schedule in SCHEDULES.items():
        logits = run_schedule(Sequences(declared, backend), schedule)
        found.append(compare_logits(name, logits, expected))
    found.append(compare_decoding(Sequences(declared, backend), lambda _, ids: reference(ids)))
    return found


def run_schedule(
    sequences: Sequences,
    schedule: Callable[[Mapping[int, Tokens]], Iterator[Rows]],
    prompts: Mapping[int, Tokens] = PROMPTS,
) -> dict[int, torch.Tensor]:
    """The logits [length, vocab] of every prompt."""
    for sequence, ids in prompts.items():
        sequences.add(sequence, ids)
    parts: dict[int, list[torch.Tensor]] = {sequence: [] for sequence in prompts}
    for rows in schedule(prompts):
        for (sequence, _), logits in zip(rows, sequences.step(rows), strict=True):
            parts[sequence].append(logits)
    return {sequence: torch.cat(logits) for sequence, logits in parts.items()}


def reference_model(config: EngineConfig, attention: str = "eager") -> Callable[[Tokens], torch.Tensor]:
    """transformers' own float32 logits [length, vocab] of a sequence, with its ``attention``."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(config.model, dtype=torch.float32, attn_implementation=attention)
    model.eval()

    def logits(ids: Tokens) -> torch.Tensor:
        with torch.inference_mode():
            found: torch.Tensor = model(torch.tensor([ids]), use_cache=False).logits[0]
        return found.float()

    return logits


def check_kernels(sequences: Sequences, plain: Declared, schedule: str, tolerance: float) -> None:
    """That a model with kernels has the logits of one without, up to a share of the largest."""
    expected = run_schedule(Sequences(plain), SCHEDULES["whole"])
    error = compare_logits(schedule, run_schedule(sequences, SCHEDULES[schedule]), expected).error
    largest = max(float(logits.abs().max()) for logits in expected.values())
    assert error <= tolerance * largest, f"{schedule}: off by {error / largest} of the largest logit"


def compare_logits(name: str, logits: Mapping[int, torch.Tensor], expected: Mapping[int, torch.Tensor]) -> Comparison:
    """Logits [length, vocab] of sequences beside those expected; ids beyond those are not compared."""
    logits = {s: logits[s][:, : one.shape[-1]] for s, one in expected.items()}
    largest = max(1.0, *(float(one.abs().max()) for one in expected.values()))
    error = max(float((logits[s] - expected[s]).abs().max()) for s in expected) / largest
    same = all(torch.equal(logits[s].argmax(-1), expected[s].argmax(-1)) for s in expected)
    return Comparison(name, error, same)


def compare_decoding(
    sequences: Sequences,
    reference: Callable[[int, Tokens], torch.Tensor],
    prompts: Mapping[int, Tokens] = PROMPTS,
) -> Comparison:
    """All prompts in one step, then greedy tokens for all of them together; ``reference`` is asked by sequence."""
    for sequence, ids in prompts.items():
        sequences.add(sequence, ids)
    logits: dict[int, list[torch.Tensor]] = {sequence: [] for sequence in prompts}
    for _ in range(NEW_TOKENS):
        rows = [(sequence, sequences.left(sequence)) for sequence in prompts]
        for (sequence, _), found in zip(rows, sequences.step(rows), strict=True):
            logits[sequence].append(found)
            sequences.add(sequence, [int(found[-1].argmax())])
    expected = {sequence: reference(sequence, sequences.ids[sequence][:-1]) for sequence in prompts}
    return compare_logits("decode", {s: torch.cat(parts) for s, parts in logits.items()}, expected)


def check_model(
    config: EngineConfig,
    catalog: Catalog,
    backend: AttentionBackend | None = None,
    *,
    reference: Callable[[Tokens], torch.Tensor] | None = None,
    tolerance: float = 1e-4,
) -> list[Comparison]:
    """``compare``, and fail if a position differs by more than ``tolerance`` or a greedy token differs."""
    return check(compare(config, catalog, backend, reference), tolerance)


def check(found: list[Comparison], tolerance: float) -> list[Comparison]:
    """Fail unless logits and greedy tokens agree."""
    for case in found:
        assert case.error <= tolerance, (
            f"{case.schedule}: logits differ by {case.error:.1e}, allowed is {tolerance:.0e}"
        )
        assert case.same_tokens, f"{case.schedule}: greedy tokens differ"
    return found
