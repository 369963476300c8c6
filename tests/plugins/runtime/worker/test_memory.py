"""How a budget becomes pages, and the text that says by how much a length does not fit."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lsv.config import EngineConfig, Fit
from lsv.kv.spec import KVGroup, KVSpec, blocks_for, group_specs, longest_length
from lsv_base.errors import ConfigError
from lsv_runtime.attention.dense import DenseAttention
from lsv_runtime.devices.device import Budget
from lsv_runtime.worker.load.memory import plan_memory

GIB = 1 << 30


class Declared:
    def __init__(self, specs: Sequence[KVSpec]) -> None:
        self.specs = tuple(specs)
        self.groups = group_specs(specs)
        self.weight_bytes = 1000
        self.vocab_size = 32


def plan(specs: Sequence[KVSpec], kv: int, largest: int | None = None, **changes: Any) -> Fit:
    config = EngineConfig(
        **{
            "model": "m", "served_names": ("m",), "tokenizer": "m", "architecture": "a", "model_offer": "a",
            "platform": "p", "attention": "dense", "dtype": "bfloat16", "block_size": 64,
            "max_model_len": 118000,
            **changes,
        }  # type: ignore[arg-type]
    )  # fmt: skip
    return plan_memory(Declared(specs), DenseAttention(), Budget(kv, why="a rule"), config, largest)


FULL = [KVSpec(layer, "full", 2048) for layer in range(28)]
"""28 layers of 2048 bytes a token: 3.5 MiB for a block of 64."""
PAGE = 28 * 2048 * 64


def test_one_page_of_the_budget_is_the_null_page() -> None:
    fit = plan(FULL, 1900 * PAGE + 5)
    assert (fit.num_blocks, fit.kv_bytes) == (1899, 1900 * PAGE)
    assert fit.kv_tokens == 1899 * 64
    assert [KVGroup(**group) for group in fit.groups] == list(group_specs(FULL))
    assert (fit.reasons[0].value, fit.reasons[0].why) == (str(1900 * PAGE + 5), "a rule")


@pytest.mark.row("F-386", "F-387", "F-388", "F-941")
def test_a_length_that_does_not_fit_is_refused_with_all_numbers() -> None:
    with pytest.raises(ConfigError) as caught:
        plan(FULL, 1789 * PAGE)
    assert caught.value.message == (
        "To serve at least one request with the model's max seq len (118000), 6.31 GiB KV cache is needed, "
        "which is larger than the available KV cache memory (6.11 GiB). Based on the available memory, the "
        "estimated maximum model length is 114432. Try increasing `gpu_memory_utilization` or decreasing "
        "`max_model_len` when initializing the engine."
    )
    assert plan(FULL, 1789 * PAGE, max_model_len=114432).num_blocks == 1788
    with pytest.raises(ConfigError):
        plan(FULL, 1789 * PAGE, max_model_len=114433)


@pytest.mark.parametrize("kv", [0, -5, PAGE])
def test_a_budget_for_no_block_at_all_is_refused(kv: int) -> None:
    with pytest.raises(ConfigError, match="estimated maximum model length is 0"):
        plan(FULL, kv)


@pytest.mark.row("F-258", "F-383")
def test_explicit_sizes_override_the_budget() -> None:
    assert plan(FULL, 0, kv_bytes=2000 * PAGE).num_blocks == 1999
    assert plan(FULL, 0, kv_bytes=2000 * PAGE, num_blocks=1850).num_blocks == 1850


def test_windowed_layers_need_blocks_for_their_window_and_one_step() -> None:
    specs = [KVSpec(0, "full", 8), KVSpec(1, "window", 8, window=128)]
    groups = group_specs(specs)
    # 64 blocks for all tokens; 127 old tokens and 256 new ones touch at most 25 blocks of 16
    assert blocks_for(1024, groups, 16, 256) == 64 + 25
    assert blocks_for(32, groups, 16, 256) == 4
    assert longest_length(64 + 25, groups, 16, 256) == 1024
    assert longest_length(64 + 24, groups, 16, 256) == 63 * 16


def test_items_across_need_their_blocks_beside_the_tokens() -> None:
    specs = [KVSpec(0, "full", 8), KVSpec(1, "cross", 8, cross_len=1500)]
    page = 8 * 64
    fit = plan(specs, (1 + 10 * (7 + 24)) * page, max_model_len=448)
    assert fit.num_blocks == 310
    assert fit.kv_tokens == 10 * 448, "ten requests of seven blocks, and 24 for what each attends to"
    with pytest.raises(ConfigError, match="estimated maximum model length is 384"):
        plan(specs, (7 + 24) * page, max_model_len=448)


def test_the_largest_group_sets_the_page() -> None:
    windowed = [KVSpec(layer, "window", 8, window=4) for layer in (2, 3, 4)]
    specs = [KVSpec(0, "full", 8), KVSpec(1, "full", 8), *windowed]
    fit = plan(specs, 1000 * 2 * 8 * 64, max_model_len=640)
    assert [len(group["layers"]) for group in fit.groups] == [2, 2, 1]
    assert fit.num_blocks == 999


def test_a_model_without_a_cache_needs_no_pages(tmp_path: Path) -> None:
    fit = plan([], GIB)
    assert (fit.num_blocks, fit.kv_bytes, fit.groups) == (0, 0, ())


def test_no_piece_is_larger_than_what_the_device_gives_at_a_time() -> None:
    """A piece is the pages of one layer here, of two where another group's layers are half as large."""
    piece = 2048 * 64
    fit = plan(FULL, 2900 * PAGE, 1900 * piece + 5)
    assert (fit.num_blocks, fit.kv_bytes) == (1899, 1900 * PAGE)
    assert fit.reasons[0].why.endswith("the most that the device gives at a time, instead of a rule")
    assert plan(FULL, 1900 * PAGE, 1900 * piece).reasons[0].why == "a rule", "nothing is cut short"
    uneven = [*FULL, *(KVSpec(28 + layer, "window", 1024, window=512) for layer in range(4))]
    assert plan(uneven, 2900 * PAGE, 1900 * piece, max_model_len=2048).num_blocks == 1899
    with pytest.raises(ConfigError, match=r"6\.31 GiB KV cache is needed"):
        plan(FULL, 2900 * PAGE, 1000 * piece)
